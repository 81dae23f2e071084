"""What several of the papers' figures need: options with their defaults, means over runs of one kind."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.algorithms import full_options
from edgefl.errors import ConfigError
from edgefl.report.folder import Folder, number, values

Vector = NDArray[np.float64]


def options(folder: Folder) -> dict[str, Any]:
    """Return the options of the folder's algorithm, with the defaults of those that it does not give."""
    given = folder.config.get("options")
    own = given if isinstance(given, dict) else {}
    try:
        return full_options(folder.algorithm, own)
    except ConfigError:  # of an older version, or an algorithm that is not installed here
        return own


def client_mean(folder: Folder, key: str) -> float:
    """Return the mean of a figure over clients, NaN where none has it."""
    found = np.array(values(folder.clients, key))
    known = found[np.isfinite(found)]
    return float(known.mean()) if len(known) else float("nan")


def needed(folder: Folder, key: str, remedy: str) -> Any:
    """Return an option of the partition; ConfigError where it has none."""
    value = folder.partition(key)
    if value is None:
        raise ConfigError(f"{folder.path} has no option {key} of its partition; {remedy}")
    return value


def mean_and_spread(groups: Sequence[Sequence[float]]) -> tuple[Vector, Vector]:
    """Return mean and standard deviation over the runs of each group, float64[groups].

    Numbers that are none are left out.
    """
    known = [np.array([value for value in group if np.isfinite(value)]) for group in groups]
    means = [float(group.mean()) if len(group) else np.nan for group in known]
    return np.array(means), np.array([float(group.std()) if len(group) else np.nan for group in known])


def sorted_values(found: Iterable[Any]) -> list[Any]:
    """Return the different values, smallest first."""
    return sorted(set(found))


def data_name(folder: Folder) -> str:
    """Return data set and model of a folder, as a panel's title."""
    data, model = (folder.config.get(key) for key in ("data", "model"))
    names = [str(part["name"]) for part in (data, model) if isinstance(part, dict) and part.get("name")]
    return " + ".join(names) or folder.name


__all__ = ["client_mean", "data_name", "mean_and_spread", "needed", "number", "options", "sorted_values"]
