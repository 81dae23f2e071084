"""Checks sentences against the project's style: short, plain sentences without a list of phrases.

Run `python -m tests.lint.prose check [PATH ...]` to list what breaks a rule, and
`python -m tests.lint.prose sample --seed 22` to print random docstrings, error messages and pages.
"""

import ast
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

ROOT = Path(__file__).parents[2]
PACKAGES = ("edgefl", "devices", "mqtt_broker", "firmware_export")
MAX_WORDS = 32

# Each phrase has a plain replacement, which the report shows.
PHRASES = {
    r"\b(is|are|was|were|be|been) (told|said)\b": "name who reports what to whom",
    r"\b(it|as|what|they) told\b": "use `reported`, `sent` or `printed`",
    r"\bsaid (of|to be|by|to)\b": "use a noun: report, message, name",
    r"\bwho (asks|has|comes|speaks|reads|wants|does|is there)\b": "name the client, device or user",
    r"\bwhoever\b": "use `anyone who`, or name the role",
    r"\bso (long|many|much|often|far) at most\b": "name the limit: `Maximum ...`",
    r"\bbut for\b": "use `except for`",
    r"\bas it is\b": "use `unchanged`",
    r"\bone that (is|was|has|came|comes)\b": "repeat the noun",
    r"\bthat of (a|an|the|its|one|each)\b": "repeat the noun",
    r"\bthose of (a|an|the|its|one|each)\b": "repeat the noun",
    r"\b(go|goes|gone|went) on\b": "use `continue`",
    r"\banew\b": "use `again`",
    r"\bwithout one\b": "repeat the noun",
    r"\b(so|as) it is\b": "use a full sentence",
    r"\bwhat (comes|came|is there|is wrong|is known|is left|is told|is to)\b": "use a noun",
    r"\breturns? what\b": "return a noun: name it",
    r"\bnone (is|was|has|asked|of them is)\b": "use `no` and the noun",
    r"\b(is|are) there (before|already)\b": "use `exists`",
    r"\bgives? back\b": "use `return` or `release`",
    r"\b(in|on|of|by) (its|their|one's) own (way|right|turn)\b": "leave it out",
}
COMPILED = {re.compile(pattern, re.IGNORECASE): remedy for pattern, remedy in PHRASES.items()}


@dataclass(frozen=True)
class Text:
    """A passage of prose: its file, first line, kind (`docstring`, `help`, `error`, `page`) and words."""

    path: Path
    line: int
    kind: str
    text: str


@dataclass(frozen=True)
class Problem:
    """A broken rule: the passage, the words that break it and what to write instead."""

    text: Text
    phrase: str
    remedy: str

    def __str__(self) -> str:
        path = self.text.path.relative_to(ROOT) if self.text.path.is_relative_to(ROOT) else self.text.path
        return f"{path}:{self.text.line}: {self.text.kind} has {self.phrase!r}: {self.remedy}"


def read_module(path: Path) -> Iterator[Text]:
    """Yield the docstrings, help texts and error messages of a Python file."""
    module = ast.parse(path.read_text())
    for node in ast.walk(module):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if docstring := ast.get_docstring(node):
                yield Text(path=path, line=node.body[0].lineno, kind="docstring", text=docstring)
        elif isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg in ("help", "short_help", "epilog"):
                    yield Text(path=path, line=node.lineno, kind="help", text=_join_constants(keyword.value))
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            message = " ".join(_join_constants(argument) for argument in node.exc.args)
            if message.strip():
                yield Text(path=path, line=node.lineno, kind="error", text=message)


def read_page(path: Path) -> Iterator[Text]:
    """Yield the paragraphs and list items of a Markdown file; code blocks and tables are left out."""
    lines: list[str] = []
    start, in_code = 1, False
    for number, line in enumerate([*path.read_text().splitlines(), ""], 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
            continue
        is_prose = not (in_code or line.startswith(("    ", "|", "#", "<", "!", "["))) and line.strip()
        if lines and (not is_prose or re.match(r"\s*(-|\d+\.) ", line)):
            yield Text(path=path, line=start, kind="page", text=" ".join(lines))
            lines = []
        if is_prose:
            start = start if lines else number
            lines.append(line.strip())


def read_all(paths: list[Path] | None = None) -> Iterator[Text]:
    """Yield the prose of some files, or of all product code and documentation pages."""
    if paths is None:
        paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
        paths += [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
        paths += [path for path in (ROOT / "CONTRIBUTING.md",) if path.exists()]
    for path in paths:
        yield from read_page(path) if path.suffix == ".md" else read_module(path)


def check_text(text: Text) -> Iterator[Problem]:
    """Yield the rules that a passage breaks."""
    without_code = re.sub(
        r"\n[ \t]*\n(?: {4}.*(?:\n|$))+|^Source: (?:.+\n?)+", "\n\n", text.text, flags=re.MULTILINE
    )
    prose = re.sub(r"`[^`]*`|\]\([^)]*\)|https?://\S+|\"[^\"]*\"", "x", without_code)
    for pattern, remedy in COMPILED.items():
        for match in pattern.finditer(prose):
            yield Problem(text, match[0], remedy)
    if text.kind == "error":  # an error is "found; expected; remedy" in one sentence
        return
    if ";" in prose:
        yield Problem(text, prose[max(0, prose.index(";") - 30) :][:50].strip(), "use full stops")
    for sentence in re.split(r"(?<=[.!?:])\s+|\n\s*\n|\n\s*[-*] ", prose):
        if (count := len(sentence.split())) > MAX_WORDS:
            beginning = " ".join(sentence.split()[:6])
            yield Problem(text, f"{beginning} ...", f"{count} words, at most {MAX_WORDS} in a sentence")


def _join_constants(node: ast.expr) -> str:
    return "".join(
        part.value
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    )


@click.group()
def main() -> None:
    """Check or sample the project's prose."""


@main.command()
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path))
def check(paths: tuple[Path, ...]) -> None:
    """List the sentences that break a rule; exit with 1 when there are any.

    Example: python -m tests.lint.prose check docs/how-to/rounds.md
    """
    files = [file for path in paths for file in (sorted(path.rglob("*.*")) if path.is_dir() else [path])]
    chosen = [file for file in files if file.suffix in (".py", ".md")] if paths else None
    problems = [problem for text in read_all(chosen) for problem in check_text(text)]
    for problem in problems:
        click.echo(problem)
    if problems:
        raise SystemExit(1)


@main.command()
@click.option("--seed", default=22, show_default=True, help="Random seed.")
def sample(seed: int) -> None:
    """Print ten random docstrings, ten error messages and five pages.

    Example: python -m tests.lint.prose sample --seed 22
    """
    draw = random.Random(seed)
    texts = list(read_all())
    for kind, count in (("docstring", 10), ("error", 10)):
        for text in draw.sample([text for text in texts if text.kind == kind], count):
            click.echo(f"--- {text.path.relative_to(ROOT)}:{text.line} ({kind})\n{text.text}\n")
    pages = sorted({text.path for text in texts if text.kind == "page"})
    for path in draw.sample(pages, 5):
        click.echo(f"--- {path.relative_to(ROOT)} (page)\n{path.read_text()}\n")


if __name__ == "__main__":
    main()
