"""Detects training that diverged, so that the federation stops with the reason and a remedy.

Training has diverged when both the loss and the accuracy say so.

- Loss: after round 1, the median training loss of three rounds in a row is above 5 max(ln C, 1), and is at
  least .9 of the loss of round 1. ln C is the cross-entropy of a model that guesses among C classes.
- Accuracy, if clients report it: at most a quarter of the way from guessing (1 / C) to 1.

A federation of two or three rounds does not have three rounds after the first. Its last round decides. It
diverged when the loss of every round after the first is above the same bound and above the loss of round 1. A
single round never stops a federation, because there is no loss to compare with.

A federation that trained to no effect is not stopped. It ends with a warning, see `explain_no_progress`. It
is stopped only if a range test raised its learning rate, because it then starts again with the lower rate.
This takes five rounds in a row, after round 1, whose losses are all at least .99 of the loss of round 1, with
an accuracy as above. If clients report no accuracy, the losses also have to be at least .98 ln C. With much
momentum each client can learn although the mean of their models is no better than guessing.

Losses and accuracies are medians over the clients of a round, so fewer than half of the clients can neither
stop a federation nor hide that it diverged. The federation also stops when clients have no finite loss, if
they are at least half of a round and the round cannot reach its quorum without them.

The bounds must never stop honest training. They come from 142 recorded runs of all algorithms. Their highest
loss over three rounds in a row was 1.7 ln C. The highest loss of a single round was 2.7 ln C, of FedMix,
whose loss has a term for the gate. The loss of round 1 alone decides nothing, because it is already high with
a learning rate of 100. The loss alone decides nothing either. A linear model with that rate has a falling
loss of 30 ln C and an accuracy of 95%. Of 77 recorded runs with rates of a range test, none had five such
rounds.

For another task than classification, the loss of a model that guesses is unknown, and the loss of round 1
takes its place.

A client whose loss is not finite has no update to send.

With `[privacy]` the loss stops nothing. Losses have no noise, so a stop would reveal them.
"""

import math
from collections.abc import Sequence

from edgefl.protocol.wire.divergence_message import Divergence

LOSS_FACTOR = 5.0
MAX_LOSS_SHARE = 0.9
ROUNDS_IN_A_ROW = 3
ROUNDS_WITHOUT_EFFECT = 5
ACCURACY_SHARE = 0.25
GUESS_SHARE = 0.98
"""A loss of at least this share of ln C is not better than guessing."""
NO_FALL_SHARE = 0.99
"""A loss of at least this share of an earlier loss has not fallen."""


def find_divergence(
    losses: Sequence[float | None],
    num_classes: int,
    accuracy: float = math.nan,
    *,
    rounds: int = 0,
    can_lower_rate: bool = False,
) -> Divergence | None:
    """Return the evidence that training diverged, or None when it did not.

    Args:
        losses: median training loss of each round, from round 1 on. None or NaN for a round that has no
            loss.
        num_classes: number of classes, C. 0 for another task than classification.
        accuracy: median accuracy that clients report in the last round, from 0 to 1. NaN when fewer than half
            of them report an accuracy.
        rounds: number of rounds of the federation. 0 when it is unknown or unlimited.
        can_lower_rate: whether the federation can start again with a lower rate. Training without any effect
            then counts as diverged.
    """
    loss_values = _as_floats(losses)
    guess_loss = _estimate_guess_loss(loss_values, num_classes)
    in_a_row, fall = ROUNDS_IN_A_ROW, MAX_LOSS_SHARE
    if len(loss_values) == rounds and 1 < rounds <= ROUNDS_IN_A_ROW:
        in_a_row, fall = rounds - 1, 1.0
    if len(loss_values) <= in_a_row or _is_accurate(accuracy, num_classes):
        return None
    first = loss_values[0]
    limit = max(_compute_loss_limit(guess_loss, num_classes), fall * first if math.isfinite(first) else 0.0)
    is_high = all(loss > limit for loss in loss_values[-in_a_row:])
    has_no_effect = can_lower_rate and _has_no_effect(loss_values, guess_loss, num_classes, accuracy)
    if not is_high and not has_no_effect:
        return None
    return Divergence(
        round=len(loss_values),
        loss=loss_values[-1],
        first_loss=first,
        guess_loss=guess_loss,
        flat_rounds=0 if is_high else ROUNDS_WITHOUT_EFFECT,
    )


