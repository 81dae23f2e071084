"""The round state machine: pure functions over a frozen `Round`.

Times are in seconds of any monotonic clock, and are passed in as arguments.

A round closes in one of three cases:

- The whole cohort has reported, or `enough` clients have.
- The deadline has passed and the quorum is met.
- The quorum is met and every missing client has been offline for `grace_s`.

A round past its deadline without a quorum is overdue. The caller then sends the tasks again, admits all other
available clients, and calls `extend_round`. Each extension takes `extension_s`.

A cohort larger than `enough` is over-selection. An update that answers an earlier round is late. A round
accepts late updates that are at most `max_staleness` rounds old. When late updates count towards `enough`,
the rounds are the versions of an asynchronous federation with a buffer.

Source: Bonawitz et al., Towards Federated Learning at Scale, MLSys 2019 (over-selection). Nguyen et al.,
FedBuff, AISTATS 2022 (buffer).
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from edgefl.base.errors import RoundError

MAX_EXTENSIONS = 3
"""Number of extensions after which a round without a quorum fails."""

UpdateKey = tuple[int, str]
"""The round that an update answers, and its client."""


@dataclass(frozen=True)
class Round:
    """The state of one round.

    Attributes:
        number: the number of the round, from 1.
        cohort: the clients that have a task, sorted.
        needed: the quorum, as a number of updates.
        deadline_s: seconds from the opening of the round to its deadline.
        grace_s: seconds that a client may be offline before a round with a quorum closes without it.
        opened: time at which the round was opened, in seconds.
        closes: time of the deadline, in seconds.
        received: sha256 of each accepted update, by client.
        failed: why a client's update was rejected, by client.
        away: time since which a client is offline, in seconds, by client.
        extensions: number of extensions so far.
        enough: number of updates that close the round. 0 waits for the whole cohort.
        max_staleness: how many rounds back an update may come from.
        late_count: whether late updates count towards `enough` and the quorum.
        late: sha256 of each late update that this round accepted, by answered round and client.
        settled: sha256 of each update that earlier rounds accepted, by round and client. It goes back
            `max_staleness` rounds.
        extension_s: seconds of an extension.
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
    """The decision about one update.

    Attributes:
        kind: `accepted`, `repeated` or `rejected`. `repeated` means that the same bytes were accepted before.
        reason: why the update is rejected, and the remedy. Empty otherwise.
    """

    kind: Literal["accepted", "repeated", "rejected"]
    reason: str = ""


def count_needed_updates(quorum: float, size: int) -> int:
    """Return the number of updates without which a round cannot close.

    Args:
        quorum: share of the clients that must report, from 0 to 1.
        size: number of clients.
    """
    # In binary .1 x 30 is slightly above 3 and must not ask for a fourth client
    return max(1, math.ceil(quorum * size - 1e-9))


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
    """Open a round.

    Args:
        number: the number of the round, from 1.
        cohort: the clients that have a task.
        quorum: share of `enough` that must report, from 0 to 1. Without `enough` it is a share of the cohort.
        deadline_s: seconds until the deadline.
        grace_s: seconds that a client may be offline before a round with a quorum closes without it.
        now: the time in seconds.
        extension_s: seconds of an extension. 0 takes `deadline_s`.
        enough: number of updates that close the round. 0 waits for the whole cohort.
        max_staleness: how many rounds back an update may come from.
        late_count: whether late updates count towards `enough` and the quorum.
        settled: sha256 of each update that earlier rounds accepted, by round and client.

    Raises:
        RoundError: the cohort is empty.
    """
    ids = tuple(sorted(set(cohort)))
    if not ids:
        raise RoundError(f"round {number} has no clients, expected at least one; start a device")
    enough = min(enough, len(ids))
    needed = count_needed_updates(quorum, enough or len(ids))
    return Round(
        number=number,
        cohort=ids,
        needed=needed,
        deadline_s=deadline_s,
        grace_s=grace_s,
        opened=now,
        closes=now + deadline_s,
        enough=enough,
        max_staleness=max_staleness,
        late_count=late_count,
        settled=settled,
        extension_s=extension_s or deadline_s,
    )


