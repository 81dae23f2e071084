"""What the registry tells of each algorithm."""

import ast
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgefl.algorithms import REGISTRY, full_options
from edgefl.cli.commands.algorithms import algorithms
from edgefl.errors import ConfigError

ROOT = Path(__file__).parents[3]


def test_papers_are_imported_by_papers_and_by_the_registry_alone():
    importers = {
        str(path.relative_to(ROOT))
        for room in ("edgefl", "devices", "mqtt_broker", "firmware_export")
        for path in (ROOT / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        and f"{node.module}.{node.names[0].name}".startswith("edgefl.algorithms.papers")
    }
    papers = "edgefl/algorithms/papers/"
    assert {name for name in importers if not name.startswith(papers)} == {"edgefl/algorithms/registry.py"}


def test_every_algorithm_is_listed_with_source_and_options():
    told = CliRunner().invoke(algorithms, [], catch_exceptions=False).output
    for name, entry in REGISTRY.items():
        assert f"{name}\n  {entry.source}\n" in told
    assert told.count("clip_norm=0.0") == 1  # fedavg's, which the others refer to
    listed = json.loads(CliRunner().invoke(algorithms, ["--json"], catch_exceptions=False).output)
    assert {name: each["options"] for name, each in listed.items()} == {
        name: dict(entry.defaults) for name, entry in REGISTRY.items()
    }


def test_what_makes_an_algorithm_is_no_option_of_it():
    with pytest.raises(ConfigError, match="pfl-fb has no option 'kind'"):
        full_options("pfl-fb", {"kind": "mf"})
