"""Writes a federation.toml with a comment above each key: the description of the key in its docstring."""

import inspect
import re
import textwrap
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any

from edgefl.base.config.schema import (
    OTHER_TABLE_FIELDS,
    AugmentationConfig,
    DataConfig,
    FederationConfig,
    ModelConfig,
    PartitionConfig,
    PersonalizationConfig,
    PrivacyConfig,
    TrainingConfig,
)
from edgefl.base.config.toml import format_key, format_value
from edgefl.base.tasks.config import TaskConfig
from edgefl.base.tasks.samples import SamplesConfig

TABLE_CLASSES: Mapping[str, type] = {
    "federation": FederationConfig,
    "model": ModelConfig,
    "samples": SamplesConfig,
    "algorithm": FederationConfig,
    "broker": FederationConfig,
    "data": DataConfig,
    "partition": PartitionConfig,
    "privacy": PrivacyConfig,
    "personalization": PersonalizationConfig,
    "task": TaskConfig,
    "augmentation": AugmentationConfig,
    "training": TrainingConfig,
}
COMMENT_COLUMNS = 100
TEMPLATE_HEADER = """# A federation, written by `edgefl init`. A key behind # has its default value.
# To change the value, remove the #. An unknown key or a wrong value gives an error that names it."""


def read_key_docs(table: type) -> dict[str, str]:
    """Return the descriptions in the `Attributes:` sections of a dataclass and its bases, by key.

    A dataclass may replace a description of its base.
    """
    attributes = (
        inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")[2] for base in reversed(table.__mro__)
    )
    entries = (
        entry
        for text in attributes
        for entry in re.findall(r"^    (\w+): (.*(?:\n {5,}\S.*)*)", text, re.MULTILINE)
    )
    return {name: " ".join(text.split()) for name, text in entries}


def render_commented_toml(
    config: FederationConfig, chosen: Mapping[str, Collection[str]], options: Mapping[str, type]
) -> str:
    """Return the configuration as TOML with a comment above each key.

    Args:
        config: the configuration.
        chosen: by table, the keys to write as settings. All other keys are commented out with their defaults.
        options: by table, the dataclass of the options of the named model, algorithm, data set or partition.
    """
    tables = (_render_table(name, config, chosen.get(name, ()), options.get(name)) for name in TABLE_CLASSES)
    return "\n\n".join([TEMPLATE_HEADER, *map("\n".join, tables)]) + "\n"


def _render_table(
    name: str, config: FederationConfig, chosen: Collection[str], options: type | None
) -> Iterator[str]:
    docs = read_key_docs(TABLE_CLASSES[name])
    yield f"[{name}]"
    for key, value, text in _list_keys(name, config, docs):
        yield from _render_key(key, value, text, key in chosen)
    if options is not None:
        yield f"# Options of {_read_name(name, config)}, with their defaults."
        values = {**asdict(options()), **_read_options(name, config)}
        docs = read_key_docs(options)
        for key, value in values.items():
            yield from _render_key(key, value, docs.get(key, ""), key in _read_options(name, config))
    elif name in ("model", "data", "partition"):
        for key, value in _read_options(name, config).items():
            yield from _render_key(key, value, "", True)


def _render_key(key: str, value: Any, text: str, is_set: bool) -> Iterator[str]:
    yield from (f"# {line}" for line in textwrap.wrap(text, COMMENT_COLUMNS))
    yield ("" if is_set else "# ") + f"{format_key(key)} = {format_value(value)}"


def _list_keys(
    name: str, config: FederationConfig, docs: Mapping[str, str]
) -> Iterator[tuple[str, Any, str]]:
    if name in ("algorithm", "broker"):
        yield {"algorithm": "name", "broker": "url"}[name], getattr(config, name), docs[name]
        return
    record = config if name == "federation" else getattr(config, name)
    for field in fields(TABLE_CLASSES[name]):
        if field.name != "options" and not (name == "federation" and field.name in OTHER_TABLE_FIELDS):
            yield field.name, getattr(record, field.name), docs[field.name]


def _read_name(name: str, config: FederationConfig) -> str:
    return config.algorithm if name == "algorithm" else str(getattr(config, name).name)


def _read_options(name: str, config: FederationConfig) -> Mapping[str, Any]:
    options: Mapping[str, Any] = config.options if name == "algorithm" else getattr(config, name).options
    return options
