"""Converts the evidence that training diverged to numbers of a `State` and back, and explains it.

`edgefl.protocol.server.divergence` finds it.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from edgefl.base.errors import DivergedError
from edgefl.protocol.wire.messages import STOPPED_PHASE, State

_PREFIX = "diverged_"


@dataclass(frozen=True)
class Divergence:
    """The evidence that training diverged.

    Attributes:
        round: the round in which the divergence was noticed.
        loss: median training loss of that round. NaN when clients had no finite loss.
        first_loss: median training loss of round 1.
        guess_loss: loss of a model that guesses, ln C.
        clients: number of clients whose loss was not finite.
        cohort: number of clients in the round. 0 when the median loss was the reason.
        flat_rounds: number of rounds in a row, up to this one, that were no better than round 1. 0 when the
            loss was too high or not finite.
    """

    round: int
    loss: float = math.nan
    first_loss: float = math.nan
    guess_loss: float = math.nan
    clients: int = 0
    cohort: int = 0
    flat_rounds: int = 0


class FederationDivergedError(DivergedError):
    """Raised when a federation is stopped because training diverged.

    Args:
        divergence: the evidence. The message explains it.
    """

    def __init__(self, divergence: Divergence) -> None:
        super().__init__(explain_divergence(divergence))
        self.divergence = divergence


def explain_divergence(divergence: Divergence) -> str:
    """Return an error message for a divergence, with the remedy."""
    remedy = (
        "lower learning_rate of [algorithm], or its server_learning_rate if it has one, or rescale the data; "
        "then start again with another --out"
    )
    if divergence.cohort:
        return (
            f"training diverged in round {divergence.round}: {divergence.clients} of {divergence.cohort} "
            f"clients have a loss that is no finite number; {remedy}"
        )
    guess = f", and a model that guesses has {divergence.guess_loss:.3g}"
    if divergence.guess_loss == divergence.first_loss:
        guess = ""  # no classification
    if divergence.flat_rounds:
        return (
            f"training has had no effect until round {divergence.round}: the median losses of the last "
            f"{divergence.flat_rounds} rounds are not below the loss of round 1, "
            f"{divergence.first_loss:.4g}; {remedy}"
        )
    return (
        f"training diverged in round {divergence.round}: the median loss is {divergence.loss:.4g}, it was "
        f"{divergence.first_loss:.4g} in round 1{guess}; {remedy}"
    )


def encode_divergence(divergence: Divergence) -> dict[str, float]:
    """Return a divergence as numbers for the `settings` of a `State`.

    Numbers that are not finite are left out.
    """
    numbers = {name: float(value) for name, value in asdict(divergence).items()}
    return {f"{_PREFIX}{name}": value for name, value in numbers.items() if math.isfinite(value)}


def read_divergence(state: State) -> Divergence | None:
    """Return the divergence that stopped a federation for good, or None.

    Args:
        state: the state that the aggregator published.
    """
    return decode_divergence(state.settings) if state.phase == STOPPED_PHASE else None


def decode_divergence(settings: Mapping[str, float]) -> Divergence | None:
    """Return the divergence in the `settings` of a `State`, or None when they hold no divergence.

    Args:
        settings: numbers as `encode_divergence` makes them. They come from the network, so any value is
            accepted.
    """

    def read_number(name: str) -> float:
        return settings.get(f"{_PREFIX}{name}", math.nan)

    def read_count(name: str) -> int:
        value = read_number(name)
        return int(min(max(value, 0), 2**31)) if math.isfinite(value) else 0

    if f"{_PREFIX}round" not in settings:
        return None
    return Divergence(
        round=read_count("round"),
        loss=read_number("loss"),
        first_loss=read_number("first_loss"),
        guess_loss=read_number("guess_loss"),
        clients=read_count("clients"),
        cohort=read_count("cohort"),
        flat_rounds=read_count("flat_rounds"),
    )
