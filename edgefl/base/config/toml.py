"""Writes a configuration as the text of a federation.toml that `parse_config` reads back."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from edgefl.base.config.schema import (
    OTHER_TABLE_FIELDS,
    DataConfig,
    FederationConfig,
    ModelConfig,
    PartitionConfig,
)
from edgefl.base.errors import ConfigError
from edgefl.base.tasks.config import CLASSIFICATION_TASK


def to_toml(config: FederationConfig) -> str:
    """Return a configuration as TOML, with all defaults.

    Raises:
        ConfigError: TOML cannot represent the value of an option.
    """
    federation = {
        field.name: getattr(config, field.name)
        for field in fields(config)
        if field.name not in OTHER_TABLE_FIELDS
    }
    tables: dict[str, Mapping[str, Any]] = {
        "federation": federation,
        "model": _merge_options(config.model),
        "data": _merge_options(config.data),
        "partition": _merge_options(config.partition),
        "algorithm": {"name": config.algorithm, **config.options},
        "broker": {"url": config.broker},
        "privacy": asdict(config.privacy),
        "personalization": asdict(config.personalization),
        **({} if config.task == CLASSIFICATION_TASK else {"task": asdict(config.task)}),
        **({"augmentation": asdict(config.augmentation)} if config.augmentation.is_on else {}),
        **({"training": asdict(config.training)} if config.training.micro_batch else {}),
        **({"samples": asdict(config.samples)} if config.samples.as_plan_entry() else {}),
        **({"fleet": asdict(config.fleet)} if config.fleet else {}),
    }
    texts = [
        f"[{name}]\n" + "".join(f"{format_key(key)} = {format_value(value)}\n" for key, value in rows.items())
        for name, rows in tables.items()
    ]
    return "\n".join(texts)


def _merge_options(table: ModelConfig | DataConfig | PartitionConfig) -> dict[str, Any]:
    return {
        field.name: getattr(table, field.name) for field in fields(table) if field.name != "options"
    } | dict(table.options)


def _format_text(value: str) -> str:
    # TOML forbids one character that JSON does not escape.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def format_key(key: str) -> str:
    """Format a key as TOML."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _format_text(key)


def format_value(value: Any) -> str:
    """Format a value as TOML.

    Raises:
        ConfigError: TOML cannot represent the value.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _format_text(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(format_value, value))}]"
    if isinstance(value, Mapping):
        return (
            "{" + ", ".join(f"{format_key(key)} = {format_value(item)}" for key, item in value.items()) + "}"
        )
    raise ConfigError(
        f"{value!r} is a {type(value).__name__}, expected text, a number, true or false, a list or a table"
    )
