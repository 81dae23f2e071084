"""The layout of the project: its folders, the allowed imports, and that a device does not import TensorFlow.

A room is a module or subpackage at the top of a package, see tests/support/rooms.py.
"""

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
# Rooms that only run with TensorFlow may import it when they are loaded. A device never loads these rooms.
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


def list_sources() -> list[Path]:
    return [path for package in PACKAGES for path in sources(package)]


def list_test_sources() -> list[Path]:
    return sorted((ROOT / "tests").rglob("*.py"))


def walk_import_time_nodes(module: ast.Module) -> Iterator[ast.AST]:
    """Yield the syntax nodes that run on import, without function bodies and `if TYPE_CHECKING`."""
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


def get_relative_path(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_repository_root_has_only_listed_entries() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    assert {name.partition("/")[0] for name in listed if name} <= TOP


@pytest.mark.parametrize("path", list_sources(), ids=get_relative_path)
def test_packages_import_only_allowed_packages(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    for name in imported(list(ast.walk(parse(path)))):
        top = name.partition(".")[0]
        assert top not in PACKAGES or top in MAY_IMPORT[package], f"{get_relative_path(path)} imports {name}"
        assert top not in {"pickle", "cPickle", "dill", "joblib", "marshal", "shelve"}, (
            f"{get_relative_path(path)} imports {name}"
        )
        assert top != "paho" or get_relative_path(path).startswith(PAHO), (
            f"{get_relative_path(path)} imports {name}, which is for {PAHO}"
        )
        if name.startswith(("flatbuffers", "ai_edge_litert.schema")):
            assert get_relative_path(path) == FLATBUFFERS, (
                f"{get_relative_path(path)} imports {name}, which is for {FLATBUFFERS}"
            )


@pytest.mark.parametrize("package", ROOMS)
def test_every_room_is_in_the_reading_order(package: str) -> None:
    assert rooms_of(package) == set(ROOMS[package])


@pytest.mark.parametrize("path", list_sources(), ids=get_relative_path)
def test_rooms_import_only_earlier_rooms(path: Path) -> None:
    package, room = path.relative_to(ROOT).with_suffix("").parts[:2]
    order = ROOMS[package]
    for owner, other, name in imports_of(path):
        if owner == package:
            assert order.index(other) <= order.index(room), (
                f"{get_relative_path(path)} imports {name}, whose room comes later"
            )


def test_picture_of_the_rooms_is_up_to_date() -> None:
    assert PICTURE.read_text() == draw(), "draw it anew: python tests/support/rooms.py"


@pytest.mark.parametrize(
    "path",
    [p for p in list_sources() if not get_relative_path(p).startswith(TENSORFLOW)],
    ids=get_relative_path,
)
def test_modules_load_no_heavy_package_on_import(path: Path) -> None:
    heavy = {
        name for name in imported(walk_import_time_nodes(parse(path))) if name.partition(".")[0] in HEAVY
    }
    assert not heavy, (
        f"{get_relative_path(path)} imports {heavy} when it is imported; import it in the "
        "function that needs it"
    )


@pytest.mark.parametrize("path", list_sources() + list_test_sources(), ids=get_relative_path)
def test_the_formatter_is_never_switched_off(path: Path) -> None:
    assert not re.search(r"# fmt: ?(skip|off)", path.read_text())


@pytest.mark.parametrize("path", list_sources() + list_test_sources(), ids=get_relative_path)
def test_names_avoid_vague_words(path: Path) -> None:
    defined = [
        node.name
        for node in ast.walk(parse(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]
    assert not [name for name in [path.stem, path.parent.name, *defined] if UNWANTED.search(name)]


def test_device_modules_import_without_tensorflow() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", DEVICE_IMPORTS, *DEVICE_ROOMS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
