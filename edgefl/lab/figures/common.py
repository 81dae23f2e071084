"""Shared functions of the papers' figures: options with defaults, and means over runs."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import ConfigError
from edgefl.learning.algorithms import complete_algorithm_options
from edgefl.watch.report.folder import Folder, read_numbers, to_number

Vector = NDArray[np.float64]


def read_options(folder: Folder) -> dict[str, Any]:
    """Return all options of the folder's algorithm, with defaults for those that the folder lacks.

    An algorithm or an option that this installation does not know gets no defaults.
    """
    stored = folder.config.get("options")
    stored_options = stored if isinstance(stored, dict) else {}
    try:
        return complete_algorithm_options(folder.algorithm, stored_options)
    except ConfigError:  # options of an older version, or an algorithm that is not installed
        return stored_options


def average_clients(folder: Folder, key: str) -> float:
    """Return the mean of a figure over the clients that have it, or NaN if no client has it.

    Args:
        key: name of the figure, such as `accuracy_mixture`.
    """
    figures = np.array(read_numbers(folder.clients, key))
    finite_figures = figures[np.isfinite(figures)]
    return float(finite_figures.mean()) if len(finite_figures) else float("nan")


def require_partition_option(folder: Folder, key: str, remedy: str) -> Any:
    """Return an option of the partition.

    Args:
        key: name of the option.
        remedy: end of the error message, which says what to do.

    Raises:
        ConfigError: the partition has no such option.
    """
    value = folder.find_partition_option(key)
    if value is None:
        raise ConfigError(f"{folder.path} has no partition option {key}; {remedy}")
    return value


def average_groups(groups: Sequence[Sequence[float]]) -> tuple[Vector, Vector]:
    """Return mean and standard deviation over the runs of each group, both shape (groups,), float64.

    NaN and infinite values are ignored. A group without values has NaN.
    """
    finite_groups = [np.array([value for value in group if np.isfinite(value)]) for group in groups]
    means = [float(group.mean()) if len(group) else np.nan for group in finite_groups]
    return np.array(means), np.array(
        [float(group.std()) if len(group) else np.nan for group in finite_groups]
    )


def sort_unique(items: Iterable[Any]) -> list[Any]:
    """Return the distinct values in ascending order."""
    return sorted(set(items))


def describe_data(folder: Folder) -> str:
    """Return the data set and the model of a folder, as the title of a panel."""
    data, model = (folder.config.get(key) for key in ("data", "model"))
    names = [str(part["name"]) for part in (data, model) if isinstance(part, dict) and part.get("name")]
    return " + ".join(names) or folder.name


__all__ = [
    "average_clients",
    "average_groups",
    "describe_data",
    "read_options",
    "require_partition_option",
    "sort_unique",
    "to_number",
]
