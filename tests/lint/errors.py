"""Rule about errors: each names a remedy, as far as a program can check."""

import ast
import re
from collections.abc import Iterator

from edgefl.base import errors
from tests.lint.source import Problem, Source

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
    "edgefl/watch/monitor/view.py",
    "edgefl/watch/monitor/message_lines.py",
    "edgefl/protocol/wire/url.py",
    "firmware_export/codegen/c_source.py",
    "edgefl/lab/figures/__init__.py",
    "edgefl/lab/figures/fedmix.py",
}


def check_remedies(source: Source) -> Iterator[Problem]:
    """Yield errors that name no expected value, no action and no cause."""
    if source.path in EXEMPT:
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            name = ast.unparse(node.exc.func).rpartition(".")[2]
            message = _get_message(node.exc.args[0]) if name in KINDS else None
            if message is not None and not REMEDY.search(message):
                yield (
                    node.lineno,
                    f"the error {message!r} names no remedy; say what is expected or what to do",
                )


def _get_message(node: ast.expr) -> str | None:
    """Return the message of a raise with {} for filled-in values, or None if it is no literal."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left = _get_message(node.left)
        right = _get_message(node.right)
        return None if left is None or right is None else left + right
    return None
