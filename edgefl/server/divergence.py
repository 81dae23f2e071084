"""Whether training diverged: a federation that diverged is stopped, with the reason and the remedy.

The loss says so when three rounds in a row after the first have a mean training loss that

- is above 5 max(ln C, 1), where ln C is the cross-entropy of a model that guesses among C classes, and
- is not below .9 of the loss of round 1: it does not fall,

and when the accuracy that clients report, if they do, is no more than a quarter of the way from guessing
(1 / C) to 1.

A federation of two or three rounds has no three rounds after the first. Its last round decides: it diverged
when the loss of every round after the first is above the same bound and above the loss of round 1. One round
stops nothing, because its loss has nothing to be compared with.

A federation that trained to no effect is not stopped: it ends with a warning, see `explain_no_progress`.

The bound must never stop honest training. In 142 recorded runs of all algorithms the three rounds of highest
loss in a row were at most 1.7 ln C, a single round at most 2.7 ln C (FedMix, whose loss has a term for the
gate). The loss of round 1 alone is no measure: with a learning rate of 100 it is high already. Loss alone is
none either: a linear model at that rate has a loss of 30 ln C that falls, and an accuracy of 95%.

A client whose loss is no finite number has no update to send. When so many of them diverge that a round
cannot have its quorum, the federation stops too.

With `[privacy]` the loss stops nothing: losses have no noise, and the stop would tell of them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from edgefl.errors import DivergedError
from edgefl.wire.messages import STOPPED_PHASE, State

LOSS_FACTOR = 5.0
MAX_LOSS_SHARE = 0.9
ROUNDS_IN_A_ROW = 3
ACCURACY_SHARE = 0.25
GUESS_SHARE = 0.98
"""A loss of at least this share of ln C is not better than guessing."""
NO_FALL_SHARE = 0.99
"""A loss of at least this share of an earlier one has not fallen."""
_PREFIX = "diverged_"


@dataclass(frozen=True)
class Divergence:
    """What was seen when training diverged.

    Attributes:
        round: the round in which it was noticed
        loss: mean training loss of that round; NaN when clients had no finite loss
        first_loss: mean training loss of round 1
        guess_loss: loss of a model that guesses, ln C
        clients: number of clients whose loss was no finite number
        cohort: number of clients in the round; 0 when the mean loss was the reason
    """

    round: int
    loss: float = math.nan
    first_loss: float = math.nan
    guess_loss: float = math.nan
    clients: int = 0
    cohort: int = 0


class FederationDivergedError(DivergedError):
    """A federation that was stopped because training diverged."""

    def __init__(self, divergence: Divergence) -> None:
        super().__init__(explain_divergence(divergence))
        self.divergence = divergence


def find_divergence(
    losses: Sequence[float | None], num_classes: int, accuracy: float = math.nan, *, rounds: int = 0
) -> Divergence | None:
    """Return how training diverged, None when it did not.

    Args:
        losses: mean training loss of each round from round 1 on; None or NaN for a round without one.
        num_classes: number of classes, C.
        accuracy: mean accuracy that clients report in the last round; NaN when they report none.
        rounds: number of rounds of the federation; 0 when it is unknown or not limited.
    """
    loss_values = _as_floats(losses)
    guess_loss = math.log(num_classes)
    in_a_row, fall = ROUNDS_IN_A_ROW, MAX_LOSS_SHARE
    if len(loss_values) == rounds and 1 < rounds <= ROUNDS_IN_A_ROW:
        in_a_row, fall = rounds - 1, 1.0
    if len(loss_values) <= in_a_row or _is_accurate(accuracy, num_classes):
        return None
    first = loss_values[0]
    limit = max(_compute_loss_limit(num_classes), fall * first if math.isfinite(first) else 0.0)
    if not all(loss > limit for loss in loss_values[-in_a_row:]):
        return None
    return Divergence(len(loss_values), loss_values[-1], first, guess_loss)


def explain_no_progress(
    losses: Sequence[float | None], num_classes: int, accuracy: float = math.nan
) -> str | None:
    """Return a warning when a federation trained to no effect, None when it learned something.

    The last three rounds, or all of a shorter federation, decide. Training had no effect in two cases:

    - Their losses are at least .98 ln C, and the last of them is at least .99 of the first of them. A single
      round does not count, because a model that has just begun to learn is near ln C too.
    - Their losses are above 5 max(ln C, 1), and the last one is at least .9 of the loss of round 1.

    Args:
        losses: mean training loss of each round, see `find_divergence`.
        num_classes: number of classes, C.
        accuracy: mean accuracy that clients report in the last round; NaN when they report none.
    """
    finite_losses = [loss for loss in _as_floats(losses) if math.isfinite(loss)]
    if not finite_losses or _is_accurate(accuracy, num_classes):
        return None
    first, last, window = finite_losses[0], finite_losses[-1], finite_losses[-ROUNDS_IN_A_ROW:]
    guess_loss = math.log(num_classes)
    if min(window) > _compute_loss_limit(num_classes):
        has_effect = last < MAX_LOSS_SHARE * first
    else:
        is_at_guess = len(finite_losses) > 1 and min(window) >= GUESS_SHARE * guess_loss
        has_effect = not is_at_guess or last < NO_FALL_SHARE * window[0]
    if has_effect:
        return None
    remedy = (
        "lower learning_rate of [algorithm], or check the data's scale"
        if last > guess_loss / GUESS_SHARE
        else "check labels and data, change learning_rate of [algorithm], or train for more rounds"
    )
    return (
        f"training has had no effect: the mean loss of the last round is {last:.4g}, it was {first:.4g} in "
        f"round 1, and a model that guesses has {guess_loss:.3g}; {remedy}"
    )


def _as_floats(losses: Sequence[float | None]) -> list[float]:
    return [math.nan if loss is None else loss for loss in losses]


def _compute_loss_limit(num_classes: int) -> float:
    return LOSS_FACTOR * max(math.log(num_classes), 1.0)


def _is_accurate(accuracy: float, num_classes: int) -> bool:
    """Return whether an accuracy is well above guessing; False for NaN."""
    return accuracy > 1 / num_classes + ACCURACY_SHARE * (1 - 1 / num_classes)


def explain_divergence(divergence: Divergence) -> str:
    """Return what was seen, what is expected, and what to do."""
    remedy = "lower learning_rate of [algorithm], or check the data's scale; then begin anew in another --out"
    if divergence.cohort:
        return (
            f"training diverged in round {divergence.round}: {divergence.clients} of {divergence.cohort} "
            f"clients have a loss that is no finite number; {remedy}"
        )
    return (
        f"training diverged in round {divergence.round}: the mean loss is {divergence.loss:.4g}, it was "
        f"{divergence.first_loss:.4g} in round 1, and a model that guesses has {divergence.guess_loss:.3g}; "
        f"{remedy}"
    )


def encode_divergence(divergence: Divergence) -> dict[str, float]:
    """Return a divergence as numbers for `settings` of a `State`."""
    numbers = {name: float(value) for name, value in asdict(divergence).items()}
    return {f"{_PREFIX}{name}": value for name, value in numbers.items() if math.isfinite(value)}


def read_divergence(state: State) -> Divergence | None:
    """Return the divergence with which an aggregator stopped a federation for good, None when it did not."""
    return decode_divergence(state.settings) if state.phase == STOPPED_PHASE else None


def decode_divergence(settings: Mapping[str, float]) -> Divergence | None:
    """Return the divergence in `settings` of a `State`; None when there is none."""

    def read_number(name: str) -> float:
        return settings.get(f"{_PREFIX}{name}", math.nan)

    def read_count(name: str) -> int:
        value = read_number(name)
        return int(min(max(value, 0), 2**31)) if math.isfinite(value) else 0

    if f"{_PREFIX}round" not in settings:
        return None
    return Divergence(
        read_count("round"),
        read_number("loss"),
        read_number("first_loss"),
        read_number("guess_loss"),
        read_count("clients"),
        read_count("cohort"),
    )
