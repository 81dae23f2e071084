"""Verdict <-> its message. Figures travel in five digits."""

import math
from typing import get_args

from edgefl.verdict import FIGURES, KINDS, Comparison, DeviceFigures, Verdict, least_gained
from edgefl.wire import messages

DIGITS = 5


def verdict_message(verdict: Verdict, session: str, ts: float, *, with_rows: bool) -> messages.Verdict:
    """Return the message of a verdict.

    Args:
        verdict: the verdict.
        session: the session of the federation.
        ts: seconds since 1970.
        with_rows: whether the figures of single devices travel.
    """
    rows = least_gained(verdict.rows, messages.Verdict.MAX_ROWS) if with_rows else ()
    return messages.Verdict(
        session=session,
        measure=verdict.measure,
        devices=verdict.devices,
        means={name: _sent(value) for name, value in verdict.means.items()},
        worst={name: _sent(value) for name, value in verdict.worst.items()},
        better=verdict.better,
        as_good=verdict.as_good,
        worse=verdict.worse,
        overall=verdict.overall,
        gain_points=_sent(verdict.gain_points),
        kinds=verdict.kinds,
        sentence=verdict.sentence,
        rows=tuple(
            (
                row.id,
                _sent(row.local),
                _sent(row.federated),
                _sent(row.shipped),
                _sent(row.int8),
                row.kind,
                row.comparison,
            )
            for row in rows
        ),
        ts=ts,
    )


def read_verdict(message: messages.Verdict) -> Verdict:
    """Return the verdict of a message. A figure that is impossible and a word that is unknown are missing.

    Ids and sentence are text from the network: pass them through `printable` before printing them.
    """
    return Verdict(
        measure=message.measure,
        devices=message.devices,
        means={name: _share(message.means.get(name)) for name in FIGURES},
        worst={name: _share(message.worst.get(name)) for name in FIGURES},
        better=message.better,
        as_good=message.as_good,
        worse=message.worse,
        overall=_comparison(message.overall),
        gain_points=_between(message.gain_points, -100.0, 100.0),
        kinds={kind: message.kinds.get(kind, 0) for kind in KINDS},
        rows=tuple(
            DeviceFigures(
                id=client_id,
                local=_share(local),
                federated=_share(federated),
                shipped=_share(shipped),
                int8=_share(int8),
                kind=kind if kind in KINDS else "",
                comparison=_comparison(comparison),
            )
            for client_id, local, federated, shipped, int8, kind, comparison in message.rows
        ),
        sentence=message.sentence,
    )


def _sent(value: float | None) -> float:
    return math.nan if value is None else round(value, DIGITS)


def _share(value: float | None) -> float | None:
    return _between(value, 0.0, 1.0)


def _between(value: float | None, least: float, most: float) -> float | None:
    # NaN is between nothing
    return value if value is not None and least <= value <= most else None


def _comparison(text: str) -> Comparison:
    return next((each for each in get_args(Comparison) if each == text), "")
