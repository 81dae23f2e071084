"""A typed test runs again when its page, a module of a command on it, or the test itself changes."""

import json
import shutil

from tests.typed import digests

NAME = "test_typed_runs.py::test_commands_of_the_report_page_work"


def test_pages_of_a_test_and_modules_of_its_commands_are_found():
    text = "```sh\nedgefl export verify out\nedgefl device start --id a | jq .\n```\n"
    modules = {str(path.relative_to(digests.ROOT)) for path in digests.list_command_modules(text)}
    assert {"devices/commands/device.py", "firmware_export/commands/export.py"} <= modules
    computed = digests.compute_digests()
    assert NAME in computed
    assert len(computed) >= 15


def test_digest_depends_on_page_test_and_command_and_on_nothing_else(tmp_path, monkeypatch):
    folder = tmp_path / "tests" / "typed"
    shutil.copytree(digests.FOLDER, folder)
    page = tmp_path / "docs" / "how-to" / "report.md"
    shutil.copytree(
        digests.ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("assets", "results")
    )
    shutil.copytree(digests.ROOT / "docs/results", tmp_path / "docs/results")
    shutil.copy(digests.ROOT / "README.md", tmp_path)
    monkeypatch.setattr(digests, "list_command_modules", lambda text: {tmp_path / "module.py"})
    (tmp_path / "module.py").write_text("a = 1")
    monkeypatch.setattr(digests, "ROOT", tmp_path)
    before = digests.compute_digests(folder)

    def list_changed() -> set[str]:
        return {name for name, digest in digests.compute_digests(folder).items() if before[name] != digest}

    assert list_changed() == set()
    page.write_text(page.read_text() + "\n")
    assert list_changed() == {NAME}
    (folder / "test_typed_runs.py").write_text((folder / "test_typed_runs.py").read_text() + "\n")
    assert list_changed() == {name for name in before if name.startswith("test_typed_runs.py")}
    (tmp_path / "module.py").write_text("a = 2")
    assert list_changed() == before.keys()


def test_entry_of_untyped_commands_belongs_to_the_digest(monkeypatch):
    before = digests.compute_digests()
    changed = {**digests.UNTYPED_COMMANDS, "docs/how-to/report.md": {"edgefl": "a reason"}}
    monkeypatch.setattr(digests, "UNTYPED_COMMANDS", changed)
    after = digests.compute_digests()
    assert [name for name in before if before[name] != after[name]] == [NAME]


def test_committed_list_names_existing_tests():
    assert json.loads(digests.LIST.read_text()).keys() <= digests.compute_digests().keys()
