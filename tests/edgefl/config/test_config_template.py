"""The file that `edgefl init` writes: it loads, and the docstring of its table explains each key."""

import re
from dataclasses import dataclass, fields

import pytest

from edgefl.config import (
    DataConfig,
    FederationConfig,
    ModelConfig,
    PartitionConfig,
    PrivacyConfig,
    parse_config,
)
from edgefl.config.schema import OTHER_TABLE_FIELDS
from edgefl.config.template import TABLE_CLASSES, read_key_docs, render_commented_toml


@dataclass(frozen=True)
class Options:
    """Options of something.

    Attributes:
        epochs: how many passes
    """

    epochs: int = 5
    withhold: str = ""


TABLES_OF_CONFIGURATION = (FederationConfig, ModelConfig, DataConfig, PartitionConfig, PrivacyConfig)


def test_docs_of_bases_come_first_and_may_be_replaced() -> None:
    class More(Options):
        """More of them.

        Attributes:
            epochs: how many passes, more or less
            rate: how fast
        """

    assert read_key_docs(More) == {"epochs": "how many passes, more or less", "rate": "how fast"}


def test_docs_by_hand() -> None:
    class Table:
        """What it is.

        Attributes:
            one: the first: of two
            two: the second, which
                continues
        """

    assert read_key_docs(Table) == {"one": "the first: of two", "two": "the second, which continues"}


@pytest.mark.parametrize("table", TABLES_OF_CONFIGURATION, ids=lambda table: table.__name__)
def test_each_key_is_explained_and_nothing_else(table: type) -> None:
    keys = {field.name for field in fields(table)} - {
        "options",
        "data",
        "model",
        "partition",
        "privacy",
        "personalization",
    }
    assert set(read_key_docs(table)) - {"options"} == keys


def test_nothing_chosen_is_the_defaults() -> None:
    assert parse_config(render_commented_toml(FederationConfig(), {}, {})) == FederationConfig()


def uncommented(text: str) -> str:
    return re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE)


def test_every_key_is_there_and_taking_the_sharp_away_sets_it() -> None:
    text = render_commented_toml(FederationConfig(), {}, {"algorithm": Options})
    whole = parse_config(uncommented(text))
    assert whole == FederationConfig(options={"epochs": 5, "withhold": ""})
    for name, table in TABLE_CLASSES.items():
        part = uncommented(text).partition(f"[{name}]\n")[2].partition("\n[")[0]
        skip = OTHER_TABLE_FIELDS if table is FederationConfig else ("options",)
        wanted = {"algorithm": {"name"}, "broker": {"url"}}.get(
            name, {field.name for field in fields(table)} - set(skip)
        )
        assert set(re.findall(r"^(\w+) = ", part, re.MULTILINE)) >= wanted
        # A comment is above each key, or above the list of options.
        assert not re.search(r"\n\n\w+ = ", part)


def test_what_is_chosen_is_written_out() -> None:
    config = FederationConfig(
        name="kitchen", rounds=3, options={"epochs": 2}, model=ModelConfig("softmax", (4,), 3)
    )
    text = render_commented_toml(
        config,
        {"federation": {"name", "rounds"}, "model": {"name", "input_shape", "num_classes"}},
        {"algorithm": Options},
    )
    assert parse_config(text) == config
    assert "# number of training rounds.\nrounds = 3\n" in text
    assert "# how many passes\nepochs = 2\n# withhold = " in text
    assert max(map(len, text.splitlines())) <= 102
