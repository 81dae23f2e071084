"""The file that `edgefl init` writes can be loaded, and the docstring of each table explains its keys."""

import re
from dataclasses import dataclass, fields

import pytest

from edgefl.base.config import (
    AugmentationConfig,
    DataConfig,
    FederationConfig,
    ModelConfig,
    PartitionConfig,
    PrivacyConfig,
    TrainingConfig,
    parse_config,
)
from edgefl.base.config.schema import OTHER_TABLE_FIELDS
from edgefl.base.config.template import TABLE_CLASSES, read_key_docs, render_commented_toml
from edgefl.base.tasks.config import TaskConfig


@dataclass(frozen=True)
class Options:
    """Options of something.

    Attributes:
        epochs: how many passes
    """

    epochs: int = 5
    withhold: str = ""


CONFIG_TABLES = (
    FederationConfig,
    ModelConfig,
    DataConfig,
    PartitionConfig,
    PrivacyConfig,
    TaskConfig,
    AugmentationConfig,
    TrainingConfig,
)


def test_key_docs_of_a_subclass_override_its_base() -> None:
    class More(Options):
        """More of them.

        Attributes:
            epochs: how many passes, more or less
            rate: how fast
        """

    assert read_key_docs(More) == {"epochs": "how many passes, more or less", "rate": "how fast"}


def test_key_docs_are_read_from_the_docstring() -> None:
    class Table:
        """What it is.

        Attributes:
            one: the first: of two
            two: the second, which
                continues
        """

    assert read_key_docs(Table) == {"one": "the first: of two", "two": "the second, which continues"}


@pytest.mark.parametrize("table", CONFIG_TABLES, ids=lambda table: table.__name__)
def test_docstring_explains_exactly_the_keys_of_its_table(table: type) -> None:
    keys = {field.name for field in fields(table)} - {
        "options",
        "data",
        "model",
        "partition",
        "privacy",
        "personalization",
        "task",
        "augmentation",
        "training",
    }
    assert set(read_key_docs(table)) - {"options"} == keys


def test_template_without_choices_gives_the_defaults() -> None:
    assert parse_config(render_commented_toml(FederationConfig(), {}, {})) == FederationConfig()


def uncomment(text: str) -> str:
    return re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE)


def test_every_key_is_listed_and_takes_effect_when_uncommented() -> None:
    text = render_commented_toml(FederationConfig(), {}, {"algorithm": Options})
    config = parse_config(uncomment(text))
    assert config == FederationConfig(options={"epochs": 5, "withhold": ""})
    for name, table in TABLE_CLASSES.items():
        table_text = uncomment(text).partition(f"[{name}]\n")[2].partition("\n[")[0]
        skip = OTHER_TABLE_FIELDS if table is FederationConfig else ("options",)
        expected_keys = {"algorithm": {"name"}, "broker": {"url"}}.get(
            name, {field.name for field in fields(table)} - set(skip)
        )
        assert set(re.findall(r"^(\w+) = ", table_text, re.MULTILINE)) >= expected_keys
        # A comment is above each key, or above the list of options.
        assert not re.search(r"\n\n\w+ = ", table_text)


def test_chosen_values_are_not_commented_out() -> None:
    config = FederationConfig(
        name="kitchen",
        rounds=3,
        options={"epochs": 2},
        model=ModelConfig(name="softmax", input_shape=(4,), num_classes=3),
    )
    text = render_commented_toml(
        config,
        {"federation": {"name", "rounds"}, "model": {"name", "input_shape", "num_classes"}},
        {"algorithm": Options},
    )
    assert parse_config(text) == config
    assert "# number of training rounds, at most.\nrounds = 3\n" in text
    assert "# how many passes\nepochs = 2\n# withhold = " in text
    assert max(map(len, text.splitlines())) <= 102
