"""Each directory on disk declares its files once, and the reference page lists them."""

from pathlib import Path

import pytest

from edgefl.base.storage.aggregator_directory import AggregatorFiles
from edgefl.base.storage.demo_directory import DemoFiles
from edgefl.base.storage.device_directory import DeviceFiles
from edgefl.base.storage.directory import DeclaredFile, Directory, FileSeries, StoredFile
from edgefl.base.storage.run_directory import RunFiles
from edgefl.program.plan.spec import INITIAL_FILE, PLAN_FILE_NAMES

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "reference" / "directories.md"
DIRECTORIES = (DeviceFiles, AggregatorFiles, RunFiles, DemoFiles)
PLAN_FILES = {*PLAN_FILE_NAMES.values(), INITIAL_FILE}


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
