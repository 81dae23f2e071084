"""Hooks of mkdocs: the menu, links to code, and equations as MathML.

The menu is read from the folders, so a new page needs no entry here. Only a page of facts in docs/reference
is listed in FACTS. Pages write equations as GitHub shows them, `$...$` and ```math. The site shows them as
MathML, which browsers render without a script.
"""

import html
import re
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

FIRST = ("index.md", "two-boards.md", "overview.md", "architecture.md")
# Pages of docs/reference that state facts; the others there are generated from docstrings.
FACTS = tuple(
    f"reference/{name}.md"
    for name in (
        "commands",
        "configuration",
        "data-formats",
        "supported-models",
        "metrics",
        "boards",
        "brokers",
        "directories",
    )
)
# A page, a folder, or a titled group of such entries.
Entry: TypeAlias = "str | tuple[str, tuple[Entry, ...]]"
SECTIONS: tuple[tuple[str, tuple[Entry, ...]], ...] = (
    ("Home", ("index.md",)),
    ("Tutorials", ("tutorial",)),
    ("How-to guides", ("how-to",)),
    (
        "Reference",
        (
            *FACTS[:-1],
            "protocol.md",
            "protocol-vectors.md",
            FACTS[-1],
            ("Algorithms", ("algorithms.md", "algorithms")),
            "glossary.md",
            ("Python functions", ("reference",)),
        ),
    ),
    ("Explanation", ("explanation", "comparison.md", "threat-model.md", ("Decisions", ("decisions",)))),
    ("Results", ("results", ("Papers", ("papers",)), ("Lab notes", ("results/lab-notes",)))),
    ("Contributing", ("contributing",)),
)
OUTSIDE = re.compile(
    r"\[([^\]]*)\]\((?:\.\./)+((?:edgefl|devices|mqtt_broker|firmware_export|tests)/[\w./-]*|[A-Z]+(?:\.md)?)(#[\w-]+)?\)"
)
EQUATION = re.compile(r'<(span|div) class="arithmatex">(?:\\\(|\\\[)(.*?)(?:\\\)|\\\])</\1>', re.DOTALL)


def _pages(root: Path, entry: Entry) -> list[Any]:
    """Return the menu entries of a page, of a folder or of a titled group."""
    if isinstance(entry, tuple):
        title, entries = entry
        return [{title: [page for each in entries for page in _pages(root, each)]}]
    if entry.endswith(".md"):
        return [entry] if (root / entry).exists() else []
    paths = sorted((root / entry).glob("*.md"), key=lambda path: (path.name not in FIRST, path.name))
    return [page for path in paths if (page := f"{entry}/{path.name}") not in FACTS]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Build the menu from the folders."""
    root = Path(config.docs_dir)
    menu: list[Any] = []
    for title, entries in SECTIONS:
        if pages := [page for entry in entries for page in _pages(root, entry)]:
            menu.append({title: pages if len(pages) > 1 else pages[0]})
    config.nav = menu
    return config


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to a module at its reference. Other links out of the site become plain text."""

    def rewritten(found: re.Match[str]) -> str:
        text = found[1]
        path = PurePosixPath(found[2])
        return (
            f"[{text}][{'.'.join(path.with_suffix('').parts)}]"
            if path.suffix == ".py" and path.parts[0] != "tests"
            else text
        )

    return OUTSIDE.sub(rewritten, markdown)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn equations into MathML."""

    def mathml(found: re.Match[str]) -> str:
        return convert(html.unescape(found[2]).strip(), display="block" if found[1] == "div" else "inline")

    return EQUATION.sub(mathml, content)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Label the search for screen readers, which the theme does not."""
    return output.replace(
        'data-md-component="search" role="dialog"',
        'data-md-component="search" role="dialog" aria-label="Search"',
    )
