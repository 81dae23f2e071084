"""Every error names the remedy, as far as a program can see it: what was expected, what to do, or what the
cause itself says.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgefl import errors

ROOT = Path(__file__).parents[1]
PACKAGES = ("edgefl", "devices", "mqtt_broker", "firmware_export")
KINDS = {name for name in dir(errors) if name.endswith("Error")} | {
    "UsageError",
    "BadParameter",
    "ClickException",
}
# A remedy stands after a semicolon, or says what is expected, to give, or to look at; or the message ends
# with the cause's own words.
REMEDY = re.compile(r"; |\bexpected\b|\b(give|pass)\b|\bits log\b|: \{\}$|:\n\{\}$")
# Said to nobody but a log: what a stranger's message was counted as. Or the remedy is in what is filled in.
EXEMPT = {
    "edgefl/monitor/view.py",
    "edgefl/monitor/message_lines.py",
    "edgefl/wire/url.py",
    "firmware_export/codegen/c_source.py",
    "edgefl/report/figures/__init__.py",
    "edgefl/report/figures/fedmix.py",
}


def text(node: ast.expr) -> str | None:
    """The message of a raise with {} for what is filled in, None for what is no literal."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left = text(node.left)
        right = text(node.right)
        return None if left is None or right is None else left + right
    return None


def messages() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                    name = ast.unparse(node.exc.func).rpartition(".")[2]
                    said = text(node.exc.args[0]) if name in KINDS else None
                    if said is not None:
                        yield f"{path.relative_to(ROOT)}:{node.lineno}", said


def test_each_error_names_the_remedy() -> None:
    found = list(messages())
    assert len(found) > 500
    assert [
        f"{place} {said}"
        for place, said in found
        if place.partition(":")[0] not in EXEMPT and not REMEDY.search(said)
    ] == []


@pytest.mark.parametrize(
    ("said", "good"),
    [
        ("x is 3, expected 4", True),
        ("no shard at {}; write it", True),
        ("cannot read {}: {}", True),
        ("it is wrong", False),
        ("{} failed", False),
    ],
)
def test_the_rule_by_hand(said: str, good: bool) -> None:
    assert bool(REMEDY.search(said)) == good
