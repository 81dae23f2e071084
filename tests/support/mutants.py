"""Measure what the tests protect: plant small faults in a copy of the product, and count the unnoticed ones.

    python -m tests.support.mutants plant COPY --seed 1 --count 100
    cd COPY && make install
    EDGEFL_MUTANT_HITS=$PWD/hits.txt make test-all ARGS="--junitxml=outcomes.xml -o junit_family=xunit1"
    python -m tests.support.mutants judge COPY --seconds 300

A mutant is one changed expression or one removed call inside a function. All mutants sleep in one copy of the
checkout. A mutant wakes where the environment variable EDGEFL_MUTANT is its number, also in the processes of
a test. While the mutants sleep, they record which test executes them. `judge` then runs each mutant
against the tests that reach it, until the first failure.
"""

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.support.rooms import PACKAGES, ROOT

PROBE = '''"""Mutants of this copy: which one is awake, and which tests reach them."""

import os

_AWAKE = int(os.environ.get("EDGEFL_MUTANT", "-1"))
_HITS = os.environ.get("EDGEFL_MUTANT_HITS")
_seen = set()


def awake(number):
    if _HITS:
        hit = f"{number} {os.environ.get('PYTEST_CURRENT_TEST', '')}\\n"
        if hit not in _seen:
            _seen.add(hit)
            with open(_HITS, "a") as file:
                file.write(hit)
    return number == _AWAKE
'''
WAKE = '__import__("edgefl.mutant_probe", fromlist=["awake"]).awake({number})'
PAIRS: tuple[tuple[type, type], ...] = (
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.In, ast.NotIn),
    (ast.Is, ast.IsNot),
)
PAIRS += ((ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.Div))
SWAPS: dict[type, type] = {a: b for pair in PAIRS for a, b in (pair, pair[::-1])}
REPORT = ("-o", "junit_family=xunit1", "-o", "junit_duration_report=total")
SWAPS |= {ast.FloorDiv: ast.Div, ast.Mod: ast.Mult, ast.Pow: ast.Mult}


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One fault: at `file`, from `begin` to `end` (characters), `before` becomes `after`."""

    number: int
    file: str
    line: int
    begin: int
    end: int
    before: str
    after: str


def list_mutants(file: str, source: str) -> Iterator[Mutant]:
    """Yield every possible mutant of a module, without a number."""
    starts = [0]
    for text in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(text))
    lines = source.splitlines()

    def position(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    for node in _walk_functions(ast.parse(source)):
        for after in _mutate(node):
            begin = position(node.lineno, node.col_offset)
            end = position(node.end_lineno or node.lineno, node.end_col_offset or 0)
            yield Mutant(
                number=-1,
                file=file,
                line=node.lineno,
                begin=begin,
                end=end,
                before=source[begin:end],
                after=after,
            )


def _walk_functions(node: ast.AST, inside: bool = False) -> Iterator[ast.expr | ast.Expr]:
    """Yield expressions and statements of calls in functions, except annotations, decorators and patterns."""
    if isinstance(node, ast.JoinedStr | ast.pattern):
        return
    if inside and isinstance(node, ast.expr | ast.Expr):
        yield node
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "args") and not isinstance(node, ast.Call):
            continue
        deeper = inside or (field == "body" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _walk_functions(child, deeper)


def _mutate(node: ast.expr | ast.Expr) -> Iterator[str]:
    """Yield the source of what a node can become."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            yield ast.unparse(ast.Compare(node.left, [SWAPS[type(op)]()], node.comparators))
        case ast.BoolOp(op=op):
            yield ast.unparse(ast.BoolOp(SWAPS[type(op)](), node.values))
        case ast.BinOp(op=op) if type(op) in SWAPS and not _is_text(node.left) and not _is_text(node.right):
            yield ast.unparse(ast.BinOp(node.left, SWAPS[type(op)](), node.right))
        case ast.UnaryOp(op=ast.Not()):
            yield ast.unparse(node.operand)
        case ast.UnaryOp(op=ast.USub()):
            yield ast.unparse(node.operand)
        case ast.Constant(value=bool(value)):
            yield repr(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield repr(value + 1)
        case ast.IfExp():
            yield ast.unparse(ast.IfExp(node.test, node.orelse, node.body))
        case ast.Expr(value=ast.Call()):
            yield "None"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def choose_mutants(root: Path, seed: int, count: int) -> list[Mutant]:
    """Draw mutants of all packages, at most one for each position."""
    every = [
        mutant
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
        if "templates" not in path.parts
        for mutant in list_mutants(str(path.relative_to(root)), path.read_text())
    ]
    chosen: list[Mutant] = []
    for mutant in random.Random(seed).sample(every, len(every)):
        if len(chosen) == count:
            break
        if not any(m.file == mutant.file and m.begin < mutant.end and mutant.begin < m.end for m in chosen):
            chosen.append(Mutant(**{**asdict(mutant), "number": len(chosen)}))
    return chosen


def plant(root: Path, mutants: list[Mutant]) -> None:
    """Write the mutants, asleep, into the sources below a directory. No line moves."""
    (root / "edgefl" / "mutant_probe.py").write_text(PROBE)
    for file in {mutant.file for mutant in mutants}:
        source = (root / file).read_text()
        for m in sorted((m for m in mutants if m.file == file), key=lambda m: -m.begin):
            awake = WAKE.format(number=m.number)
            source = f"{source[: m.begin]}(({m.after}) if {awake} else ({m.before})){source[m.end :]}"
        ast.parse(source)
        (root / file).write_text(source)
    (root / "mutants.json").write_text(json.dumps([asdict(m) for m in mutants], indent=1))


def read_outcomes(report: Path) -> dict[str, tuple[str, float]]:
    """Return outcome ("passed", "failed" or "skipped") and seconds of each test of a report of pytest."""
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        file = case.get("file", "")
        classes = (
            case.get("classname", "").removeprefix(file.removesuffix(".py").replace("/", ".")).split(".")[1:]
        )
        outcomes["::".join((file, *classes, case.get("name", "")))] = outcome, float(case.get("time", "0"))
    return outcomes


def read_reach(copy: Path) -> tuple[dict[int, list[str]], dict[str, float]]:
    """Return the tests that reach each mutant, fastest first, and the seconds of each test.

    A fixture that a test sets up may serve later tests of its file, so all tests of the file count for it.
    Tests that fail with all mutants asleep can find none and are left out.
    """
    outcomes = read_outcomes(copy / "outcomes.xml")
    seconds = {test: time_s for test, (_, time_s) in outcomes.items()}
    passed = {test for test, (outcome, _) in outcomes.items() if outcome == "passed"}
    by_file: dict[str, list[str]] = {}
    for test in seconds:
        by_file.setdefault(test.partition("::")[0], []).append(test)
    reach: dict[int, set[str]] = {}
    for line in set((copy / "hits.txt").read_text().splitlines()):
        number, _, rest = line.partition(" ")
        test, _, phase = rest.rpartition(" ")
        shared = by_file.get(test.partition("::")[0], []) if phase == "(setup)" else [test]
        reach.setdefault(int(number), set()).update(passed.intersection(shared))
    ordered = {number: sorted(tests, key=lambda test: seconds[test]) for number, tests in reach.items()}
    return ordered, seconds


def judge(copy: Path, mutant: Mutant, tests: list[str]) -> str:
    """Run tests with one mutant awake, until the first failure. Return the failing test, or ""."""
    folder = copy / "judged" / str(mutant.number)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "tests.txt").write_text("\n".join(tests))
    # A cache of its own, because a plan of another mutant would hide this one. The runtimes are not ours.
    runtimes = copy / ".pytest_cache" / "d" / "runtimes"
    runtimes.mkdir(parents=True, exist_ok=True)
    (folder / "cache" / "d").mkdir(parents=True)
    (folder / "cache" / "d" / "runtimes").symlink_to(runtimes)
    report = folder / "outcomes.xml"
    command = [str(copy / ".venv" / "bin" / "python"), "-m", "pytest", "-x", "-q", "--timeout=120", *REPORT]
    command += [f"--junitxml={report}", "-o", f"cache_dir={folder / 'cache'}", f"@{folder / 'tests.txt'}"]
    environment = {**os.environ, "EDGEFL_MUTANT": str(mutant.number)}
    with (folder / "output.txt").open("w") as output:
        done = subprocess.run(command, cwd=copy, env=environment, stdout=output, stderr=output, check=False)
    if not report.exists():
        return f"exit code {done.returncode}"
    failed = [test for test, (outcome, _) in read_outcomes(report).items() if outcome == "failed"]
    return failed[0] if failed else "" if done.returncode in (0, 5) else f"exit code {done.returncode}"


