"""The storage of a simulated federation: performs the storage actions of a round server in memory."""

from collections.abc import Collection, Iterator
from dataclasses import replace

from edgefl.base.config import FederationConfig
from edgefl.base.types import ServerState, Update
from edgefl.learning.algorithms import PHASE_PERSONALIZE
from edgefl.protocol.server.events import (
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
from edgefl.protocol.server.round_server import Resume, choose_phase
from edgefl.protocol.server.rounds import UpdateKey
from edgefl.protocol.wire.messages import Begin

RoundKey = tuple[int, str]
"""The number and the phase of a round."""


class InMemoryStore:
    """Performs the storage actions of a round server in memory.

    The aggregator saves a state to its disk while the next round begins. This store also saves a state late:
    when the next round commits its first updates or closes, or when the federation finishes.

    Args:
        state: the server state at the start.

    Attributes:
        state: the last saved server state.
        opened: the opened rounds by number and phase.
        accepted: the announcements of the updates that each round accepted, by client and answered round.
        losses: the median loss of each closed round, without the personalization.
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
        """Perform a storage action. Ignore other actions.

        Args:
            action: an action of the round server.
        """
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

    def list_clients(self) -> list[str]:
        """Return the clients of the committed updates of the current round."""
        return sorted({client_id for client_id, _ in self._committed})

    def iterate_updates(self, client_ids: Collection[str]) -> Iterator[Update]:
        """Yield the committed updates of the current round, sorted by client and answered round.

        Args:
            client_ids: clients whose updates are read.
        """
        for key in sorted(key for key in self._committed if key[0] in client_ids):
            stored = self._committed[key]
            begin = stored.begin
            yield Update(
                client_id=begin.client_id,
                round=begin.round,
                num_samples=begin.num_samples,
                deltas=stored.deltas,
                metrics=begin.metrics,
            )

    def crash(self) -> None:
        """Simulate a crash: lose the updates that are not committed and the state that is not saved."""
        self._stored.clear()
        self._unsaved = None

    def resume(self, config: FederationConfig) -> Resume:
        """Return the stored data with which a new round server continues the federation."""
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
            state=state,
            opened=opened,
            begins=begins,
            nonces=nonces,
            settled=settled,
            losses=losses,
            masked_sum=self._masked_sum,
            following=next(next_ones, None),
        )
