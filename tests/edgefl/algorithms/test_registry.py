"""What the registry tells of each algorithm."""

import json

import pytest
from click.testing import CliRunner

from edgefl.algorithms import REGISTRY, full_options
from edgefl.cli.commands.algorithms import algorithms
from edgefl.errors import ConfigError


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
