"""Every documented example is valid: Python blocks run in sequence, configurations parse, and commands have
the documented options.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from edgefl.base.config import parse_config
from edgefl.cli import main as cli
from tests.benchmarks.__main__ import COMMAND, benchmarks

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
INDENTED = re.compile(r"^(?: {4}.*\n?)+", re.MULTILINE)
PATH = re.compile(r"`((?:edgefl(?!/v[12]/?)|devices|mqtt_broker|firmware_export|tests|docs)/[\w./-]*)`")


def list_blocks(page: Path, language: str) -> list[str]:
    return [body for name, body in FENCE.findall(page.read_text()) if name == language]


def list_commands() -> list[str]:
    fenced = [body for page in PAGES for body in list_blocks(page, "sh")]
    indented = [
        body
        for page in PAGES
        for body in INDENTED.findall(
            re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        )
    ]
    text = "\n".join([*fenced, *indented, cli.WELCOME_TEXT])
    lines = text.replace("\\\n", " ").splitlines()
    return sorted(
        {line.strip().partition("  ")[0] for line in lines if line.strip().startswith(("edgefl ", COMMAND))}
    )


@pytest.mark.parametrize("line", list_commands())
def test_documented_options_exist(line: str) -> None:
    command: click.Command = benchmarks if line.startswith(COMMAND) else cli.cli
    first_of_pipeline = line.partition(" | ")[0]
    arguments = shlex.split(first_of_pipeline.removeprefix(COMMAND).removeprefix("edgefl"), comments=True)
    context = click.Context(command)
    while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        _, subcommand, arguments = command.resolve_command(context, arguments)
        assert subcommand is not None, line
        command = subcommand
        context = click.Context(subcommand, parent=context)
    if isinstance(command, click.Group) and not command.invoke_without_command:
        assert arguments, f"{line} names a group only"
    options = {option for parameter in command.params for option in parameter.opts} | {
        "--help",
        "-h",
        "--version",
    }
    assert {argument for argument in arguments if re.match(r"--?[a-z]", argument)} <= options


@pytest.mark.parametrize(
    "page", [page for page in PAGES if list_blocks(page, "toml")], ids=lambda page: page.name
)
def test_documented_configurations_parse(page: Path) -> None:
    for text in list_blocks(page, "toml"):
        parse_config(text)


# Their blocks train for more than five seconds.
SLOW = {"bring-your-model.md", "fedmix.md", "follow-one-round.md", "pfl-moe.md", "simulate-from-python.md"}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow) if page.name in SLOW else page
        for page in PAGES
        if list_blocks(page, "python")
    ],
    ids=lambda page: page.name,
)
@pytest.mark.timeout(900)
def test_documented_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, object] = {}
    for number, text in enumerate(list_blocks(page, "python"), 1):
        if saved := re.match(r"# (\w+\.py)\n", text):
            Path(saved[1]).write_text(text)  # the page asks to save this block as a file
        exec(compile(text, f"{page.name} block {number}", "exec"), names)


@pytest.mark.slow
def test_example_script_compares_two_algorithms(tmp_path: Path) -> None:
    script = ROOT / "docs" / "examples" / "compare_algorithms.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert re.fullmatch(r"fedavg: 0\.\d{3}\npfl-mfe: 0\.\d{3}\n", ran.stdout)
    assert (tmp_path / "algorithms.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_example_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((ROOT / "docs" / "examples" / "federation.ipynb").read_text())
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
            exec("".join(cell["source"]), names)
    assert len(names["history"].rounds) == len(names["personal"].rounds) == 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_paths_exist(page: Path) -> None:
    for link in LINK.findall(page.read_text()):
        assert (page.parent / link).exists(), f"{page.name} links to {link}"
    for path in PATH.findall(page.read_text()):
        assert (ROOT / path).exists(), f"{page.name} speaks of {path}"
