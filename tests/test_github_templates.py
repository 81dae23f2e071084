"""The templates of issues and pull requests have the fields that GitHub reads, and name existing commands.

The nightly workflow runs an existing target.
"""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgefl.cli.main import cli
from tests.support.rooms import ROOT

ISSUES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.md"))
TEMPLATES = [*ISSUES, ROOT / ".github" / "pull_request_template.md"]
COMMANDS = sorted(
    {command for path in TEMPLATES for command in re.findall(r"`(edgefl [a-z-][^`]*)`", path.read_text())}
)
TARGETS = sorted(
    {target for path in TEMPLATES for target in re.findall(r"`make ([a-z-]+)`", path.read_text())}
)


@pytest.mark.parametrize("path", ISSUES, ids=lambda path: path.stem)
def test_an_issue_template_has_the_fields_of_github(path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    _, fields, body = path.read_text().split("---\n", 2)
    assert yaml.safe_load(fields).keys() == {"name", "about", "title", "labels"}
    assert body.strip()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_a_template_exists(command: str) -> None:
    arguments = shlex.split(command)[1:]
    assert CliRunner().invoke(cli, [*arguments, "--help"]).exit_code == 0


def test_a_make_target_of_a_template_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert TARGETS
    for target in TARGETS:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_a_bug_report_asks_for_the_facts_of_a_federation() -> None:
    text = (ROOT / ".github" / "ISSUE_TEMPLATE" / "bug_report.md").read_text()
    assert {"edgefl --version", "edgefl doctor --json", "edgefl device boards"} <= set(COMMANDS)
    for fact in ("Board", "TFLite runtime", "Broker", "federation.toml", "Do not attach keys"):
        assert fact in text


def test_the_nightly_workflow_runs_every_test_as_ci_does() -> None:
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yml").read_text())
    assert workflow[True]["schedule"]  # YAML 1.1 reads the key `on` as true
    (job,) = workflow["jobs"].values()
    (command,) = (step["run"] for step in job["steps"] if "run" in step)
    script, target = command.split()
    assert (ROOT / script).stat().st_mode & 0o111
    assert f"\n{target}: install" in (ROOT / "Makefile").read_text()
