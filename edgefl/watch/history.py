"""Simulates a federation from Python and returns its figures as arrays: `edgefl.simulate`.

A notebook or a script gets the federation that `edgefl simulate` plays, with the same bits.
"""

import logging
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.config import FederationConfig, load_config, with_simulated_clients
from edgefl.base.errors import ConfigError
from edgefl.base.system.files import write_errors
from edgefl.base.system.progress import Progress
from edgefl.base.verdict import MEASURES, find_measure
from edgefl.learning.privacy.accountant import limit_to_budget
from edgefl.protocol.server.config_check import check_config
from edgefl.simulation.engines.processes import choose_local_engine
from edgefl.simulation.runs.directory import RunDirectory
from edgefl.simulation.runs.pipeline import open_dataset_with_progress, open_partitioned_dataset, play_run
from edgefl.simulation.runs.progress import RoundProgress
from edgefl.simulation.runs.summary import summarize_run, write_results
from edgefl.simulation.simulate import check_simulated
from edgefl.watch.report.curves import (
    AccuracyBand,
    draw_band,
    draw_lines,
    read_reported_accuracy,
    summarize_measured_accuracy,
)
from edgefl.watch.report.drawing import draw_figure, save_figure

LOGGER = logging.getLogger(__name__)
Vector = NDArray[np.float64]
COMMAND = "edgefl.simulate"
"""What the directory of a run names as its command."""


