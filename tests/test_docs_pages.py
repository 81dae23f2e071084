"""What pages say of the code is so: options of the algorithms, links with their anchors as GitHub makes
them.
"""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from edgefl.algorithms import REGISTRY, make_algorithm
from edgefl.config import (
    DataConfig,
    FederationConfig,
    FleetConfig,
    ModelConfig,
    PartitionConfig,
    PersonalizationConfig,
    PrivacyConfig,
)

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
ALGORITHMS = sorted((DOCS / "algorithms").glob("*.md"))
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]*)\)")
TABLE = re.compile(r"^## Options of (.+?)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
ROW = re.compile(r"^\| `(\w+)` \| `(.*?)` \|", re.MULTILINE)
FACT = re.compile(r"^\| \[(`\[privacy\]`|late updates)\]\([^)]*\) \| (yes|no) \|", re.MULTILINE)


def slug(heading: str) -> str:
    """Return a heading's anchor: GitHub and mkdocs agree on headings of letters, digits, blanks and
    hyphens.
    """
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {
        slug(line.lstrip("#"))
        for line in FENCED.sub("", page.read_text()).splitlines()
        if re.match(r"#+ ", line)
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_anchors_resolve(page: Path) -> None:
    for link in LINK.findall(FENCED.sub("", page.read_text())):
        place, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", place):
            assert place.startswith("https://"), link
            continue
        target = (page.parent / place).resolve() if place else page
        assert target.exists(), f"{page.name} links to {link}"
        if anchor:
            assert anchor in anchors(target), (
                f"{page.name} links to {link}, {target.name} has {', '.join(sorted(anchors(target)))}"
            )


def options() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for page in ALGORITHMS:
        for names, body in TABLE.findall(page.read_text()):
            rows = dict(ROW.findall(body))
            if "all options of [`fedavg`]" in body:
                rows = {key: json.dumps(value) for key, value in REGISTRY["fedavg"].defaults.items()} | rows
            for name in re.findall(r"`([\w-]+)`", names):
                found[name] = rows
    return found


def test_every_algorithm_has_its_options() -> None:
    assert options().keys() == REGISTRY.keys()


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_options_are_those_of_the_factory(name: str) -> None:
    told = {key: json.loads(value) for key, value in options()[name].items()}
    assert told == json.loads(json.dumps(dict(REGISTRY[name].defaults)))


@pytest.mark.parametrize("page", ALGORITHMS, ids=lambda page: page.stem)
def test_privacy_and_late_updates_are_as_the_records_say(page: Path) -> None:
    told = {(kind, word) for kind, word in FACT.findall(page.read_text())}
    names = [
        name for names, _ in TABLE.findall(page.read_text()) for name in re.findall(r"`([\w-]+)`", names)
    ]
    made = [make_algorithm(name, None, {}) for name in names]
    word = {True: "yes", False: "no"}
    assert told == {("`[privacy]`", word[each.by_sums]) for each in made} | {
        ("late updates", word[each.takes_late]) for each in made
    }


def test_every_algorithm_is_in_the_overview_with_a_link() -> None:
    text = (DOCS / "algorithms.md").read_text()
    for page in ALGORITHMS:
        assert f"algorithms/{page.name}" in text, page.name
    for name in REGISTRY:
        assert f"`{name}`" in text


CONFIG_TABLES = {
    "federation": FederationConfig,
    "model": ModelConfig,
    "personalization": PersonalizationConfig,
    "privacy": PrivacyConfig,
    "data": DataConfig,
    "partition": PartitionConfig,
    "fleet": FleetConfig,
}


@pytest.mark.parametrize("table", CONFIG_TABLES)
def test_configuration_page_lists_every_key_with_its_default(table: str) -> None:
    text = (DOCS / "reference" / "configuration.md").read_text()
    section = re.search(rf"^##+ `\[{table}\]`\n(.*?)(?=^#|\Z)", text, re.DOTALL | re.MULTILINE)
    assert section is not None
    listed = {key: json.loads(value) for key, value in ROW.findall(section[1])}
    scalars = {
        field.name: field.default
        for field in dataclasses.fields(CONFIG_TABLES[table])
        if isinstance(field.default, str | int | float | tuple) and field.name not in ("broker", "algorithm")
    }
    assert listed == json.loads(json.dumps(scalars))
