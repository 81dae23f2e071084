"""Every error names a remedy, as far as a program can check: the expected value, an action, or the message of
the cause.
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
# A remedy follows a semicolon, or names an expected value, an option to give, or a log to read. Or the error
# ends with the message of its cause.
REMEDY = re.compile(r"; |\bexpected\b|\b(give|pass)\b|\bits log\b|: \{\}$|:\n\{\}$")
# Errors that only a log shows, such as the kind of a foreign message, and errors whose remedy is in a
# filled-in value.
EXEMPT = {
    "edgefl/monitor/view.py",
    "edgefl/monitor/message_lines.py",
    "edgefl/wire/url.py",
    "firmware_export/codegen/c_source.py",
    "edgefl/report/figures/__init__.py",
    "edgefl/report/figures/fedmix.py",
}


def get_message(node: ast.expr) -> str | None:
    """Return the message of a raise with {} for filled-in values, or None if it is no literal."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left = get_message(node.left)
        right = get_message(node.right)
        return None if left is None or right is None else left + right
    return None


def list_messages() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                    name = ast.unparse(node.exc.func).rpartition(".")[2]
                    message = get_message(node.exc.args[0]) if name in KINDS else None
                    if message is not None:
                        yield f"{path.relative_to(ROOT)}:{node.lineno}", message


def test_every_error_names_a_remedy() -> None:
    messages = list(list_messages())
    assert len(messages) > 500
    assert [
        f"{location} {message}"
        for location, message in messages
        if location.partition(":")[0] not in EXEMPT and not REMEDY.search(message)
    ] == []


@pytest.mark.parametrize(
    ("message", "is_good"),
    [
        ("x is 3, expected 4", True),
        ("no shard at {}; write it", True),
        ("cannot read {}: {}", True),
        ("it is wrong", False),
        ("{} failed", False),
    ],
)
def test_remedy_pattern_matches_examples(message: str, is_good: bool) -> None:
    assert bool(REMEDY.search(message)) == is_good