def judge_update(round: Round, number: int, client_id: str, sha256: str) -> UpdateVerdict:
    """Return whether a round accepts an update, with the reason when it does not.

    Each client's answer to a task counts once.

    Args:
        number: the round that the update answers.
        sha256: the sha256 of the update, in hexadecimal.
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
    """Judge an update, and add it to the round if it is accepted.

    Args:
        number: the round that the update answers.
        sha256: the sha256 of the update, in hexadecimal.

    Returns:
        The round, unchanged unless the update is accepted, and the verdict of `judge_update`.
    """
    verdict = judge_update(round, number, client_id, sha256)
    if verdict.kind != "accepted":
        return round, verdict
    if number < round.number:
        return replace(round, late={**round.late, (number, client_id): sha256}), verdict
    failed = {key: why for key, why in round.failed.items() if key != client_id}
    return replace(round, received={**round.received, client_id: sha256}, failed=failed), verdict


def mark_failed(round: Round, client_id: str, reason: str) -> Round:
    """Record that a client's update cannot be used.

    The round does not wait for the client any more. It still accepts a better update from the client.

    Args:
        client_id: the client. A client that is not in the cohort or has reported changes nothing.
        reason: why the update cannot be used.
    """
    if client_id not in round.cohort or client_id in round.received:
        return round
    return replace(round, failed={**round.failed, client_id: reason})


def mark_offline(round: Round, client_id: str, now: float) -> Round:
    """Record the time at which a client went offline. A client that is already offline keeps its time.

    Args:
        client_id: the client. A client that is not in the cohort changes nothing.
        now: the time in seconds.
    """
    if client_id not in round.cohort or client_id in round.away:
        return round
    return replace(round, away={**round.away, client_id: now})


def mark_online(round: Round, client_id: str) -> Round:
    """Record that a client is online again.

    Args:
        client_id: the client. A client that is not offline changes nothing.
    """
    return replace(round, away={key: since for key, since in round.away.items() if key != client_id})


def admit_client(round: Round, client_id: str) -> Round:
    """Add a client to an open round. The quorum stays the same number of updates.

    Args:
        client_id: the client. A client that is already in the cohort changes nothing.
    """
    return (
        round
        if client_id in round.cohort
        else replace(round, cohort=tuple(sorted((*round.cohort, client_id))))
    )


def remove_client(round: Round, client_id: str) -> Round:
    """Remove a client that has not reported from an open round.

    A round never needs more updates than it has clients, unless late updates count.

    Args:
        client_id: the client. A client that is not in the cohort or has reported changes nothing.
    """
    if client_id not in round.cohort or client_id in round.received:
        return round
    cohort = tuple(other for other in round.cohort if other != client_id)
    enough = min(round.enough, len(cohort))
    needed = min(round.needed, max(1, enough or len(cohort)))
    if round.late_count:  # Late updates of other clients count too
        enough = round.enough
        needed = round.needed
    return replace(round, cohort=cohort, enough=enough, needed=needed)


def list_missing(round: Round) -> tuple[str, ...]:
    """Return the clients that have not reported, sorted."""
    return tuple(client_id for client_id in round.cohort if client_id not in round.received)


def _iterate_awaited(round: Round) -> Iterator[str]:
    return (
        client_id
        for client_id in round.cohort
        if client_id not in round.received and client_id not in round.failed
    )


def count_updates(round: Round) -> int:
    """Return how many updates count towards `enough` and the quorum."""
    return len(round.received) + (len(round.late) if round.late_count else 0)


def count_outstanding(round: Round) -> int:
    """Return how many more updates would close the round.

    Without `enough`, clients that are offline or whose update was rejected do not count.
    """
    if round.enough:
        return round.enough - count_updates(round)
    return len(round.cohort) - len({*round.received, *round.failed, *round.away})


def has_quorum(round: Round) -> bool:
    """Return whether the quorum is met."""
    return count_updates(round) >= round.needed


def is_closed(round: Round, now: float) -> bool:
    """Return whether the round can be aggregated.

    The module lists the three cases in which a round closes.

    Args:
        now: the time in seconds.
    """
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
    """Return whether the quorum was missed.

    It is missed at the deadline, or as soon as every missing client has sent an update that was rejected.

    Args:
        now: the time in seconds.
    """
    is_hopeless = bool(round.cohort) and next(_iterate_awaited(round), None) is None
    return not has_quorum(round) and (now >= round.closes or is_hopeless)


def extend_round(round: Round, now: float, *, counts: bool = True) -> Round:
    """Extend a round without a quorum by `extension_s`, for all missing clients.

    Args:
        now: the time in seconds.
        counts: whether the extension counts towards `MAX_EXTENSIONS`. It does not count while a missing
            client is paused, because a paused client will return.

    Returns:
        The round with a new deadline and without failed clients.

    Raises:
        RoundError: the round had `MAX_EXTENSIONS` extensions that count.
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
            f"{round.needed}, after {times}; missing: {why}; look at their logs, raise deadline_s, or lower "
            "quorum"
        )
    return replace(round, closes=now + round.extension_s, failed={}, extensions=round.extensions + counts)


def get_timeout(round: Round, now: float) -> float:
    """Return the seconds until time alone may close the round or make it overdue.

    The result is 0 when all such times have passed.

    Args:
        now: the time in seconds.
    """
    returns = [
        since + round.grace_s for client_id, since in round.away.items() if client_id not in round.received
    ]
    later = [moment for moment in (round.closes, *returns) if moment > now]
    return min(later) - now if later else 0.0