@dataclass(frozen=True, eq=False, repr=False)
class History:
    """The figures of a simulated federation. Position i of each array is round i + 1.

    Attributes:
        rounds: number of each round, shape (n,), int64.
        loss: median training loss over clients, shape (n,). NaN if fewer than half of them report one.
        accuracy: mean over clients of the accuracy on their validation samples before they train in the
            round, shape (n,). It is R2 for another task than classification. NaN if no client reports it.
        accuracy_p10: 10th percentile over clients, shape (n,).
        accuracy_p90: 90th percentile over clients, shape (n,).
        test_accuracy: mean over clients of the accuracy on their test samples after the round, shape (n,).
            It is R2 in a regression and AUC in anomaly detection. NaN in a round that was not evaluated.
        seconds: duration of each round in seconds, shape (n,).
        bytes_up: bytes that the clients would send over MQTT, shape (n,), int64.
        bytes_down: bytes that the clients would receive over MQTT, shape (n,), int64.
        clients: figures of each client after the last round by client id, on its test samples, such as
            `accuracy_mixture`. See `edgefl.learning.client.personalization.choose_personal_model`.
            `expected_mixture` and `global_mixture` are on the test samples of the data set, see
            `edgefl.simulation.runs.summary.FIGURE_DESCRIPTIONS`.
        config: the configuration that was simulated.
        measure: what `accuracy` is: `accuracy`, or `R2`.
        test_measure: what `test_accuracy` is: `accuracy`, `R2` or `AUC`.
    """

    rounds: NDArray[np.int64]
    loss: Vector
    accuracy: Vector
    accuracy_p10: Vector
    accuracy_p90: Vector
    test_accuracy: Vector
    seconds: Vector
    bytes_up: NDArray[np.int64]
    bytes_down: NDArray[np.int64]
    clients: Mapping[str, Mapping[str, float]]
    config: FederationConfig
    measure: str
    test_measure: str

    def __repr__(self) -> str:
        """Return the algorithm, the number of rounds, and the mean figure of the personal models."""
        key = f"{find_measure(self.clients.values())}_mixture"
        values = [figures[key] for figures in self.clients.values() if key in figures]
        mean = f", {key} {np.nanmean(values):.3f}" if values and np.isfinite(values).any() else ""
        return (
            f"History({self.config.algorithm}, {len(self.rounds)} rounds, {len(self.clients)} clients{mean})"
        )

    def to_dataframe(self) -> Any:
        """Return a pandas DataFrame with a row for each round, and the arrays as columns.

        Raises:
            ModuleNotFoundError: pandas is not installed. It comes with the extra `plots`.
        """
        import pandas

        columns = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        return pandas.DataFrame({"round": columns.pop("rounds"), **columns}).set_index("round")

    def to_client_dataframe(self) -> Any:
        """Return a pandas DataFrame with a row for each client, and its last figures as columns.

        Raises:
            ModuleNotFoundError: pandas is not installed. It comes with the extra `plots`.
        """
        import pandas

        return pandas.DataFrame.from_dict(self.clients, orient="index").rename_axis("client")

    def plot(self, path: str | Path | None = None, *, beside: Mapping[str, "History"] | None = None) -> Any:
        """Draw training loss and accuracy over the rounds, of this federation or of several.

        The accuracy is `test_accuracy` if all of them have it, and `accuracy` otherwise. The 10th to 90th
        percentile is drawn for a single federation.

        Args:
            path: picture to write. Its suffix selects the format: svg, png or pdf. None writes none.
            beside: further federations by their names in the legend. This one has the name of its algorithm.

        Returns:
            The matplotlib figure, which a notebook shows.

        Raises:
            ConfigError: the suffix is not one of these formats.
            ModuleNotFoundError: matplotlib is not installed. It comes with the extra `plots`.
            StateError: the picture cannot be written.
        """
        histories = {self.config.algorithm: self, **(beside or {})}
        if len(histories) <= len(beside or {}):
            raise ConfigError(
                f"beside has the name {self.config.algorithm!r} of this federation, expected other names"
            )
        is_evaluated = np.isfinite(self.test_accuracy)

        def draw_all(figure: Any) -> None:
            losses, accuracies = figure.subplots(1, 2)
            draw_lines(
                losses,
                {name: (history.rounds, history.loss) for name, history in histories.items()},
                "round",
                "training loss",
            )
            is_tested = all(np.isfinite(history.test_accuracy).any() for history in histories.values())
            lines = {}
            for name, history in histories.items():
                values = history.test_accuracy if is_tested else history.accuracy
                is_measured = np.isfinite(values)
                lines[name] = (history.rounds[is_measured], 100 * values[is_measured])
            measure = self.test_measure if is_tested else self.measure
            samples = "test samples" if is_tested else "validation samples"
            draw_lines(accuracies, lines, "round", f"{measure} on {samples}, per cent")

        def draw(figure: Any) -> None:
            losses, accuracies = figure.subplots(1, 2)
            draw_lines(losses, {self.config.algorithm: (self.rounds, self.loss)}, "round", "training loss")
            band = AccuracyBand(
                rounds=self.rounds,
                mean=self.accuracy,
                p10=self.accuracy_p10,
                p90=self.accuracy_p90,
                measure=self.measure,
            )
            draw_band(accuracies, self.rounds, band, "round")
            if not np.isfinite(self.loss).any():
                _write_missing(losses)
            if not np.isfinite(self.accuracy).any() and not is_evaluated.any():
                _write_missing(accuracies)
            if is_evaluated.any():
                accuracies.plot(
                    self.rounds[is_evaluated],
                    100 * self.test_accuracy[is_evaluated],
                    marker="o",
                    color="black",
                    label=f"{self.test_measure} on test samples, mean",
                )
                accuracies.legend(loc="lower right")

        figure = draw_figure(draw_all if beside else draw, 9, 3.6)
        if path is not None:
            with write_errors(Path(path), "pass another path"):
                save_figure(figure, Path(path))
        return figure


def _write_missing(axes: Any) -> None:
    axes.text(0.5, 0.5, "not reported in the rounds", ha="center", transform=axes.transAxes)


