"""What mkdocs is told beside mkdocs.yml: the order of pages, links to code, and equations as MathML.

The menu is read from the folders, so a new page needs no line in any list. Equations are written as GitHub
shows them, `$...$` and ```math; the site has them as MathML, which browsers show without a script.
"""

import html
import re
from pathlib import Path, PurePosixPath
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

FIRST = ("index.md", "two-boards.md", "overview.md")
SECTIONS = (
    ("Home", "index.md"),
    ("Tutorials", "tutorial"),
    ("How to", "how-to"),
    ("Algorithms", "algorithms"),
    ("Specification", ("protocol.md", "protocol-vectors.md", "threat-model.md", "glossary.md")),
    ("Results", ("results", "results/lab-notes")),
    ("Explanation", ("explanation", "comparison.md", "decisions")),
    ("Reference", "reference"),
    ("Contributing", "contributing"),
)
BEFORE = {"algorithms": ("algorithms.md",)}
OUTSIDE = re.compile(
    r"\[([^\]]*)\]\((?:\.\./)+((?:edgefl|devices|mqtt_broker|firmware_export|tests)/[\w./-]*|[A-Z]+(?:\.md)?)(#[\w-]+)?\)"
)
EQUATION = re.compile(r'<(span|div) class="arithmatex">(?:\\\(|\\\[)(.*?)(?:\\\)|\\\])</\1>', re.DOTALL)


def _pages(root: Path, entry: str) -> list[str]:
    if entry.endswith(".md"):
        return [entry] if (root / entry).exists() else []
    found = sorted((root / entry).glob("*.md"), key=lambda path: (path.name not in FIRST, path.name))
    return [name for name in BEFORE.get(entry, ()) if (root / name).exists()] + [
        f"{entry}/{path.name}" for path in found
    ]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make the menu of what lies in the folders."""
    root = Path(config.docs_dir)
    menu: list[Any] = []
    for title, entries in SECTIONS:
        pages = [
            page
            for entry in ([entries] if isinstance(entries, str) else entries)
            for page in _pages(root, entry)
        ]
        if pages:
            menu.append({title: pages if len(pages) > 1 else pages[0]})
    config.nav = menu
    return config


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to a module to its reference; what else lies outside the site loses its link and keeps its
    name.
    """

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
    """Name the search for readers of the screen; the theme does not."""
    return output.replace(
        'data-md-component="search" role="dialog"',
        'data-md-component="search" role="dialog" aria-label="Search"',
    )
