"""The figures of call paths, compared with values computed by hand, and for a real federation."""

import json

import pytest
from click.testing import CliRunner

from edgefl.base.errors import ConfigError
from mqtt_broker.broker.dev_broker import find_mosquitto
from tests.benchmarks.__main__ import benchmarks
from tests.benchmarks.structure.call_path import ROOT, CallGraph, CallPath, Function, compute_call_path
from tests.benchmarks.structure.room_sizes import measure_rooms
from tests.benchmarks.structure.statements import (
    count_by_package,
    count_statements,
    read_commit,
)

FIRST = """
def root(task, others):
    start(task)
    return sorted((pass_on(item) for item in others), key=lambda item: end(item))

def end(value):
    return value
"""
SECOND = """
def start(task):
    return len(task)

def pass_on(value):
    return end(value)
"""
PROGRAM = '''"""A docstring."""
import os

def f(x):
    """Another one."""
    if x:
        return os.name
    return ""
'''


def test_call_path_of_a_graph_matches_hand_computed_figures():
    a, b, c, d = (Function(file, name) for file, name in (("1", "a"), ("2", "b"), ("1", "c"), ("3", "d")))
    # The reader visits the files 1 2 3 2 1 1 1. d is read only once, and c is in the file of a
    calls = {a: [b, c], b: [d], c: [d]}
    assert compute_call_path(calls, a) == CallPath(functions=4, files=3, visits=5, returns=2)
    assert compute_call_path({}, a) == CallPath(functions=1, files=1, visits=1, returns=0)


def test_recorded_calls_match_a_hand_traced_run():
    names = {}
    for path, source in (("edgefl/first.py", FIRST), ("devices/second.py", SECOND)):
        exec(compile(source, str(ROOT / path), "exec"), names)
    graph = CallGraph()
    assert graph.observe(names["root"])("abc", [3, 1, 2, 3]) == [1, 2, 3, 3]
    first, second = "edgefl/first.py", "devices/second.py"
    assert {caller: list(callees) for caller, callees in graph.calls.items()} == {
        Function(first, "root"): [
            Function(second, "start"),
            Function(second, "pass_on"),
            Function(first, "end"),  # called by `sorted`
        ],
        Function(second, "pass_on"): [Function(first, "end")],
    }
    # first second first second first second first
    assert graph.compute_path() == CallPath(functions=4, files=2, visits=7, returns=5)


def test_statement_counts_match_hand_counts():
    assert count_statements(PROGRAM) == 5
    counts = count_by_package(
        [
            ("edgefl/protocol/server/a.py", PROGRAM),
            ("edgefl/b.py", PROGRAM),
            ("tests/c.py", PROGRAM),
            ("edgefl/link/d.py", PROGRAM),
        ]
    )
    assert counts["edgefl/protocol/server"] == {"files": 1, "statements": 5}
    assert counts["edgefl/protocol/transport"] == {"files": 1, "statements": 5}  # by its former name
    assert counts["edgefl"] == {"files": 3, "statements": 15}
    assert counts["devices"] == {"files": 0, "statements": 0}


def test_an_unknown_commit_is_an_error_with_a_remedy():
    with pytest.raises(ConfigError, match=r"no commit 'nothing'.*git log"):
        list(read_commit("nothing"))


def test_rooms_are_measured_under_their_former_names_too():
    source = '"""One.\n\nTwo.\n"""\nx = 1\n"""Of x."""\n\n\ndef f():\n    """Three."""\n    return x\n'
    files = [
        "edgefl/wire/a.py",
        "edgefl/protocol/wire/b.py",
        "devices/c.py",
        "edgefl/__init__.py",
        "tests/d.py",
    ]
    sizes = measure_rooms((path, source) for path in files)
    assert list(sizes) == ["devices", "edgefl", "edgefl/protocol", "all"]
    assert vars(sizes["edgefl/protocol"]) == {
        "files": 2,
        "lines": 22,
        "statements": 6,
        "docstring_lines": 12,
    }
    assert sizes["all"].files == 4
    shown = CliRunner().invoke(benchmarks, ["rooms", "--since", "HEAD"], catch_exceptions=False).output
    (line,) = (line for line in shown.splitlines() if line.startswith("edgefl/base"))
    assert len(line.split()) == 9


@pytest.mark.slow
@pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
def test_calls_benchmark_reports_consistent_figures(tmp_path):
    pytest.importorskip("tensorflow")
    out = tmp_path / "calls.json"
    ran = CliRunner().invoke(benchmarks, ["calls", "--out", str(out)], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    result = json.loads(out.read_text())
    machine, work, server, simulated = result["paths"].values()
    for path in (machine, work, server, simulated):
        assert path["visits"] == path["files"] + path["returns"]
        assert path["functions"] >= path["files"] > 1
    # The device uses the simulator's client runner and calls more functions
    assert work["functions"] > simulated["functions"] > 10
    assert machine["functions"] > 10 and server["functions"] > 10
    assert result["before"] is None
    counts = result["statements"]
    assert all(count["statements"] > count["files"] > 1 for count in counts.values())
