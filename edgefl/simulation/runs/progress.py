"""Reports the progress of a run: its rounds and the personalization."""

import math
import time

from edgefl.base.config import FederationConfig
from edgefl.base.system import format as text_format
from edgefl.base.system.format import format_duration
from edgefl.base.system.progress import Progress
from edgefl.base.types import ServerState
from edgefl.base.verdict import name_measure, read_round_metric
from edgefl.simulation.simulate import Record


class RoundProgress:
    """Reports completed rounds and clients, with an estimate of the remaining time.

    Args:
        rounds: number of rounds of the federation.
        label: text before each line.
    """

    def __init__(self, rounds: int, progress: Progress, label: str = "") -> None:
        self._label = label
        self._progress = progress
        self._rounds = rounds
        self._seconds = 0.0
        self._began = 0.0

    def report_compilation(self, config: FederationConfig) -> None:
        """Report that the model is being compiled."""
        self._progress.update(
            f"{self._label}compiling {config.model.name} for {config.algorithm}; TensorFlow takes some "
            "seconds"
        )

    def begin(self, done: int) -> None:
        """Show the round with which the run begins or continues.

        Args:
            done: number of complete rounds.
        """
        self._progress.update_live(
            f"{self._label}round {min(done + 1, self._rounds)}/{self._rounds}", done, self._rounds
        )

    def __call__(self, state: ServerState, record: Record) -> None:
        """Report a completed round.

        Args:
            state: the server state after the round. Unused, because a `RoundCallback` receives it.
        """
        self._seconds = record.seconds if not self._seconds else 0.8 * self._seconds + 0.2 * record.seconds
        left = self._seconds * max(0, self._rounds - record.round)
        phase = "" if record.phase == "federate" else f" {record.phase}"
        spread = record.accuracy_mean, record.accuracy_p10, record.accuracy_p90
        measure = name_measure(read_round_metric({"updates": record.updates}))
        accuracy = (
            f"{text_format.format_spread(measure, *spread)}, " if math.isfinite(record.accuracy_mean) else ""
        )
        loss = f"loss {record.loss:.4f}, " if math.isfinite(record.loss) else ""
        details = f"{loss}{accuracy}{record.seconds:.1f} s; {format_duration(left)} left"
        position = (
            f"round {record.round}/{self._rounds}{phase}" if record.round <= self._rounds else record.phase
        )
        self._progress.update(f"{self._label}{position}: {details}", record.round, self._rounds)

    def report_client(self, done: int, clients: int) -> None:
        """Report a client that is personalized.

        Args:
            done: number of personalized clients, this one included.
        """
        now = time.monotonic()
        if done == 1:
            self._began = now
        left = (
            f"; {format_duration((now - self._began) / (done - 1) * (clients - done))} left"
            if done > 1
            else ""
        )
        self._progress.update(f"{self._label}personalize: {done} of {clients} clients{left}", done, clients)
