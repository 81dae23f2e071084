"""What a round server asks to store, in memory: the storage of simulated federations."""

from collections.abc import Iterator
from dataclasses import replace

from edgefl.algorithms import PHASE_PERSONALIZE
from edgefl.config import FederationConfig
from edgefl.server.events import (
    Action,
    CloseRound,
    CommitUpdates,
    Finish,
    ForgetRound,
    OpenedRound,
    OpenRound,
    SaveMaskedSum,
    SaveState,
    StoreUpdate,
)
from edgefl.server.round_server import Resume, choose_phase
from edgefl.server.rounds import UpdateKey
from edgefl.types import ServerState, Update
from edgefl.wire.messages import Begin

RoundKey = tuple[int, str]
"""The number and the phase of a round."""


class InMemoryStore:
    """Stores what the actions of a round server say.

    As on a disk, a state is saved while the next round begins. It is saved before an update of that round is
    committed.

    Args:
        state: the server state at the start.

    Attributes:
        state: the server state after the last aggregated round.
        opened: each round that was opened.
        accepted: the announcements of the updates that each round accepted, by client and answered round.
        losses: the mean loss of each closed round.
    """

    def __init__(self, state: ServerState) -> None:
        self.state = state
        self.opened: dict[RoundKey, OpenedRound] = {}
        self.accepted: dict[RoundKey, dict[tuple[str, int], Begin]] = {}
        self.losses: list[float | None] = []
        self._masked_sum = b""
        self._unsaved: ServerState | None = None
        self._stored: dict[tuple[str, int], StoreUpdate] = {}
        self._committed: dict[tuple[str, int], StoreUpdate] = {}

    def apply(self, action: Action) -> None:
        """Perform a storage action. Other actions are ignored."""
        match action:
            case OpenRound(opened):
                self.opened[opened.number, opened.phase] = opened
            case StoreUpdate(begin):
                self._stored[begin.client_id, begin.round] = action
            case CommitUpdates(opened, begins):
                self._save()
                accepted = self.accepted.setdefault((opened.number, opened.phase), {})
                for begin in begins:
                    key = begin.client_id, begin.round
                    self._committed[key] = self._stored.pop(key)
                    accepted[key] = begin
            case SaveMaskedSum(content):
                self._masked_sum = content
            case ForgetRound(opened):
                del self.opened[opened.number, opened.phase]
            case CloseRound(opened, loss=loss):
                self._save()
                self.opened[opened.number, opened.phase] = replace(opened, is_closed=True)
                if opened.phase != PHASE_PERSONALIZE:
                    self.losses.append(loss)
            case SaveState(state):
                self._unsaved = state
            case Finish(state=state):
                self._unsaved = state
                self._save()

    def _save(self) -> None:
        if self._unsaved is not None:
            self.state = self._unsaved
            self._unsaved = None
            self._committed.clear()

    def iterate_updates(self) -> Iterator[Update]:
        """Yield the committed updates of the open round, sorted by client and answered round."""
        for key in sorted(self._committed):
            stored = self._committed[key]
            begin = stored.begin
            yield Update(begin.client_id, begin.round, begin.num_samples, stored.deltas, begin.metrics)

    def crash(self) -> None:
        """Lose what was not committed, and a state that is not saved yet."""
        self._stored.clear()
        self._unsaved = None

    def resume(self, config: FederationConfig) -> Resume:
        """Return the state that a round server needs to continue."""
        state = self.state
        phase = choose_phase(config, state)
        opened = self.opened.get((state.round, phase))
        begins = tuple(self.accepted.get((state.round, phase), {}).values()) if opened else ()
        earlier = {number: opened_round for (number, of), opened_round in self.opened.items() if of == phase}
        settled: dict[UpdateKey, str] = {
            (answers, client_id): begin.sha256
            for (number, of), accepted in self.accepted.items()
            if of == phase and number < state.round
            for (client_id, answers), begin in accepted.items()
        }
        nonces = {
            number: opened_round.nonce for number, opened_round in earlier.items() if number < state.round
        }
        losses = tuple(self.losses)
        next_ones = (
            opened_round for (number, _), opened_round in self.opened.items() if number == state.round + 1
        )
        return Resume(
            state,
            opened,
            begins,
            nonces,
            settled,
            losses,
            masked_sum=self._masked_sum,
            following=next(next_ones, None),
        )
