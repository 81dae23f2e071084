"""The house: what lies where, who may import whom, and that a device never meets TensorFlow."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.rooms import PACKAGES, PICTURE, ROOMS, draw, imported, imports_of, parse, rooms_of, sources

ROOT = Path(__file__).parents[1]
TOP = {
    ".ci",
    ".github",
    ".gitignore",
    ".pre-commit-config.yaml",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "MANIFEST.in",
    "Makefile",
    "README.md",
    "docs",
    "pyproject.toml",
    "edgefl",
    "devices",
    "mqtt_broker",
    "firmware_export",
    "tests",
}
MAY_IMPORT = {
    "edgefl": {"edgefl"},
    "devices": {"devices", "edgefl"},
    "mqtt_broker": {"mqtt_broker", "edgefl"},
    "firmware_export": {"firmware_export", "edgefl"},
}
HEAVY = {
    "tensorflow",
    "keras",
    "tf_keras",
    "sklearn",
    "scipy",
    "matplotlib",
    "amqtt",
    "tflite_micro",
    "tensorflow_model_optimization",
    "dp_accounting",
    "tensorboardX",
    "mlflow",
    "prometheus_client",
}
# Rooms that run where TensorFlow is installed may import it as they load; nothing that a device imports loads
# them.
TENSORFLOW = ("edgefl/models/", "edgefl/compiler/", "edgefl/learner/keras.py")
PAHO = ("edgefl/transport/",)
FLATBUFFERS = "edgefl/plan/tflite.py"
UNWANTED = re.compile(r"manager|handler|helper|utils", re.IGNORECASE)

DEVICE_IMPORTS = """
import importlib, pkgutil, sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"tensorflow", "keras", "tf_keras", "sklearn", "amqtt"}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Block())
for room in sys.argv[1:]:
    package = importlib.import_module(room)
    for module in pkgutil.walk_packages(getattr(package, "__path__", ()), room + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
assert "tensorflow" not in sys.modules
"""
DEVICE_ROOMS = (
    "devices",
    "edgefl.cli.main",
    "edgefl.algorithms",
    "edgefl.client",
    "edgefl.config",
    "edgefl.data.sources",
    "edgefl.data.npz",
    "edgefl.learner.litert",
    "edgefl.plan",
    "edgefl.security",
    "edgefl.storage",
    "edgefl.system",
    "edgefl.transport",
    "edgefl.wire",
    "firmware_export.commands",
    "firmware_export.quantize",
    "firmware_export.tflite",
)


def all_sources() -> list[Path]:
    return [path for package in PACKAGES for path in sources(package)]


def test_sources() -> list[Path]:
    return sorted((ROOT / "tests").rglob("*.py"))


test_sources.__test__ = False  # type: ignore[attr-defined]


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


def test_top_level() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    assert {name.partition("/")[0] for name in listed if name} <= TOP


@pytest.mark.parametrize("path", all_sources(), ids=relative)
def test_imports_run_one_way(path: Path) -> None:
    own = path.relative_to(ROOT).parts[0]
    for name in imported(list(ast.walk(parse(path)))):
        top = name.partition(".")[0]
        assert top not in PACKAGES or top in MAY_IMPORT[own], f"{relative(path)} imports {name}"
        assert top not in {"pickle", "cPickle", "dill", "joblib", "marshal", "shelve"}, (
            f"{relative(path)} imports {name}"
        )
        assert top != "paho" or relative(path).startswith(PAHO), (
            f"{relative(path)} imports {name}, which is for {PAHO}"
        )
        if name.startswith(("flatbuffers", "ai_edge_litert.schema")):
            assert relative(path) == FLATBUFFERS, (
                f"{relative(path)} imports {name}, which is for {FLATBUFFERS}"
            )


@pytest.mark.parametrize("package", ROOMS)
def test_every_room_has_its_place(package: str) -> None:
    assert rooms_of(package) == set(ROOMS[package])


@pytest.mark.parametrize("path", all_sources(), ids=relative)
def test_a_room_imports_rooms_before_it(path: Path) -> None:
    package, room = path.relative_to(ROOT).with_suffix("").parts[:2]
    order = ROOMS[package]
    for owner, other, name in imports_of(path):
        if owner == package:
            assert order.index(other) <= order.index(room), (
                f"{relative(path)} imports {name}, whose room comes later"
            )


def test_the_picture_of_the_rooms_is_that_of_the_imports() -> None:
    assert PICTURE.read_text() == draw(), "draw it anew: python tests/support/rooms.py"


@pytest.mark.parametrize(
    "path", [p for p in all_sources() if not relative(p).startswith(TENSORFLOW)], ids=relative
)
def test_nothing_heavy_at_import(path: Path) -> None:
    heavy = {name for name in imported(at_module_level(parse(path))) if name.partition(".")[0] in HEAVY}
    assert not heavy, (
        f"{relative(path)} imports {heavy} when it is imported; import it in the function that needs it"
    )


@pytest.mark.parametrize("path", all_sources() + test_sources(), ids=relative)
def test_the_formatter_is_never_switched_off(path: Path) -> None:
    assert not re.search(r"# fmt: ?(skip|off)", path.read_text())


@pytest.mark.parametrize("path", all_sources() + test_sources(), ids=relative)
def test_names(path: Path) -> None:
    defined = [
        node.name
        for node in ast.walk(parse(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]
    assert not [name for name in [path.stem, path.parent.name, *defined] if UNWANTED.search(name)]


def test_a_device_imports_without_tensorflow() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", DEVICE_IMPORTS, *DEVICE_ROOMS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
