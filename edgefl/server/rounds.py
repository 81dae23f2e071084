"""The round state machine: pure functions over a frozen `Round`.

Time comes in as an argument (seconds, any monotonic clock).

A round closes when its whole cohort reported, or as many as are `enough`; or at the deadline with quorum; or
when quorum is met and all who are missing have been offline for `grace_s`. Past the deadline without quorum
it is overdue: send the tasks again and `extend`. Each extension takes `extension_s`.

More clients than are enough is over-selection (Bonawitz et al., Towards Federated Learning at Scale, MLSys
2019). An update that answers an earlier round is late; a round takes it up to `max_staleness` rounds old. If
late ones count towards enough, rounds are the versions of an asynchronous federation with a buffer (Nguyen et
al., FedBuff, AISTATS 2022).
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from edgefl.errors import RoundError

MAX_EXTENSIONS = 3

UpdateKey = tuple[int, str]
"""The round that an update answers, and its client."""


@dataclass(frozen=True)
class Round:
    """One round.

    `received`: sha256 of the update by client; `failed`: why the client's update was rejected; `away`:
    offline since.

    enough: so many updates close it, 0 for those of the whole cohort. late: sha256 of the late updates that
    it took; settled: of those that earlier rounds took, of as many rounds back as late ones may come from.
    """

    number: int
    cohort: tuple[str, ...]
    needed: int
    deadline_s: float
    grace_s: float
    opened: float
    closes: float
    received: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    away: Mapping[str, float] = field(default_factory=dict)
    extensions: int = 0
    enough: int = 0
    max_staleness: int = 0
    late_count: bool = False
    late: Mapping[UpdateKey, str] = field(default_factory=dict)
    settled: Mapping[UpdateKey, str] = field(default_factory=dict)
    extension_s: float = 0.0


@dataclass(frozen=True)
class UpdateVerdict:
    """accepted; repeated: the same bytes were accepted before, so say so again; rejected, with the reason."""

    kind: Literal["accepted", "repeated", "rejected"]
    reason: str = ""


def open_round(
    number: int,
    cohort: Iterable[str],
    *,
    quorum: float,
    deadline_s: float,
    grace_s: float,
    now: float,
    extension_s: float = 0.0,
    enough: int = 0,
    max_staleness: int = 0,
    late_count: bool = False,
    settled: Mapping[UpdateKey, str] = {},
) -> Round:
    """Open a round; `quorum` is the share that must report: of `enough`, or of the cohort.

    RoundError for an empty cohort.

    extension_s: seconds of an extension, 0 for `deadline_s`; max_staleness: how many rounds back an update
    may come from; late_count: whether such updates count towards enough and quorum.
    """
    ids = tuple(sorted(set(cohort)))
    if not ids:
        raise RoundError(f"round {number} has no clients, expected at least one; start a device")
    # a share such as .1 x 30 comes out a hair above 3 in binary and must not ask for a fourth client
    enough = min(enough, len(ids))
    needed = max(1, math.ceil(quorum * (enough or len(ids)) - 1e-9))
    return Round(
        number,
        ids,
        needed,
        deadline_s,
        grace_s,
        now,
        now + deadline_s,
        enough=enough,
        max_staleness=max_staleness,
        late_count=late_count,
        settled=settled,
        extension_s=extension_s or deadline_s,
    )


def judge_update(round: Round, number: int, client_id: str, sha256: str) -> UpdateVerdict:
    """Say whether the round takes an update, or why not.

    An answer to a task counts once, whatever its client sends again.
    """
    if number < round.number - round.max_staleness:
        return UpdateVerdict(
            "rejected", f"stale: an update of round {number}, round {round.number} is open; wait for its task"
        )
    if number > round.number:
        return UpdateVerdict(
            "rejected", f"an update of round {number}, round {round.number} is open; wait for its task"
        )
    if number < round.number:
        before = round.late.get((number, client_id)) or round.settled.get((number, client_id))
        rest = "wait for a task"
    elif client_id not in round.cohort:
        return UpdateVerdict(
            "rejected", f"{client_id} is not in the cohort of round {number}; wait for a task"
        )
    else:
        before = round.received.get(client_id)
        rest = "send one update a round"
    if before is None:
        return UpdateVerdict("accepted")
    if before == sha256:
        return UpdateVerdict("repeated")
    return UpdateVerdict(
        "rejected", f"duplicate: round {number} had update {before[:8]} of {client_id}; {rest}"
    )


def receive_update(round: Round, number: int, client_id: str, sha256: str) -> tuple[Round, UpdateVerdict]:
    """Take an update into the round if it is to be taken (`judge`)."""
    verdict = judge_update(round, number, client_id, sha256)
    if verdict.kind != "accepted":
        return round, verdict
    if number < round.number:
        return replace(round, late={**round.late, (number, client_id): sha256}), verdict
    failed = {key: why for key, why in round.failed.items() if key != client_id}
    return replace(round, received={**round.received, client_id: sha256}, failed=failed), verdict


def mark_failed(round: Round, client_id: str, reason: str) -> Round:
    """Note that what a client sent cannot be used: the round does not wait for it, and takes a better update
    if one comes.
    """
    if client_id not in round.cohort or client_id in round.received:
        return round
    return replace(round, failed={**round.failed, client_id: reason})


def mark_offline(round: Round, client_id: str, now: float) -> Round:
    """Note since when a client is away."""
    if client_id not in round.cohort or client_id in round.away:
        return round
    return replace(round, away={**round.away, client_id: now})


def mark_online(round: Round, client_id: str) -> Round:
    """Note that a client is back."""
    return replace(round, away={key: since for key, since in round.away.items() if key != client_id})


def admit_client(round: Round, client_id: str) -> Round:
    """Add a client to an open round; what is needed for quorum stays."""
    return (
        round
        if client_id in round.cohort
        else replace(round, cohort=tuple(sorted((*round.cohort, client_id))))
    )


def remove_client(round: Round, client_id: str) -> Round:
    """Take a client that has not reported out of an open round.

    A round never needs more updates than it has clients.
    """
    if client_id not in round.cohort or client_id in round.received:
        return round
    cohort = tuple(other for other in round.cohort if other != client_id)
    enough = min(round.enough, len(cohort))
    needed = min(round.needed, max(1, enough or len(cohort)))
    if round.late_count:  # late updates of others count too
        enough = round.enough
        needed = round.needed
    return replace(round, cohort=cohort, enough=enough, needed=needed)


def list_missing(round: Round) -> tuple[str, ...]:
    """Return who has not reported, sorted."""
    return tuple(client_id for client_id in round.cohort if client_id not in round.received)


def _iterate_awaited(round: Round) -> Iterator[str]:
    return (
        client_id
        for client_id in round.cohort
        if client_id not in round.received and client_id not in round.failed
    )


def count_updates(round: Round) -> int:
    """Return how many updates count towards enough and quorum."""
    return len(round.received) + (len(round.late) if round.late_count else 0)


def count_outstanding(round: Round) -> int:
    """Return how many updates would close the round: not those of clients that are away or whose update was
    rejected.
    """
    if round.enough:
        return round.enough - count_updates(round)
    return len(round.cohort) - len({*round.received, *round.failed, *round.away})


def has_quorum(round: Round) -> bool:
    """Whether as many updates came as must."""
    return count_updates(round) >= round.needed


def is_closed(round: Round, now: float) -> bool:
    """Whether the round can be aggregated."""
    if not has_quorum(round):
        return False
    if round.enough and count_updates(round) >= round.enough:
        return True
    gone = all(
        client_id in round.away and now - round.away[client_id] >= round.grace_s
        for client_id in _iterate_awaited(round)
    )
    return gone or now >= round.closes


def is_overdue(round: Round, now: float) -> bool:
    """Whether quorum was missed: at the deadline, or as soon as nobody of the cohort is left who could
    report.
    """
    is_hopeless = bool(round.cohort) and next(_iterate_awaited(round), None) is None
    return not has_quorum(round) and (now >= round.closes or is_hopeless)


def extend_round(round: Round, now: float, *, counts: bool = True) -> Round:
    """Give everybody who is missing another `extension_s`; RoundError after three times that count.

    One does not count while somebody who is missing is paused: that client says that it comes back.
    """
    if counts and round.extensions >= MAX_EXTENSIONS:
        why = "; ".join(
            f"{client_id} ({round.failed.get(client_id, 'silent')})" for client_id in list_missing(round)
        )
        times = f"{round.extensions + 1} deadlines of {round.deadline_s:g} s"
        if round.extension_s != round.deadline_s:
            times = (
                f"a deadline of {round.deadline_s:g} s and {round.extensions} more of {round.extension_s:g} s"
            )
        raise RoundError(
            f"round {round.number} has {count_updates(round)} of {len(round.cohort)} updates, expected "
            f"{round.needed}, after {times}; missing: "
            f"{why}; look at their logs, raise deadline_s, or lower quorum"
        )
    return replace(round, closes=now + round.extension_s, failed={}, extensions=round.extensions + counts)


def get_timeout(round: Round, now: float) -> float:
    """Return the seconds until time alone may close the round or make it overdue."""
    returns = [
        since + round.grace_s for client_id, since in round.away.items() if client_id not in round.received
    ]
    later = [moment for moment in (round.closes, *returns) if moment > now]
    return min(later) - now if later else 0.0
