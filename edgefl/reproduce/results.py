"""The result files of the papers' experiments: one small JSON file for each table, scale and seed."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from edgefl.errors import StateError
from edgefl.reproduce.experiment import Experiment, digest_stages
from edgefl.runs.directory import read_json
from edgefl.system.files import write_state

RESULTS_DIRECTORY = Path("docs") / "results" / "runs"


@dataclass(frozen=True)
class SeedResult:
    """The figures of one seed.

    Attributes:
        experiment: paper and table.
        scale: the scale.
        seed: the seed.
        digest: digest of the settings, see `digest_stages`.
        rows: figures by row.
        core_hours: processor time of all clients in hours.
        date: the day on which it finished.
        machine: description of the machine.
        versions: versions of edgefl and its libraries.
        curves: means after each evaluated round, see `extract_curves`.
    """

    experiment: str
    scale: str
    seed: int
    digest: str
    rows: Mapping[str, float]
    core_hours: float
    date: str
    machine: str
    versions: Mapping[str, str]
    curves: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)


def format_result_path(directory: Path, experiment: str, scale: str, seed: int) -> Path:
    """Return the path of a result file.

    Args:
        directory: the directory of the results.
        experiment: paper and table.
        scale: the scale.
        seed: the seed.
    """
    return directory / f"{experiment}.{scale}.{seed}.json"


def write_result(directory: Path, result: SeedResult) -> Path:
    """Write a result file and return its path.

    Args:
        directory: the directory of the results. A missing directory is created.
        result: the result.

    Raises:
        StateError: the file cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = format_result_path(directory, result.experiment, result.scale, result.seed)
    write_state(path, (json.dumps(asdict(result), indent=1, allow_nan=False) + "\n").encode())
    return path


def read_result(directory: Path, experiment: Experiment, scale: str, seed: int) -> SeedResult | None:
    """Return the result of a seed. None if there is none, or if the experiment has changed since.

    Args:
        directory: the directory of the results.
        experiment: the experiment.
        scale: the scale.
        seed: the seed.

    Raises:
        StateError: the file is damaged.
    """
    path = format_result_path(directory, experiment.name, scale, seed)
    if not path.exists():
        return None
    values = read_json(path)
    names = {f.name for f in fields(SeedResult)}
    if missing := names - {"curves"} - values.keys():
        raise StateError(
            f"{path} lacks {', '.join(sorted(missing))}, expected the result of an experiment; remove it and "
            "run the experiment again"
        )
    if values["digest"] != digest_stages(experiment, scale, seed):
        return None
    return SeedResult(**{name: values[name] for name in names if name in values})


def read_results(directory: Path, experiment: Experiment, scale: str) -> tuple[SeedResult, ...]:
    """Return the results of an experiment at one scale by seed.

    Args:
        directory: the directory of the results.
        experiment: the experiment.
        scale: the scale.

    Raises:
        StateError: a file is damaged.
    """
    prefix = f"{experiment.name}.{scale}."
    seeds = sorted(
        int(path.name.removeprefix(prefix).removesuffix(".json"))
        for path in directory.glob(f"{prefix}*.json")
    )
    results = (read_result(directory, experiment, scale, seed) for seed in seeds)
    return tuple(result for result in results if result is not None)


def iterate_missing(
    directory: Path, experiments: Sequence[Experiment]
) -> Iterator[tuple[Experiment, str, int]]:
    """Yield the planned experiments, scales and seeds that have no result.

    Args:
        directory: the directory of the results.
        experiments: the experiments in the order of the queue.

    Raises:
        StateError: a file is damaged.
    """
    for experiment in experiments:
        for scale in experiment.planned_scales:
            for seed in range(1, experiment.scales[scale].seeds + 1):
                if read_result(directory, experiment, scale, seed) is None:
                    yield experiment, scale, seed
