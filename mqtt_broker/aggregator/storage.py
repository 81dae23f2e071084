"""Stores what a round server asks for in the aggregator's directory, and reads it back after a restart.

The journal knows rounds and announcements, the spool holds the updates of the open round, and one file the
server state after the last aggregated round.
"""

import math
from collections.abc import Iterator
from pathlib import Path

from edgefl.algorithms import DONE, PERSONALIZE, Algorithm
from edgefl.config import FederationConfig
from edgefl.errors import StateError
from edgefl.plan.spec import PlanSpec
from edgefl.server.events import (
    Action,
    CloseRound,
    CommitUpdates,
    ForgetRound,
    OpenedRound,
    OpenRound,
    SaveMaskedSum,
    SaveState,
    StoreUpdate,
)
from edgefl.server.round_server import MEASURED_ROUNDS, Resume, round_times
from edgefl.server.tasks import Expected
from edgefl.storage.aggregator_directory import REMEDY, AggregatorFiles
from edgefl.system.files import SECRET, write_state
from edgefl.types import ServerState, Update
from edgefl.wire.tensors import specs_of
from mqtt_broker.aggregator.journal import Journal
from mqtt_broker.aggregator.results import load_state
from mqtt_broker.aggregator.saving import Saving
from mqtt_broker.aggregator.spool import Spool


class Storage:
    """The storage of one federation.

    Args:
        directory: the aggregator's directory.
        journal: its journal, open.
        session: the session of the federation.
    """

    def __init__(self, directory: Path, journal: Journal, session: str) -> None:
        self._directory = directory
        self._journal = journal
        self._masked_sum = AggregatorFiles(directory).masked_sum
        self._spool = Spool(AggregatorFiles(directory).spool(session=session))
        self._saving = Saving(journal.sync)

    def apply(self, action: Action) -> None:
        """Store what an action says; other actions are ignored.

        Raises:
            StateError: the disk does not take it.
        """
        match action:
            case OpenRound(opened):
                self._journal.open_round(opened)
            case StoreUpdate(begin, blob, expected, codec, deltas):
                self._saving.wait()  # It clears the updates of the round before
                self._spool.put(begin, expected, codec, blob, deltas)
            case CommitUpdates(opened, begins):
                self._spool.sync()
                self._journal.accept(opened, begins)
            case SaveMaskedSum(content) if content:
                write_state(self._masked_sum, content, SECRET, REMEDY)
            case SaveMaskedSum():
                self._masked_sum.unlink(missing_ok=True)
            case ForgetRound(opened):
                self._journal.forget_round(opened)
            case CloseRound(opened, dropped=dropped, loss=loss):
                self._saving.wait()
                self._journal.close_round(opened, loss if math.isfinite(loss) else None, dropped)
            case SaveState(state):
                # Killed before, the round is aggregated again, to the same bits
                self._saving.begin(state, self._directory, self._spool.clear)

    def release(self) -> None:
        """Begin to save the last state: no client waits for this process now."""
        self._saving.tasks_out()

    def wait(self) -> None:
        """Return when the last state is saved.

        Raises:
            StateError: the disk does not take it.
        """
        self._saving.wait()

    def updates(self) -> Iterator[Update]:
        """Yield the updates of the open round, sorted by client and answered round."""
        return self._spool.updates()

    def remove_updates(self) -> None:
        """Remove all updates, and what is kept of a masked round: the federation is complete."""
        self._spool.remove()
        self._masked_sum.unlink(missing_ok=True)

    def resume(
        self, config: FederationConfig, spec: PlanSpec, algorithm: Algorithm, initial: ServerState
    ) -> Resume:
        """Return what an earlier process of this federation stored.

        Args:
            config: the federation.
            spec: the plan's specification.
            algorithm: the algorithm as the server aggregates with it.
            initial: where the federation began.

        Raises:
            StateError: a file is damaged.
        """
        state = load_state(self._directory) or initial
        is_over = state.round > config.rounds or state.phase in (PERSONALIZE, DONE)
        phase = PERSONALIZE if is_over else state.phase
        opened = self._journal.round(state.round, phase)
        place = opened or OpenedRound(state.round, phase, "", ())
        oldest = state.round - (config.staleness if phase != PERSONALIZE else 0)
        accepted = list(self._journal.accepted(opened)) if opened else []
        begins = [
            begin
            for begin in accepted
            if self._spool.restore(begin, expected_of(algorithm, state, phase, begin.client_id), config.codec)
        ]
        latest = self._journal.latest_updates(MEASURED_ROUNDS, PERSONALIZE)
        return Resume(
            state,
            opened,
            begins,
            self._journal.nonces(place, oldest),
            self._journal.settled(place, oldest),
            self._journal.losses(PERSONALIZE),
            list(round_times(config, spec, latest)),
            self._read_masked_sum(),
            self._journal.round_after(state.round),
        )

    def _read_masked_sum(self) -> bytes:
        try:
            return self._masked_sum.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise StateError(f"cannot read {self._masked_sum}: {error}; begin anew with --fresh") from error


def expected_of(algorithm: Algorithm, state: ServerState, phase: str, client_id: str) -> Expected:
    """Return the tensors that a client's update may hold in a round."""
    if phase == PERSONALIZE:
        return {}
    broadcast = algorithm.broadcast(state, client_id)
    return {name: specs_of(weights) for name, weights in broadcast.models.items()}
