"""Decides which clients are excluded after complaints about sealed shares.

The aggregator relays sealed shares and cannot open them. A complaint states that client v cannot open what
client u sealed for it, so u or v is at fault. A proof would require a key that also opens genuine shares, so
the aggregator does not ask for one.

A complaint is sent before any share is revealed. The failed attempt therefore has no sum that could be
compared with the sum of the next attempt.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """The reason why a client is excluded from the next attempt.

    Attributes:
        reason: a clause without its subject.
        remedy: what the operator can do.
    """

    reason: str
    remedy: str = "update or revoke it"


def find_excluded(complaints: Mapping[str, Collection[str]], tolerated: int) -> dict[str, Fault]:
    """Return the clients that are excluded from the next attempt, and why.

    1. A client that more than `tolerated` others accuse is excluded alone. The same holds for a client that
       accuses more than `tolerated` others.
    2. For each remaining accusation both clients are excluded, in order of id, unless one of them is excluded
       already. One of the two is at fault.

    If at most `tolerated` clients are at fault, rule 1 excludes no honest client, and rule 2 excludes at most
    one honest client per client at fault. So at least half of the excluded clients are at fault, and every
    attempt with a complaint excludes at least one of them. A group of f dishonest clients can exclude at most
    f honest clients from a round. Each such exclusion also excludes one client of the group.

    Args:
        complaints: ids of the accused clients, by the id of the complaining client.
        tolerated: number of clients that a sum can lose: advertised clients minus the threshold.

    Returns:
        The fault by client id.

    Source: elimination of pairs after Hirt, Maurer and Przydatek, Efficient Secure Multi-party Computation,
    ASIACRYPT 2000.
    """
    accusations = sorted(
        {(accuser, accused) for accuser, all_accused in complaints.items() for accused in all_accused}
    )
    faults: dict[str, Fault] = {}
    for client_id in sorted({end for accusation in accusations for end in accusation}):
        accusers = [accuser for accuser, accused in accusations if accused == client_id != accuser]
        accused_clients = [accused for accuser, accused in accusations if accuser == client_id != accused]
        if len(accusers) > tolerated:
            faults[client_id] = Fault(f"sealed shares that are not genuine for {', '.join(accusers)}")
        elif len(accused_clients) > tolerated:
            faults[client_id] = Fault(
                f"accuses {len(accused_clients)} clients of shares that are not genuine, expected at most "
                f"{tolerated}"
            )
    for accuser, accused in accusations:
        if accuser == accused:
            faults.setdefault(accuser, Fault("cannot open its own shares"))
        elif accuser not in faults and accused not in faults:
            remedy = "one of the two is at fault: check the logs of both"
            faults[accuser] = Fault(f"accuses {accused} of a sealed share that is not genuine", remedy)
            faults[accused] = Fault(f"sealed a share that is not genuine, according to {accuser}", remedy)
    return faults
