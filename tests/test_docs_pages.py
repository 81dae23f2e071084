"""Pages match the code: options of the algorithms and of the configuration, and links with anchors as GitHub
makes them.
"""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from edgefl.base.codecs import CODECS
from edgefl.base.config import (
    AugmentationConfig,
    DataConfig,
    FederationConfig,
    FleetConfig,
    ModelConfig,
    PartitionConfig,
    PersonalizationConfig,
    PrivacyConfig,
    SamplesConfig,
    TrainingConfig,
)
from edgefl.base.tasks.config import TaskConfig
from edgefl.learning.algorithms import REGISTRY, make_algorithm

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
ALGORITHMS = sorted((DOCS / "algorithms").glob("*.md"))
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]*)\)")
TABLE = re.compile(r"^## Options of (.+?)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
ROW = re.compile(r"^\| `(\w+)` \| `(.*?)` \|", re.MULTILINE)
FACT = re.compile(r"^\| \[(`\[privacy\]`|late updates)\]\([^)]*\) \| (yes|no) \|", re.MULTILINE)


def make_slug(heading: str) -> str:
    """Return a heading's anchor.

    GitHub and mkdocs make the same anchors for headings of letters, digits, blanks and hyphens.
    """
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def list_anchors(page: Path) -> set[str]:
    return {
        make_slug(line.lstrip("#"))
        for line in FENCED.sub("", page.read_text()).splitlines()
        if re.match(r"#+ ", line)
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_anchors_resolve(page: Path) -> None:
    for link in LINK.findall(FENCED.sub("", page.read_text())):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", path):
            assert path.startswith("https://"), link
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}"
        if anchor:
            assert anchor in list_anchors(target), (
                f"{page.name} links to {link}, {target.name} has {', '.join(sorted(list_anchors(target)))}"
            )


def read_options() -> dict[str, dict[str, str]]:
    options: dict[str, dict[str, str]] = {}
    for page in ALGORITHMS:
        for names, body in TABLE.findall(page.read_text()):
            rows = dict(ROW.findall(body))
            if "all options of [`fedavg`]" in body:
                rows = {key: json.dumps(value) for key, value in REGISTRY["fedavg"].defaults.items()} | rows
            for name in re.findall(r"`([\w-]+)`", names):
                options[name] = rows
    return options


def test_every_algorithm_has_documented_options() -> None:
    assert read_options().keys() == REGISTRY.keys()


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_documented_options_equal_those_of_the_registry(name: str) -> None:
    documented = {key: json.loads(value) for key, value in read_options()[name].items()}
    assert documented == json.loads(json.dumps(dict(REGISTRY[name].defaults)))


@pytest.mark.parametrize("page", ALGORITHMS, ids=lambda page: page.stem)
def test_documented_privacy_and_late_updates_match_the_algorithms(page: Path) -> None:
    documented = {(kind, answer) for kind, answer in FACT.findall(page.read_text())}
    names = [
        name for names, _ in TABLE.findall(page.read_text()) for name in re.findall(r"`([\w-]+)`", names)
    ]
    made = [make_algorithm(name, None, {}) for name in names]
    answers = {True: "yes", False: "no"}
    assert documented == {("`[privacy]`", answers[algorithm.by_sums]) for algorithm in made} | {
        ("late updates", answers[algorithm.takes_late]) for algorithm in made
    }


def test_every_algorithm_is_in_the_overview_with_a_link() -> None:
    text = (DOCS / "algorithms.md").read_text()
    for page in ALGORITHMS:
        assert f"algorithms/{page.name}" in text, page.name
    for name in REGISTRY:
        assert f"`{name}`" in text


def test_pages_about_privacy_and_late_updates_name_every_algorithm() -> None:
    privacy = (DOCS / "how-to/keep-updates-private.md").read_text()
    rows = re.findall(
        r"^\| (.*?`.*?) \| (yes|no|only)\b.*\|", privacy.partition("## Check the algorithm")[2], re.M
    )
    rounds = (DOCS / "explanation/rounds.md").read_text()
    section = rounds.partition("### Which algorithms accept late updates")[2].partition("\n## ")[0]
    accepted, _, rejected = section.partition("rejected:")
    for name in REGISTRY:
        algorithm = make_algorithm(name, None, {})
        answers = {answer for names, answer in rows if f"`{name}`" in names}
        assert answers, f"keep-updates-private.md lacks {name}; add it to the table"
        assert ("yes" in answers) == algorithm.by_sums, f"{name} is in the wrong row: {answers}"
        side = accepted if algorithm.takes_late else rejected
        assert f"`{name}`" in side, f"explanation/rounds.md lacks {name} under late updates; add it"


CODEC_PAGES = (
    "protocol.md",
    "protocol-vectors.md",
    "how-to/rounds.md",
    "explanation/rounds.md",
    "glossary.md",
    "reference/configuration.md",
)


@pytest.mark.parametrize("page", CODEC_PAGES)
def test_pages_about_codecs_name_every_codec(page: str) -> None:
    text = (DOCS / page).read_text()
    stems = {codec.examples[0]: re.split(r"[(\[\\]", codec.pattern)[0] for codec in CODECS}
    missing = [example for example, stem in stems.items() if not re.search(rf"\b{stem}", text)]
    assert not missing, f"docs/{page} does not name the codec {missing}; add it, as CONTRIBUTING.md says"


CONFIG_TABLES = {
    "federation": FederationConfig,
    "model": ModelConfig,
    "personalization": PersonalizationConfig,
    "privacy": PrivacyConfig,
    "task": TaskConfig,
    "augmentation": AugmentationConfig,
    "training": TrainingConfig,
    "samples": SamplesConfig,
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