def explain_no_progress(
    losses: Sequence[float | None], num_classes: int, accuracy: float = math.nan
) -> str | None:
    """Return a warning when a federation trained to no effect, or None when it learned something.

    The last three rounds decide, or all rounds of a shorter federation. Training had no effect in two cases:

    - Their losses are at least .98 ln C, and the last of them is at least .99 of the first of them. A single
      round does not count, because a model that has just begun to learn is near ln C too.
    - Their losses are above 5 max(ln C, 1), and the last one is at least .9 of the loss of round 1.

    For another task than classification, the loss of round 1 takes the place of ln C. Clients may then have
    converged in round 1, so the warning does not state that training had no effect.

    Args:
        losses: median training loss of each round, see `find_divergence`.
        num_classes: number of classes, C. 0 for another task than classification.
        accuracy: median accuracy that clients report in the last round, from 0 to 1. NaN when fewer than half
            of them report an accuracy.
    """
    finite_losses = [loss for loss in _as_floats(losses) if math.isfinite(loss)]
    if not finite_losses or _is_accurate(accuracy, num_classes):
        return None
    first, last, window = finite_losses[0], finite_losses[-1], finite_losses[-ROUNDS_IN_A_ROW:]
    guess_loss = _estimate_guess_loss(finite_losses, num_classes)
    if min(window) > _compute_loss_limit(guess_loss, num_classes):
        has_effect = last < MAX_LOSS_SHARE * first
    else:
        is_at_guess = len(finite_losses) > 1 and min(window) >= GUESS_SHARE * guess_loss
        has_effect = not is_at_guess or last < NO_FALL_SHARE * window[0]
    if has_effect:
        return None
    if not num_classes:
        return _explain_flat_loss(first, last)
    remedy = (
        "lower learning_rate of [algorithm], or check the data's scale"
        if last > guess_loss / GUESS_SHARE
        else "check labels and data, change learning_rate of [algorithm], or train for more rounds"
    )
    return (
        f"training has had no effect: the median loss of the last round is {last:.4g}, it was {first:.4g} in "
        f"round 1, and a model that guesses has {guess_loss:.3g}; {remedy}"
    )


def _has_no_effect(losses: Sequence[float], guess_loss: float, num_classes: int, accuracy: float) -> bool:
    """Return whether the last rounds of a classification are no better than round 1.

    Args:
        guess_loss: ln C.
        num_classes: number of classes. 0 for another task, whose clients may have converged in round 1.
        accuracy: an accuracy near guessing, or NaN.
    """
    if not num_classes or len(losses) <= ROUNDS_WITHOUT_EFFECT:
        return False
    limit = max(NO_FALL_SHARE * losses[0], GUESS_SHARE * guess_loss if math.isnan(accuracy) else 0.0)
    return all(loss >= limit for loss in losses[-ROUNDS_WITHOUT_EFFECT:])


def _explain_flat_loss(first: float, last: float) -> str:
    """Return the warning for another task than classification, where the loss of guessing is unknown."""
    remedy = (
        "lower learning_rate of [algorithm], or check the data's scale"
        if last > first / GUESS_SHARE
        else "the models may have converged in round 1; if their figures are low, check the data, change "
        "learning_rate of [algorithm], or train for more rounds"
    )
    return (
        f"the loss has not fallen: the median loss of the last round is {last:.4g}, it was {first:.4g} in "
        f"round 1; {remedy}"
    )


def _as_floats(losses: Sequence[float | None]) -> list[float]:
    return [math.nan if loss is None else loss for loss in losses]


def _estimate_guess_loss(losses: Sequence[float], num_classes: int) -> float:
    """Return the loss of a model that guesses: ln C, or the first loss for another task."""
    return math.log(num_classes) if num_classes else losses[0] if losses else math.nan


def _compute_loss_limit(guess_loss: float, num_classes: int) -> float:
    return LOSS_FACTOR * (max(guess_loss, 1.0) if num_classes else guess_loss)


def _is_accurate(accuracy: float, num_classes: int) -> bool:
    """Return whether an accuracy is well above guessing. NaN is not."""
    chance = 1 / num_classes if num_classes else 0.0
    return accuracy > chance + ACCURACY_SHARE * (1 - chance)
