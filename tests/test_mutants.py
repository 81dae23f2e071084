"""Mutants change one expression or remove one call, sleep in a copy, and record which tests reach them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import mutants

SOURCE = '''"""Module."""
LIMIT = 1 + 2


def check(x: int = 3, *more: "a < b") -> int:
    """Return 1."""
    print(f"{x + 1}")
    return -x if x < LIMIT and "é" in more else x * 2 + len("a" + "b")
'''


def test_every_mutable_expression_of_a_function_is_listed():
    listed = [(m.line, m.before, m.after) for m in mutants.list_mutants("edgefl/a.py", SOURCE)]
    assert sorted(listed) == sorted(
        [
            (7, 'print(f"{x + 1}")', "None"),
            (8, '"é" in more', "'é' not in more"),
            (
                8,
                '-x if x < LIMIT and "é" in more else x * 2 + len("a" + "b")',
                "x * 2 + len('a' + 'b') if x < LIMIT and 'é' in more else -x",
            ),
            (8, "-x", "x"),
            (8, "2", "3"),
            (8, "x * 2", "x / 2"),
            (8, 'x * 2 + len("a" + "b")', "x * 2 - len('a' + 'b')"),
            (8, "x < LIMIT", "x <= LIMIT"),
            (8, 'x < LIMIT and "é" in more', "x < LIMIT or 'é' in more"),
        ]
    )


@pytest.fixture
def copy(tmp_path):
    for package in ("edgefl", "devices", "mqtt_broker", "firmware_export"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "edgefl" / "a.py").write_text(
        "def compute(x):\n    return (\n        x\n        + 1\n    )\n"
    )
    return tmp_path


def compute(copy: Path, **environment: str) -> str:
    command = [sys.executable, "-c", "from edgefl.a import compute; print(compute(5))"]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_planted_mutant_sleeps_until_it_is_named_and_records_the_test(copy):
    chosen = mutants.choose_mutants(copy, 1, 9)
    assert len(chosen) == 1, "at most one mutant for each position"
    (mutant,) = chosen
    before = (copy / "edgefl" / "a.py").read_text()
    mutants.plant(copy, chosen)
    assert (copy / "edgefl" / "a.py").read_text().count("\n") == before.count("\n")
    assert compute(copy) == "6"
    expected = {"x - 1": "4", "2": "7"}[mutant.after]
    assert compute(copy, EDGEFL_MUTANT="0") == expected
    hits = {
        "EDGEFL_MUTANT_HITS": str(copy / "hits.txt"),
        "PYTEST_CURRENT_TEST": "tests/test_a.py::test_b (call)",
    }
    assert compute(copy, **hits) == "6"
    assert (copy / "hits.txt").read_text() == "0 tests/test_a.py::test_b (call)\n"


def test_mutants_are_drawn_again_with_the_same_seed(copy):
    (copy / "devices" / "b.py").write_text("def list_sums(x):\n    return [\n" + "x + x,\n" * 50 + "    ]\n")
    first, second, other = (mutants.choose_mutants(copy, seed, 5) for seed in (1, 1, 2))
    assert first == second
    assert first != other
    assert [mutant.number for mutant in first] == [0, 1, 2, 3, 4]


def test_tests_of_a_shared_fixture_and_no_failed_tests_reach_a_mutant(tmp_path):
    """`a::one` sets up a fixture that executes mutant 7. `a::two` shares the file, `a::bad` fails."""
    rows = [
        ("a::one", 2.0, "passed"),
        ("a::two", 1.0, "passed"),
        ("a::bad", 1.0, "failed"),
        ("b::x", 3.0, "passed"),
    ]
    cases = "".join(
        f'<testcase file="{test[0]}" name="{test[3:]}" time="{seconds}">'
        f"{'<failure/>' if outcome == 'failed' else ''}</testcase>"
        for test, seconds, outcome in rows
    )
    (tmp_path / "outcomes.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    (tmp_path / "hits.txt").write_text("7 a::one (setup)\n8 b::x (call)\n8 a::one (call)\n9 \n")
    reach, seconds = mutants.read_reach(tmp_path)
    assert reach == {7: ["a::two", "a::one"], 8: ["a::one", "b::x"], 9: []}
    assert seconds["b::x"] == 3.0


def test_longest_run_keeps_the_fastest_tests_and_at_least_one():
    seconds = {f"t{i:02}": float(i) for i in range(20)}
    assert mutants.limit(list(seconds), seconds, 10**6) == list(seconds)
    assert mutants.limit(list(seconds), seconds, 66.0) == list(seconds)[:12]
    assert mutants.limit(["t19"], seconds, 1.0) == ["t19"]


def test_outcomes_have_the_ids_of_the_tests(tmp_path):
    (tmp_path / "test_a.py").write_text(
        "import pytest\n\n\n@pytest.mark.parametrize('x', ['a b', '[c]'])\n"
        "def test_one(x):\n    assert x != '[c]'\n\n\n"
        "class TestTwo:\n    def test_three(self):\n        pytest.skip('no reason')\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-c",
        "/dev/null",
        "--rootdir",
        tmp_path,
        *mutants.REPORT,
    ]
    command += [f"--junitxml={tmp_path / 'outcomes.xml'}", "-p", "no:cacheprovider", tmp_path]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    outcomes = mutants.read_outcomes(tmp_path / "outcomes.xml")
    assert {test: outcome for test, (outcome, _) in outcomes.items()} == {
        "test_a.py::test_one[a b]": "passed",
        "test_a.py::test_one[[c]]": "failed",
        "test_a.py::TestTwo::test_three": "skipped",
    }
