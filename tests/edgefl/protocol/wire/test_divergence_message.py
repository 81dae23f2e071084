"""A divergence survives the numbers of a state, and any received numbers can be explained."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.protocol.wire.divergence_message import (
    Divergence,
    FederationDivergedError,
    encode_divergence,
    explain_divergence,
    read_divergence,
)
from edgefl.protocol.wire.messages import STOPPED_PHASE, State


def make_state(phase: str, **settings: float) -> State:
    return State(
        federation="kitchen",
        session="s",
        phase=phase,
        round=0,
        rounds=20,
        cohort_size=0,
        deadline_s=120.0,
        plan="p",
        ts=1.0,
        settings=settings,
    )


@pytest.mark.parametrize(
    ("divergence", "sentence"),
    [
        (
            Divergence(round=9, loss=73.8, first_loss=75.21, guess_loss=math.log(10)),
            "training diverged in round 9: the median loss is 73.8, it was 75.21 in round 1, and a model "
            "that guesses has 2.3; lower learning_rate of [algorithm]",
        ),
        (
            Divergence(round=1, clients=2, cohort=3),
            "training diverged in round 1: 2 of 3 clients have a loss that is no finite number; lower",
        ),
        (
            Divergence(round=6, loss=1.48, first_loss=1.47, guess_loss=math.log(10), flat_rounds=5),
            "training has had no effect until round 6: the median losses of the last 5 rounds are not below "
            "the loss of round 1, 1.47; lower learning_rate of [algorithm]",
        ),
    ],
)
def test_divergence_round_trips_through_numbers_of_the_last_state(divergence, sentence):
    settings = encode_divergence(divergence)
    assert all(math.isfinite(value) for value in settings.values())
    result = read_divergence(make_state(STOPPED_PHASE, min_clients=2.0, **settings))
    assert result is not None
    assert explain_divergence(result).startswith(sentence)
    assert explain_divergence(result) == str(FederationDivergedError(divergence))
    assert read_divergence(make_state(STOPPED_PHASE, min_clients=2.0)) is None
    assert read_divergence(make_state("federate", **settings)) is None


@given(values=st.lists(st.floats(), min_size=7, max_size=7))
def test_any_received_divergence_numbers_can_be_explained(values):
    names = ("round", "loss", "first_loss", "guess_loss", "clients", "cohort", "flat_rounds")
    settings = {f"diverged_{name}": value for name, value in zip(names, values, strict=True)}
    result = read_divergence(make_state(STOPPED_PHASE, **settings))
    assert result is not None
    assert len(explain_divergence(result)) < 400