def simulate(
    config: FederationConfig | str | Path,
    *,
    processes: int = 1,
    compare: bool = False,
    evaluate_every: int = 0,
    out: str | Path | None = None,
    show_progress: bool = True,
) -> History:
    """Simulate a federation on this machine and return its figures.

    TensorFlow compiles the plan in another process. So a script calls this below
    `if __name__ == "__main__":`, and a notebook in any cell.

    Args:
        config: the configuration, or the path of a federation.toml.
        processes: number of processes that run clients.
        compare: whether each client also makes a local and a fine-tuned model after the last round, and ships
            a blend, as devices do. Each trains as many epochs as the rounds, or until it has learned its
            samples, in the last round and after it. False makes the personal model of the algorithm only.
        evaluate_every: number of rounds after which each client is measured on its test samples. 0 measures
            them only at the end.
        out: directory of the run, such as for `edgefl report` and `edgefl compare`. A run in it continues.
            None keeps no files.
        show_progress: whether progress goes to stderr. Warnings always do.

    Raises:
        ConfigError: the configuration cannot be simulated, or has the table `[fleet]`.
        DataError: the data set cannot be read or divided, or a client cannot train.
        FederationDivergedError: training diverged.
        EdgeflError: any other error of `edgefl simulate`.
    """
    if not isinstance(config, FederationConfig | str | Path):
        raise ConfigError(
            f"config is a {type(config).__name__}, expected a FederationConfig or the path of a "
            "federation.toml"
        )
    for name, value in (("processes", processes), ("evaluate_every", evaluate_every)):
        if type(value) is not int:
            raise ConfigError(f"{name} is {value!r}, expected a whole number")
    settings = config if isinstance(config, FederationConfig) else load_config(Path(config))
    if settings.fleet is not None:
        raise ConfigError(
            "the configuration has the table [fleet], expected none: a History has no virtual time; remove "
            "the table, or run `edgefl simulate`"
        )
    if evaluate_every < 0:
        raise ConfigError(f"evaluate_every is {evaluate_every}, expected 0 or a number of rounds")
    check_simulated(settings)
    open_engine = choose_local_engine(processes)
    if not compare:
        mixture_only = replace(settings.personalization, select=False, baseline=False, ship="auto")
        settings = replace(settings, personalization=mixture_only)
    for warning in check_config(with_simulated_clients(settings), settings.partition.num_clients):
        LOGGER.warning(warning)
    settings = limit_to_budget(settings)
    with ExitStack() as stack:
        root = Path(out or stack.enter_context(tempfile.TemporaryDirectory(prefix="edgefl-run-")))
        rounds: RoundProgress | None = None
        if show_progress:
            progress = stack.enter_context(Progress())
            rounds = RoundProgress(settings.rounds, progress)
            partitioned = stack.enter_context(open_dataset_with_progress(settings, progress))
        else:
            partitioned = stack.enter_context(open_partitioned_dataset(settings))
        run = RunDirectory(root, settings, COMMAND, resume=True)
        simulation = play_run(
            run,
            settings,
            partitioned,
            open_engine=open_engine,
            progress=rounds,
            evaluate_every=evaluate_every,
        )
        records = run.read_records()
        summary = summarize_run(settings, simulation, records, partitioned, run.read_measured_values())
        write_results(run, simulation, {**summary, **run.read_origin()})
    clients = {
        row["id"]: {
            name: float("nan") if value is None else float(value)
            for name, value in row.items()
            if value is None or isinstance(value, int | float)
        }
        for row in sorted(summary["clients"], key=lambda row: str(row["id"]))
    }
    return make_history(settings, records, clients)


def make_history(
    config: FederationConfig,
    records: Sequence[Mapping[str, Any]],
    clients: Mapping[str, Mapping[str, float]],
) -> History:
    """Return the records of a run as arrays.

    Args:
        config: the configuration of the run.
        records: the record of each round, see `RunDirectory.read_records`.
        clients: figures of each client after the last round, by client id.
    """
    rounds = np.array([record["round"] for record in records], np.int64)
    reported = read_reported_accuracy(records)
    measure = find_measure(clients.values())
    measured = summarize_measured_accuracy(records, f"{measure}_mixture")

    def collect(name: str) -> Vector:
        values = (record.get(name) for record in records)
        return np.array([np.nan if value is None else value for value in values], np.float64)

    def spread(measured_rounds: NDArray[np.int64], values: Vector) -> Vector:
        full = np.full(len(rounds), np.nan)
        full[np.searchsorted(rounds, measured_rounds)] = values
        return full

    return History(
        rounds=rounds,
        loss=collect("loss"),
        accuracy=spread(reported.rounds, reported.mean),
        accuracy_p10=spread(reported.rounds, reported.p10),
        accuracy_p90=spread(reported.rounds, reported.p90),
        test_accuracy=spread(measured.rounds, measured.mean),
        seconds=collect("seconds"),
        bytes_up=collect("bytes_up").astype(np.int64),
        bytes_down=collect("bytes_down").astype(np.int64),
        clients=clients,
        config=config,
        measure=reported.measure,
        test_measure=MEASURES[measure],
    )
