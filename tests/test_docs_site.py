"""The documentation site: mkdocs gives no warnings, pages fetch nothing from other sites, and each equation
is MathML.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="the extra docs is not installed")
pytestmark = pytest.mark.slow  # `make docs` builds the site too

ROOT = Path(__file__).parents[1]
FETCHED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("link", "href"), ("source", "src")}


class FetchedAddresses(HTMLParser):
    """Collects the addresses that a browser fetches with the page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attributes if (tag, name) in FETCHED]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    out = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "-f",
        "docs/site/mkdocs.yml",
        "-d",
        str(out),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    yield out


def test_every_page_is_in_the_menu(site: Path) -> None:
    home = (site / "index.html").read_text()
    pages = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
    assert len(pages) > 20
    for page in pages:
        address = f"{page.parent}/" if page.stem == "index" else f"{page.with_suffix('')}/"
        assert f'href="{address.removeprefix("./")}"' in home or str(page) == "index.md", page


def test_pages_fetch_nothing_from_other_sites(site: Path) -> None:
    for page in site.rglob("*.html"):
        parser = FetchedAddresses()
        parser.feed(page.read_text())
        assert not [address for address in parser.addresses if re.match(r"(https?:)?//", address)], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", sheet.read_text()), sheet


def test_equations_become_mathml(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert not [page for page in pages if "arithmatex" in page.read_text()]
    assert "<math" in (site / "algorithms" / "fedavg" / "index.html").read_text()
