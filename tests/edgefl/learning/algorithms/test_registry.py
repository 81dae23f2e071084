"""The registry describes each algorithm."""

import ast
import json
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgefl.base.config.template import read_key_docs
from edgefl.base.errors import ConfigError
from edgefl.cli.commands.algorithms import algorithms
from edgefl.learning.algorithms import REGISTRY, complete_algorithm_options
from edgefl.learning.algorithms.registry import make_options

ROOT = Path(__file__).parents[4]


def test_only_registry_and_papers_import_papers():
    importers = {
        str(path.relative_to(ROOT))
        for package in ("edgefl", "devices", "mqtt_broker", "firmware_export")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        and any(
            f"{node.module}.{alias.name}".startswith("edgefl.learning.algorithms.papers")
            for alias in node.names
        )
    }
    papers = "edgefl/learning/algorithms/papers/"
    builds_on_fedavg = {"edgefl/learning/algorithms/partial.py", "edgefl/learning/algorithms/fine_tuning.py"}
    others = {name for name in importers if not name.startswith(papers)}
    assert others == {"edgefl/learning/algorithms/registry.py", *builds_on_fedavg}


def test_every_algorithm_is_listed_with_source_and_options():
    listing = CliRunner().invoke(algorithms, [], catch_exceptions=False).output
    for name, entry in REGISTRY.items():
        assert f"{name}\n  {entry.source}\n" in listing
    assert listing.count("clip_norm=0.0") == 1  # only fedavg lists it, the others refer to fedavg
    listed = json.loads(CliRunner().invoke(algorithms, ["--json"], catch_exceptions=False).output)
    assert {name: description["options"] for name, description in listed.items()} == {
        name: dict(entry.defaults) for name, entry in REGISTRY.items()
    }


def test_command_explains_options_of_one_algorithm():
    listing = CliRunner().invoke(algorithms, ["fedprox"], catch_exceptions=False).output
    assert listing.startswith("fedprox\n  Li et al.")
    for key, text in read_key_docs(REGISTRY["fedprox"].options).items():
        assert f"  {key} = " in listing
        assert text in " ".join(listing.split())
    listed = json.loads(CliRunner().invoke(algorithms, ["fedprox", "--json"], catch_exceptions=False).output)
    assert listed["fedprox"]["explained"] == read_key_docs(REGISTRY["fedprox"].options)


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_documentation_covers_exactly_the_options(name):
    assert read_key_docs(REGISTRY[name].options).keys() == REGISTRY[name].defaults.keys()


def test_options_are_a_frozen_record_with_defaults():
    options = make_options("fedprox", {"mu": 1, "epochs": 2})
    assert (options.mu, options.epochs, options.momentum) == (1, 2, 0.5)
    assert list(complete_algorithm_options("fedprox", {}))[-2:] == ["withhold", "mu"]
    with pytest.raises(FrozenInstanceError):
        options.mu = 2.0


def test_completing_options_rejects_invalid_values():
    with pytest.raises(ConfigError, match="mixing is 2"):
        complete_algorithm_options("clustered", {"mixing": 2})
    with pytest.raises(ConfigError, match="batch_size is 0, expected 1 or more"):
        complete_algorithm_options("fedavg", {"batch_size": 0})


def test_option_without_default_is_named_in_error(tmp_path, monkeypatch):
    code = """
from dataclasses import dataclass
from edgefl.learning.algorithms.entry import Entry

@dataclass(frozen=True)
class Options:
    rate: float

ENTRIES = {"own": Entry(Options, None, None, "a test")}
"""
    (tmp_path / "without_default.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="required positional argument: 'rate'"):
        complete_algorithm_options("without_default:own", {})


def test_factory_argument_is_not_an_option():
    with pytest.raises(ConfigError, match="pfl-fb has an unknown option 'kind'"):
        complete_algorithm_options("pfl-fb", {"kind": "mf"})


def test_removed_option_is_rejected_with_its_replacement():
    message = r"fedavg has an unknown option 'baseline_epochs'; remove it: \[personalization\]"
    with pytest.raises(ConfigError, match=message):
        make_options("fedavg", {"baseline_epochs": 50})
