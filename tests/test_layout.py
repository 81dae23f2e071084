"""The house: what lies where, who may import whom, and that a device never meets TensorFlow."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOP = {
    ".ci", ".gitignore", "CHANGELOG.md", "LICENSE", "Makefile", "README.md", "docs", "pyproject.toml",
    "edgefl", "devices", "mqtt_broker", "firmware_export", "tests",
}  # fmt: skip
PACKAGES = ("edgefl", "devices", "mqtt_broker", "firmware_export")
MAY_IMPORT = {
    "edgefl": {"edgefl"},
    "devices": {"devices", "edgefl"},
    "mqtt_broker": {"mqtt_broker", "edgefl"},
    "firmware_export": {"firmware_export", "edgefl"},
}
# The rooms of the core in reading order; a module imports its own row and those above it.
ROOMS = (
    {"types", "errors", "files", "rng", "codecs", "config", "tables", "toml", "commented", "checkpoint", "stopping"},
    {"memory", "machine", "quiet", "telling", "completion", "__init__"},
    {"drawing"},
    {"data"},
    {"models"},
    {"plan", "mixture", "device_state"},
    {"learner"},
    {"algorithms"},
    {"client", "cohort", "plausible", "staleness"},
    {"privacy"},
    {"wire"},
    {"rounds", "security"},
    {"engines", "loggers"},
    {"traffic", "evaluation"},
    {"snapshot"},
    {"simulate"},
    {"runs"},
    {"tune"},
    {"reproduce", "audit"},
    {"report"},
    {"link"},
    {"mqtt"},
    {"monitor", "dashboard", "bench", "demo", "demo_table", "demo_processes", "doctor", "init"},
    {"cli"},
    {"__main__"},
)
HEAVY = {
    "tensorflow", "keras", "tf_keras", "sklearn", "scipy", "matplotlib", "amqtt", "tflite_micro", "tensorflow_model_optimization",
    "dp_accounting", "tensorboardX", "mlflow", "prometheus_client",
}  # fmt: skip
# Compiled at the aggregator: these may import TensorFlow as they load, for nothing that a device imports loads them.
COMPILER = ("edgefl/models/", "edgefl/plan/", "edgefl/learner/keras.py")
DEVICE_PARTS = {"edgefl/plan/spec.py", "edgefl/plan/__init__.py", "edgefl/plan/commands.py"}
# The second is what the first is measured beside: paho with nothing on top.
PAHO = {"edgefl/mqtt.py", "edgefl/link/paced.py", "edgefl/bench/fleet_floor.py"}
UNWANTED = re.compile(r"manager|handler|helper|utils", re.IGNORECASE)

DEVICE_IMPORTS = """
import importlib, pkgutil, sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"tensorflow", "keras", "tf_keras", "sklearn", "amqtt"}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Block())
import edgefl.algorithms, edgefl.cli, devices
for package in (edgefl.algorithms, devices):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
for name in sys.argv[1:]:
    importlib.import_module(name)
assert "tensorflow" not in sys.modules
"""


def sources() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def test_sources() -> list[Path]:
    return sorted((ROOT / "tests").rglob("*.py"))


test_sources.__test__ = False  # type: ignore[attr-defined]


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def imported(nodes: Iterator[ast.AST] | list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def at_module_level(module: ast.Module) -> Iterator[ast.AST]:
    """Every statement that runs on import: function bodies and `if TYPE_CHECKING` are left out."""
    todo: list[ast.AST] = [module]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            todo.extend(node.orelse)
            continue
        yield node
        todo.extend(ast.iter_child_nodes(node))


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def room(name: str) -> int | None:
    parts = name.split(".")
    if parts[:3] == ["edgefl", "plan", "build"]:  # where a model meets its algorithm
        parts = ["edgefl", "algorithms"]
    key = "cli" if parts[-1] == "commands" else parts[1] if len(parts) > 1 else "__init__"
    return next((i for i, row in enumerate(ROOMS) if key in row), None)


def test_top_level() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    assert {name.partition("/")[0] for name in listed if name} <= TOP


@pytest.mark.parametrize("path", sources(), ids=relative)
def test_imports_run_one_way(path: Path) -> None:
    own = path.relative_to(ROOT).parts[0]
    for name in imported(list(ast.walk(tree(path)))):
        top = name.partition(".")[0]
        assert top not in PACKAGES or top in MAY_IMPORT[own], f"{relative(path)} imports {name}"
        assert top not in {"pickle", "cPickle", "dill", "joblib", "marshal", "shelve"}, f"{relative(path)} imports {name}"
        assert top != "paho" or relative(path) in PAHO, f"{relative(path)} imports {name}, which is for {sorted(PAHO)}"


@pytest.mark.parametrize("path", [p for p in sources() if relative(p).startswith("edgefl/")], ids=relative)
def test_rooms_import_down_the_list(path: Path) -> None:
    own = room(".".join(path.relative_to(ROOT).with_suffix("").parts))
    assert own is not None, f"{relative(path)} is in no room; name it in ROOMS"
    for name in imported(at_module_level(tree(path))):
        if name.startswith("edgefl."):
            other = room(name)
            assert other is None or other <= own, f"{relative(path)} imports {name}, which lies further on"


def is_of_the_compiler(path: Path) -> bool:
    return relative(path).startswith(COMPILER) and relative(path) not in DEVICE_PARTS


@pytest.mark.parametrize("path", [p for p in sources() if not is_of_the_compiler(p)], ids=relative)
def test_nothing_heavy_at_import(path: Path) -> None:
    heavy = {name for name in imported(at_module_level(tree(path))) if name.partition(".")[0] in HEAVY}
    assert not heavy, f"{relative(path)} imports {heavy} when it is imported; import it in the function that needs it"


@pytest.mark.parametrize("path", sources() + test_sources(), ids=relative)
def test_names(path: Path) -> None:
    defined = [
        node.name for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]  # fmt: skip
    assert not [name for name in [path.stem, path.parent.name, *defined] if UNWANTED.search(name)]


def test_test_files_have_their_own_names() -> None:
    names = [path.name for path in test_sources() if path.name.startswith("test_")]
    assert not {name for name in names if names.count(name) > 1}
    assert not [path for path in test_sources() if path.name == "__init__.py"]


def test_a_device_imports_without_tensorflow() -> None:
    extra = ["edgefl.learner.runtime", "edgefl.learner.litert", "edgefl.mqtt", "edgefl.data.npz", "firmware_export.commands"]
    extra += [f"edgefl.data.device.{name}" for name in ("class_folder", "csv_windows", "function", "ring")]
    ran = subprocess.run([sys.executable, "-c", DEVICE_IMPORTS, *extra], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
