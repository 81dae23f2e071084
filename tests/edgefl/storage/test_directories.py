"""Each directory on disk declares its files once, and the product reads their names there."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgefl.plan.spec import INITIAL_FILE, PLAN_FILE_NAMES
from edgefl.storage.aggregator_directory import AggregatorFiles
from edgefl.storage.demo_directory import DemoFiles
from edgefl.storage.device_directory import DeviceFiles
from edgefl.storage.directory import DeclaredFile, Directory, FileSeries, StoredFile
from edgefl.storage.run_directory import RunFiles

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "directories.md"
DIRECTORIES = (DeviceFiles, AggregatorFiles, RunFiles, DemoFiles)
# Names that other things share: a configuration, an export, a firmware project, samples of a person.
SHARED = {"federation.toml", "model", "model.tflite", "report.html", "shard.npz"}
PARTS = {
    part for directory in DIRECTORIES for each in directory.list_files() for part in Path(each.name).parts
}
PLAN_FILES = {*PLAN_FILE_NAMES.values(), INITIAL_FILE}
NAMES = {part for part in PARTS if "." in part and "{" not in part} - SHARED | PLAN_FILES
# These names are ordinary words. They count where a path is put together.
PLAIN_NAMES = {part for part in PARTS if part.isalpha()} - SHARED


def list_sources() -> list[Path]:
    paths = (
        path
        for package in ("edgefl", "devices", "mqtt_broker", "firmware_export")
        for path in sorted((ROOT / package).rglob("*.py"))
    )
    owners = {ROOT / "edgefl" / "storage", ROOT / "edgefl" / "plan"}
    return [path for path in paths if path.parent not in owners]


def iterate_strings(tree: ast.Module) -> Iterator[str]:
    """Iterate over the strings of a module, without docstrings."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def iterate_path_parts(tree: ast.Module) -> Iterator[str]:
    """Iterate over the strings that are appended to a path."""
    for node in ast.walk(tree):
        match node:
            case ast.BinOp(op=ast.Div(), right=ast.Constant(value=str(text))):
                yield text


@pytest.mark.parametrize("path", list_sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_file_names_are_not_repeated_in_product_code(path: Path) -> None:
    tree = ast.parse(path.read_text())
    pattern = re.compile(rf"(?<![\w.-])({'|'.join(map(re.escape, sorted(NAMES)))})(?!\w)")
    assert not [text for text in iterate_strings(tree) if pattern.search(text)], "read it from edgefl.storage"
    assert not [name for name in iterate_path_parts(tree) if name in PLAIN_NAMES], (
        "read it from edgefl.storage"
    )


def format_rows(directory: type[Directory]) -> list[str]:
    return [
        f"| `{each.name}` | {each.content} | {each.writer} | {'yes' if each.is_secret else ''} |"
        for each in directory.list_files()
    ]


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_reference_page_lists_the_files_of_each_directory(directory: type[Directory]) -> None:
    page = PAGE.read_text()
    section = page.partition(f"\n::: {directory.__module__}\n")[2].partition("\n## ")[0]
    listed = [line for line in section.splitlines() if line.startswith("| `")]
    assert listed == format_rows(directory)


def test_reference_page_lists_the_files_of_a_plan() -> None:
    assert all(f"`{name}`" in PAGE.read_text() for name in PLAN_FILES)


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_file_names_are_unique_within_a_directory(directory: type[Directory]) -> None:
    listed = [each.name for each in directory.list_files()]
    assert len(listed) == len(set(listed)) >= 8


class Example(Directory):
    note = StoredFile("note.json", "a note", "a test")
    folder = StoredFile("folder/", "parts", "a test")
    part = FileSeries("folder/{client}.{round}.bin", "one part", "a test", is_secret=True)


def test_entry_is_a_path_on_instances_and_a_declaration_on_the_class() -> None:
    example = Example(Path("out"))
    assert (example.note, example.folder) == (Path("out/note.json"), Path("out/folder"))
    assert example.part(client="a.b", round=3) == Path("out/folder/a.b.3.bin")
    assert Example.part.pattern == "folder/*.*.bin"
    assert Example.list_files() == (Example.note, Example.folder, Example.part)
    assert all(isinstance(each, DeclaredFile) for each in Example.list_files())
    with pytest.raises(KeyError, match="round"):
        example.part(client="a")