def limit(tests: list[str], seconds: dict[str, float], budget_s: float) -> list[str]:
    """Keep the fastest tests that fit into a time, at least one."""
    kept: list[str] = []
    total = 0.0
    for test in tests:
        total += seconds[test]
        if total > budget_s and kept:
            break
        kept.append(test)
    return kept


def judge_all(copy: Path, budget_s: float, workers: int, first: set[str], numbers: set[int]) -> None:
    """Judge mutants of a copy, and write `judged.json` and a line for each mutant.

    Args:
        copy: the directory of the copy.
        budget_s: longest run of tests for one mutant, in seconds.
        workers: number of mutants that are judged at the same time.
        first: ids of the tests that run before the others.
        numbers: numbers of the mutants to judge. Empty judges all.
    """
    mutants = [Mutant(**row) for row in json.loads((copy / "mutants.json").read_text())]
    mutants = [mutant for mutant in mutants if not numbers or mutant.number in numbers]
    reach, seconds = read_reach(copy)

    def run(mutant: Mutant) -> dict[str, object]:
        begun = time.monotonic()
        reaching = reach.get(mutant.number, [])
        mirror = f"tests/{mutant.file.rpartition('/')[0]}"
        # The most likely finders run first.
        reaching.sort(key=lambda test: (test not in first, not test.startswith(mirror)))
        tests = limit(reaching, seconds, budget_s)
        finder = judge(copy, mutant, tests) if tests else ""
        took = time.monotonic() - begun
        print(
            f"{mutant.number} {mutant.file}:{mutant.line} "
            f"{len(tests)}/{len(reaching)} tests, {took:.0f} s: {finder or 'survives'}",
            flush=True,
        )
        return {**asdict(mutant), "reached_by": len(reaching), "run": len(tests), "found_by": finder}

    with ThreadPoolExecutor(workers) as pool:
        rows = list(pool.map(run, mutants))
    (copy / "judged.json").write_text(json.dumps(rows, indent=1))
    survivors = [row for row in rows if not row["found_by"]]
    unreached = sum(not row["reached_by"] for row in survivors)
    print(f"{len(rows)} mutants, {len(survivors)} survive, of which no test reaches {unreached}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    planting = commands.add_parser("plant", help="copy the checkout and plant mutants")
    planting.add_argument("copy", type=Path)
    planting.add_argument("--seed", type=int, default=1)
    planting.add_argument("--count", type=int, default=100)
    judging = commands.add_parser("judge", help="run each mutant against the tests that reach it")
    judging.add_argument("copy", type=Path)
    judging.add_argument("--seconds", type=float, default=300.0, help="longest run of tests for one mutant")
    judging.add_argument("--workers", type=int, default=2)
    judging.add_argument("--first", type=Path, help="file with the ids of the tests to run first, one a line")
    judging.add_argument("--number", type=int, action="append", default=[], help="judge this mutant only")
    arguments = parser.parse_args()
    if arguments.command == "plant":
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(arguments.copy)], check=True)
        plant(arguments.copy, choose_mutants(arguments.copy, arguments.seed, arguments.count))
    else:
        first = set(arguments.first.read_text().splitlines()) if arguments.first else set()
        judge_all(
            arguments.copy.resolve(), arguments.seconds, arguments.workers, first, set(arguments.number)
        )


if __name__ == "__main__":
    main()
