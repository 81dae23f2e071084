"""The layout of the project: its folders and rooms, and that a device does not import TensorFlow.

A room is a module or subpackage at the top of a package, see tests/support/rooms.py. `tests/lint` checks the
imports.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.rooms import PICTURE, ROOMS, draw, parts_of, rooms_of

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
    "edgefl.learning.algorithms",
    "edgefl.learning.client",
    "edgefl.base.config",
    "edgefl.data.sources",
    "edgefl.data.npz",
    "edgefl.program.learner.litert",
    "edgefl.program.plan",
    "edgefl.protocol.security",
    "edgefl.base.storage",
    "edgefl.base.system",
    "edgefl.protocol.transport",
    "edgefl.protocol.wire",
    "firmware_export.commands",
    "firmware_export.quantize",
    "firmware_export.tflite",
)


def test_repository_root_has_only_listed_entries() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    assert {name.partition("/")[0] for name in listed if name} <= TOP


@pytest.mark.parametrize("package", ROOMS)
def test_every_room_is_in_the_reading_order(package: str) -> None:
    assert rooms_of(package) == set(ROOMS[package])
    for room, parts in ROOMS[package].items():
        assert not parts or parts_of(package, room) == set(parts), room


def test_picture_of_the_rooms_is_up_to_date() -> None:
    assert PICTURE.read_text() == draw(), "draw it anew: python tests/support/rooms.py"


def test_device_modules_import_without_tensorflow() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", DEVICE_IMPORTS, *DEVICE_ROOMS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
