"""Who is left out of the next attempt at a masked round when clients say that they cannot open each other's
shares.

The aggregator relays sealed shares and cannot open them. A complaint says "v cannot open what u sealed for
it"; u or v is at fault. The proof would be a key that also opens genuine shares, so nobody is asked for it. A
complaint comes before anything is revealed: the attempt has no sum, so the sum of the next attempt has none
to be compared with.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """Why a client is left out of the next attempt, a clause without its subject, and what the operator can
    do.
    """

    reason: str
    remedy: str = "update or revoke it"


def find_excluded(complaints: Mapping[str, Collection[str]], tolerated: int) -> dict[str, Fault]:
    """Return who is left out of the next attempt, and why.

    1. A client that more than `tolerated` others accuse is out alone, and so is a client that accuses more
       than `tolerated` others.
    2. Of each other accusation both ends are out, in order of id, unless one of them is out already: one of
       the two is at fault.

    With at most `tolerated` clients at fault, rule 1 never hits an honest client, and rule 2 takes at most
    one honest client out for each client at fault. So at least half of those who are out are at fault, every
    attempt with a complaint puts at least one out, and f clients in league can put at most f honest ones out
    of a round, with all of themselves.

    Args:
        complaints: The clients that a client accuses, by the client that complains.
        tolerated: How many clients a sum can do without: n that advertised less the threshold.

    Returns:
        The fault by client id.

    Source: elimination of pairs after Hirt, Maurer and Przydatek, Efficient Secure Multi-party Computation,
    ASIACRYPT 2000.
    """
    edges = sorted(
        {(accuser, accused) for accuser, all_accused in complaints.items() for accused in all_accused}
    )
    out: dict[str, Fault] = {}
    for client_id in sorted({end for edge in edges for end in edge}):
        accusers = [one for one, other in edges if other == client_id != one]
        accused_ones = [other for one, other in edges if one == client_id != other]
        if len(accusers) > tolerated:
            out[client_id] = Fault(f"sealed shares that are not genuine for {', '.join(accusers)}")
        elif len(accused_ones) > tolerated:
            out[client_id] = Fault(
                f"says of {len(accused_ones)} clients, more than {tolerated}, that their shares are not "
                "genuine"
            )
    for accuser, accused in edges:
        if accuser == accused:
            out.setdefault(accuser, Fault("cannot open its own shares"))
        elif accuser not in out and accused not in out:
            both = "one of the two is at fault: look at the logs of both"
            out[accuser] = Fault(f"says that {accused} sealed a share that is not genuine", both)
            out[accused] = Fault(f"sealed a share that is not genuine, says {accuser}", both)
    return out
