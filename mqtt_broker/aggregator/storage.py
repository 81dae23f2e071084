"""Storage of a federation in the aggregator's directory, and its recovery after a restart.

The journal holds the rounds and the updates of the open round. One file holds the server state after the last
aggregated round.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from edgefl.base.config import FederationConfig
from edgefl.base.errors import StateError
from edgefl.base.storage.aggregator_directory import AGGREGATOR_SPACE_REMEDY, AggregatorFiles
from edgefl.base.system.files import SECRET_MODE, write_state
from edgefl.base.types import ServerState, Update, Weights
from edgefl.learning.algorithms import PHASE_PERSONALIZE, Algorithm
from edgefl.program.plan.spec import PlanSpec
from edgefl.protocol.server.events import (
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
from edgefl.protocol.server.round_server import MAX_TIMED_ROUNDS, Resume, choose_phase, read_round_times
from edgefl.protocol.server.tasks import ExpectedTensors, list_expected_tensors
from edgefl.protocol.wire.messages import Begin
from edgefl.protocol.wire.tensors import decode_models
from mqtt_broker.aggregator.journal import Journal
from mqtt_broker.aggregator.results import load_state
from mqtt_broker.aggregator.state_writer import StateWriter

DECODED_BYTES = 4 * 1024 * 1024
"""Limit on the decoded updates of a round that stay in memory. A small round is not decoded twice."""


@dataclass(frozen=True, slots=True)
class CommittedUpdate:
    """An update of the open round that is in the journal.

    Attributes:
        opened: round that accepted the update.
        begin: announcement of the update.
        expected: tensors that the update may contain.
        codec: encoding of the tensors.
        deltas: decoded tensors by model name. None if they must be read from the journal.
    """

    opened: OpenedRound
    begin: Begin
    expected: ExpectedTensors
    codec: str
    deltas: Mapping[str, Weights] | None = None


class Storage:
    """The storage of one federation.

    Args:
        directory: directory of the aggregator.
        journal: open journal of this directory.
    """

    def __init__(self, directory: Path, journal: Journal) -> None:
        self._directory = directory
        self._journal = journal
        self._masked_sum = AggregatorFiles(directory).masked_sum
        self._uncommitted: dict[tuple[str, int], StoreUpdate] = {}
        self._committed: dict[tuple[str, int], CommittedUpdate] = {}
        self._decoded_bytes = 0
        self._state_writer = StateWriter(journal.checkpoint)

    def apply(self, action: Action) -> None:
        """Perform a storage action. Other actions are ignored.

        Raises:
            StateError: the files cannot be written.
        """
        match action:
            case OpenRound(opened):
                self._journal.open_round(opened)
            case StoreUpdate(begin):
                self._uncommitted[begin.client_id, begin.round] = action
            case CommitUpdates(opened, begins):
                self._commit(opened, begins)
            case SaveMaskedSum(content) if content:
                write_state(self._masked_sum, content, SECRET_MODE, AGGREGATOR_SPACE_REMEDY)
            case SaveMaskedSum():
                self._masked_sum.unlink(missing_ok=True)
            case ForgetRound(opened):
                self._journal.forget_round(opened)
            case CloseRound(opened, dropped=dropped, loss=loss):
                self._state_writer.wait()
                self._journal.close_round(opened, loss if math.isfinite(loss) else None, dropped)
            case SaveState(state):
                # If the aggregator is killed before the state is saved, it aggregates the round again and
                # gets the same state, bit by bit
                self._committed.clear()
                self._decoded_bytes = 0
                self._state_writer.begin(state, self._directory)

    def _commit(self, opened: OpenedRound, begins: tuple[Begin, ...]) -> None:
        self._state_writer.wait()  # `accept` removes the updates of the previous round
        updates = [self._uncommitted.pop((begin.client_id, begin.round)) for begin in begins]
        self._journal.accept(opened, updates)
        for update in updates:
            size = sum(array.nbytes for weights in update.deltas.values() for array in weights.values())
            stays = self._decoded_bytes + size <= DECODED_BYTES
            self._decoded_bytes += size if stays else 0
            self._committed[update.begin.client_id, update.begin.round] = CommittedUpdate(
                opened=opened,
                begin=update.begin,
                expected=update.expected,
                codec=update.codec,
                deltas=update.deltas if stays else None,
            )

    def release(self) -> None:
        """Start saving the last state now. Call this when no client waits for this process."""
        self._state_writer.release()

    def wait(self) -> None:
        """Wait until the last state is saved.

        Raises:
            StateError: the state cannot be written.
        """
        self._state_writer.wait()

    def list_clients(self) -> list[str]:
        """Return the clients whose updates the open round accepted."""
        return sorted({client_id for client_id, _ in self._committed})

    def read_updates(self, client_ids: Collection[str]) -> Iterator[Update]:
        """Yield the updates of the open round, sorted by client id and answered round.

        Only one update at a time is read from the journal.

        Args:
            client_ids: clients whose updates are read.

        Raises:
            StateError: the journal cannot be read.
            WireError: the tensors of an update cannot be decoded.
        """
        for key in sorted(key for key in self._committed if key[0] in client_ids):
            update = self._committed[key]
            begin = update.begin
            deltas = update.deltas
            if deltas is None:
                content = self._journal.read_tensors(update.opened, begin)
                deltas = decode_models(content, update.expected, begin.client_id, update.codec)
            yield Update(
                client_id=begin.client_id,
                round=begin.round,
                num_samples=begin.num_samples,
                deltas=deltas,
                metrics=begin.metrics,
            )

    def remove_updates(self) -> None:
        """Remove all updates and the sum of a masked round. Call this when the federation is complete."""
        self._committed.clear()
        self._journal.remove_tensors()
        self._masked_sum.unlink(missing_ok=True)

    def resume(
        self, config: FederationConfig, spec: PlanSpec, algorithm: Algorithm, initial: ServerState
    ) -> Resume:
        """Return the stored state of an earlier process of this federation.

        Args:
            algorithm: server algorithm, which makes the broadcasts of the open round.
            initial: server state before the first round.

        Raises:
            StateError: a file is damaged or cannot be read, or the state is older than the journal.
        """
        state = load_state(self._directory) or initial
        self._check_age(state)
        phase = choose_phase(config, state)
        opened = self._journal.read_round(state.round, phase)
        begins: list[Begin] = []
        if opened and phase == PHASE_PERSONALIZE:
            begins = list(self._journal.read_accepted(opened))  # Personalization needs no tensors
        elif opened:
            begins, opened = self._restore(opened, algorithm, state)
        current_round = opened or OpenedRound(number=state.round, phase=phase, nonce="", cohort=())
        oldest = state.round - (config.staleness if phase != PHASE_PERSONALIZE else 0)
        latest = self._journal.read_latest_updates(MAX_TIMED_ROUNDS, PHASE_PERSONALIZE)
        return Resume(
            state=state,
            opened=opened,
            begins=begins,
            nonces=self._journal.read_nonces(current_round, oldest),
            settled=self._journal.read_settled(current_round, oldest),
            losses=self._journal.read_losses(PHASE_PERSONALIZE),
            times=list(read_round_times(config, spec, latest)),
            masked_sum=self._read_masked_sum(),
            following=self._journal.read_next_round(state.round),
            masked_sum_origin=str(self._masked_sum),
        )

    def _check_age(self, state: ServerState) -> None:
        """Raise StateError if a later state was stored, because the updates before it are removed."""
        last = self._journal.read_last_number()
        if last > state.round:
            files = AggregatorFiles(self._directory)
            age = f"is of round {state.round}" if files.server_state.exists() else "is missing"
            raise StateError(
                f"{files.server_state} {age}, but {files.journal} holds updates of round {last}; restore "
                "both from the same backup, or start again with --fresh"
            )

    def _restore(
        self, opened: OpenedRound, algorithm: Algorithm, state: ServerState
    ) -> tuple[list[Begin], OpenedRound]:
        """Return the intact accepted updates of a round, and the round.

        Tensors can be damaged. A closed round is then reopened to accept those updates again.
        """
        for begin, codec in self._journal.read_intact(opened):
            expected = list_expected_tensors(algorithm.broadcast(state, begin.client_id))
            self._committed[begin.client_id, begin.round] = CommittedUpdate(
                opened=opened, begin=begin, expected=expected, codec=codec
            )
        begins = [update.begin for update in self._committed.values()]
        if opened.is_closed and len(begins) < len(list(self._journal.read_accepted(opened))):
            opened = self._journal.reopen_round(opened)
        return begins, opened

    def _read_masked_sum(self) -> bytes:
        try:
            return self._masked_sum.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise StateError(f"cannot read {self._masked_sum}: {error}; start again with --fresh") from error
