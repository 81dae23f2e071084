"""Converts a verdict to its message and back. Figures are rounded to five digits."""

import math
from typing import get_args

from edgefl.base.verdict import (
    DEVICE_FIGURES,
    MODEL_KINDS,
    Comparison,
    DeviceFigures,
    FederationVerdict,
    select_least_gained,
)
from edgefl.protocol.wire import messages

FIGURE_DIGITS = 5


def make_verdict_message(
    verdict: FederationVerdict, session: str, ts: float, *, with_rows: bool
) -> messages.Verdict:
    """Return the message of a verdict.

    Args:
        session: the session of the federation.
        ts: seconds since 1970.
        with_rows: whether the message contains the figures of single devices.
    """
    rows = select_least_gained(verdict.rows, messages.Verdict.MAX_ROWS) if with_rows else ()
    return messages.Verdict(
        session=session,
        measure=verdict.measure,
        devices=verdict.devices,
        means={name: _round_figure(value) for name, value in verdict.means.items()},
        worst={name: _round_figure(value) for name, value in verdict.worst.items()},
        better=verdict.better,
        as_good=verdict.as_good,
        worse=verdict.worse,
        overall=verdict.overall,
        gain_points=_round_figure(verdict.gain_points),
        kinds=verdict.kinds,
        sentence=verdict.sentence,
        rows=tuple(
            (
                row.id,
                _round_figure(row.local),
                _round_figure(row.federated),
                _round_figure(row.shipped),
                _round_figure(row.int8),
                row.kind,
                row.comparison,
            )
            for row in rows
        ),
        ts=ts,
    )


def read_verdict(message: messages.Verdict) -> FederationVerdict:
    """Return the verdict of a message.

    Impossible figures become None, and unknown kinds and comparisons become "". Ids and sentence are text
    from the network: pass them through `escape_unprintable` before printing them.
    """
    return FederationVerdict(
        measure=message.measure,
        devices=message.devices,
        means={name: _accept_fraction(message.means.get(name)) for name in DEVICE_FIGURES},
        worst={name: _accept_fraction(message.worst.get(name)) for name in DEVICE_FIGURES},
        better=message.better,
        as_good=message.as_good,
        worse=message.worse,
        overall=_parse_comparison(message.overall),
        gain_points=_accept_between(message.gain_points, -100.0, 100.0),
        kinds={kind: message.kinds.get(kind, 0) for kind in MODEL_KINDS},
        rows=tuple(
            DeviceFigures(
                id=client_id,
                local=_accept_fraction(local),
                federated=_accept_fraction(federated),
                shipped=_accept_fraction(shipped),
                int8=_accept_fraction(int8),
                kind=kind if kind in MODEL_KINDS else "",
                comparison=_parse_comparison(comparison),
            )
            for client_id, local, federated, shipped, int8, kind, comparison in message.rows
        ),
        sentence=message.sentence,
    )


def _round_figure(value: float | None) -> float:
    return math.nan if value is None else round(value, FIGURE_DIGITS)


def _accept_fraction(value: float | None) -> float | None:
    return _accept_between(value, 0.0, 1.0)


def _accept_between(value: float | None, least: float, most: float) -> float | None:
    # NaN fails both comparisons
    return value if value is not None and least <= value <= most else None


def _parse_comparison(text: str) -> Comparison:
    return next((comparison for comparison in get_args(Comparison) if comparison == text), "")
