"""The result files of the papers' experiments: one small JSON file for each table, scale and seed."""

import errno
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from edgefl.base.errors import StateError
from edgefl.base.system.files import write_errors, write_state
from edgefl.lab.reproduce.experiment import Experiment, digest_stages, list_defaults, list_sources
from edgefl.simulation.runs.directory import read_json

RESULTS_DIRECTORY = Path("docs") / "results" / "runs"
RESULT_REMEDY = "remove it and run the experiment again"


@dataclass(frozen=True)
class SeedResult:
    """The figures of one seed.

    Attributes:
        experiment: paper and table.
        scale: the scale.
        seed: the seed.
        digest: digest of the settings, see `digest_stages`.
        rows: figures by row, None for a figure that is not finite.
        sources: where the figures come from by row, see `list_sources`.
        defaults: options of algorithms that the file leaves to their defaults, see `list_defaults`.
        core_hours: processor time of all clients and of the measurements at the end, in hours. Evaluations
            between the rounds and the quantization are not counted.
        date: the day on which it finished.
        machine: description of the machine that started the stages. Several are joined by semicolons.
        versions: versions of edgefl and its libraries on it, joined in the same way.
        curves: means after each evaluated round, see `extract_curves`.
    """

    experiment: str
    scale: str
    seed: int
    digest: str
    rows: Mapping[str, float | None]
    sources: Mapping[str, str]
    defaults: Mapping[str, Any]
    core_hours: float
    date: str
    machine: str
    versions: Mapping[str, str]
    curves: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)


def format_result_path(directory: Path, experiment: str, scale: str, seed: int) -> Path:
    """Return the path of a result file.

    Args:
        experiment: paper and table.
    """
    return directory / f"{experiment}.{scale}.{seed}.json"


def create_results_directory(directory: Path) -> None:
    """Create the directory of the results, unless it exists.

    Raises:
        StateError: it cannot be created, or no file can be created in it.
    """
    with write_errors(directory, "pass another --results, or another --out with --smoke or --model"):
        directory.mkdir(parents=True, exist_ok=True)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory))


def write_result(directory: Path, result: SeedResult) -> Path:
    """Write a result file and return its path.

    Args:
        directory: the directory of the results. A missing directory is created.

    Raises:
        StateError: the file cannot be written.
    """
    path = format_result_path(directory, result.experiment, result.scale, result.seed)
    write_state(path, (json.dumps(asdict(result), indent=1, allow_nan=False) + "\n").encode())
    return path


def read_result(directory: Path, experiment: Experiment, scale: str, seed: int) -> SeedResult | None:
    """Return the result of a seed. None if there is none, or if the experiment has changed since.

    The experiment has changed if a setting or the default of an algorithm's option differs, if it has further
    rows, or if a row reads another figure.

    Raises:
        StateError: the file is damaged.
    """
    path = format_result_path(directory, experiment.name, scale, seed)
    if not path.exists():
        return None
    values = read_json(path)
    names = {f.name for f in fields(SeedResult)}
    if missing := names - {"curves"} - values.keys():
        raise StateError(f"{path} lacks {', '.join(sorted(missing))}; {RESULT_REMEDY}")
    result = SeedResult(**{name: values[name] for name in names if name in values})
    _check_result(path, result)
    if (result.experiment, result.scale, result.seed) != (experiment.name, scale, seed):
        raise StateError(
            f"{path} is the result of {result.experiment} --{result.scale}, seed {result.seed}; rename or "
            "remove it"
        )
    sources = list_sources(experiment, scale, seed)
    defaults = list_defaults(experiment, scale, seed)
    is_current = (
        result.digest == digest_stages(experiment, scale, seed)
        and sources.keys() <= result.rows.keys()
        and sources.items() <= result.sources.items()
        and all(result.defaults.get(option, value) == value for option, value in defaults.items())
    )
    return result if is_current else None


def _check_result(path: Path, result: SeedResult) -> None:
    """Raise StateError if a part of a result has another type than it should have."""
    curves = result.curves.values() if isinstance(result.curves, Mapping) else [None]
    valid = {
        "rows": isinstance(result.rows, Mapping)
        and all(value is None or isinstance(value, int | float) for value in result.rows.values()),
        "core_hours": isinstance(result.core_hours, int | float),
        "curves": all(
            isinstance(curve, Mapping)
            and {"rounds", "accuracy_mixture"} <= curve.keys()
            and all(isinstance(values, list) for values in curve.values())
            and len({len(values) for values in curve.values()}) == 1
            for curve in curves
        ),
        "sources": isinstance(result.sources, Mapping),
        "defaults": isinstance(result.defaults, Mapping),
    }
    if damaged := [name for name, is_valid in valid.items() if not is_valid]:
        raise StateError(f"{path} has a damaged {damaged[0]!r}; {RESULT_REMEDY}")


def read_results(directory: Path, experiment: Experiment, scale: str) -> tuple[SeedResult, ...]:
    """Return the results of an experiment at one scale by seed.

    Raises:
        StateError: a file is damaged.
    """
    prefix = f"{experiment.name}.{scale}."
    parts = (
        path.name.removeprefix(prefix).removesuffix(".json") for path in directory.glob(f"{prefix}*.json")
    )
    seeds = sorted(int(part) for part in parts if part.isdecimal() and part == str(int(part)))
    results = (read_result(directory, experiment, scale, seed) for seed in seeds)
    return tuple(result for result in results if result is not None)


def iterate_missing(
    directory: Path, experiments: Sequence[Experiment]
) -> Iterator[tuple[Experiment, str, int]]:
    """Yield the planned experiments, scales and seeds that have no result.

    Args:
        experiments: the experiments in the order of the queue.

    Raises:
        StateError: a file is damaged.
    """
    for experiment in experiments:
        for scale in experiment.planned_scales:
            for seed in range(1, experiment.scales[scale].seeds + 1):
                if read_result(directory, experiment, scale, seed) is None:
                    yield experiment, scale, seed
