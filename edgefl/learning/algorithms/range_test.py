"""Finds the learning rate of a federation, before the first round.

It is an algorithm of one round, so simulator, aggregator and devices run it as any other. A few clients
train from the initial weights for the epochs of one round, once with each rate that they try. They report the
loss of the last epoch for each rate, which is a vote for one rate. The result is the lower median of the
votes, so fewer than half of the clients cannot move it beyond the votes of the others. `docs/threat-model.md`
lists what a client sends.

A rate that trains one client well may still be too large for the mean of all clients. If the federation
diverges, it starts again with the algorithm's own rate.

Source: Smith, Cyclical Learning Rates for Training Neural Networks, WACV 2017, section 3.3.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace

import numpy as np

from edgefl.base.errors import DataError, DivergedError, StateError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Array, Broadcast, ClientState, ServerState, Shard, StateRecord, Update, Weights
from edgefl.learning.algorithms.base import PHASE_DONE, PHASE_MEASURE, Algorithm
from edgefl.learning.algorithms.early import make_early_algorithm
from edgefl.learning.algorithms.entry import Entry
from edgefl.learning.algorithms.names import RECEIVED_PREFIX, with_prefix
from edgefl.learning.algorithms.options import extend_epochs
from edgefl.program.learner.base import Learner
from edgefl.program.plan.measured_values import with_learning_rate
from edgefl.program.plan.spec import Plan, PlanSpec, SignatureSpec, TensorSpec

RANGE_TEST_ALGORITHM = "range-test"
"""Name of the algorithm. No configuration can choose it."""
TRAIN = "train"
"""The signature that trains the model that the clients share."""
RATE = "learning_rate"
START = "start"
"""The name of the model from which each client trains."""
LOSSES = "losses"
"""The name of the model, and of its only tensor, that stands for the losses of a client."""
FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)
"""The rates to try, as multiples of the algorithm's rate."""
DEFAULT = FACTORS.index(1.0)
CLEAR_SHARE = 0.95
"""A loss of less than this share of another one is clearly lower."""
ENOUGH_SHARE = 0.5
"""A model whose loss is below this share of ln C after one round needs no ten times larger rate."""
UNTRIED = 1e9
"""Stands for the loss of a rate that diverged, or that a client did not try."""
MAX_TRIALS = 4
"""Maximum number of rates that a client tries, see `try_rates`."""
MIN_TEST_STEPS = 30
"""Minimum number of steps with each rate. After fewer, the losses are still near the one of the start."""
MAX_CLIENTS = 9


@dataclass(frozen=True)
class ChosenRate(StateRecord):
    """The rate that the range test found.

    Attributes:
        index: its index among `FACTORS`. None before the range test.
    """

    index: int | None = None


@dataclass(frozen=True)
class RangeTestOptions:
    """Options of the range test. They have the values of the federation's algorithm.

    Attributes:
        epochs: passes over the client's samples with each rate, more if they are few.
        learning_rate: the step size that `FACTORS` multiply.
        momentum: momentum of SGD.
        weight_decay: decoupled weight decay of SGD.
    """

    epochs: int = 5
    learning_rate: float = 0.01
    momentum: float = 0.5
    weight_decay: float = 0.0


def list_rates(spec: PlanSpec) -> tuple[float, ...]:
    """Return the rates to try, in ascending order.

    Args:
        spec: the spec of the plan of the federation, or of the range test.
    """
    return tuple(float(f"{spec.options[RATE] * factor:.6g}") for factor in FACTORS)


def prepare_range_test(plan: Plan, initial: Weights, seed: int) -> tuple[Plan, Algorithm, ServerState]:
    """Return the plan, the algorithm and the first server state of the range test before a federation.

    Args:
        plan: the plan of the federation, with mean and std if its model normalizes its input.
    """
    spec = plan.spec
    tested = replace(
        plan,
        spec=replace(
            spec,
            algorithm=RANGE_TEST_ALGORITHM,
            options={
                field.name: spec.options[field.name]
                for field in fields(RangeTestOptions)
                if field.name in spec.options
            },
            weights=(*spec.weights, TensorSpec(LOSSES, (len(FACTORS),))),
        ),
    )
    names = list_start_weights(spec.find_signature(TRAIN))
    algorithm = make_range_test(None, RangeTestOptions())
    start = {name: initial[name] for name in names}
    return tested, algorithm, algorithm.init(start, derive_rng(seed, 0, "init"))


def list_start_weights(signature: SignatureSpec) -> tuple[str, ...]:
    """Return the names of the weights of the model that a signature trains.

    Args:
        signature: the signature. Received weights of a penalty are not among the weights of its model.
    """
    tensors = (*signature.trained, *signature.frozen)
    return tuple(tensor.name for tensor in tensors if not tensor.name.startswith(RECEIVED_PREFIX))


def draw_test_clients(clients: Iterable[str], seed: int) -> tuple[str, ...]:
    """Return the clients that take part in the range test, sorted."""
    rng = derive_rng(seed, 0, RANGE_TEST_ALGORITHM)
    return tuple(sorted(rng.permutation(sorted(clients))[:MAX_CLIENTS].tolist()))


def with_chosen_rate(plan: Plan, state: ServerState) -> Plan:
    """Return the plan of the federation with the rate that the range test found.

    Args:
        state: the server state after the range test.

    Raises:
        StateError: the state is from before the range test.
    """
    index = state.read_record(ChosenRate).index
    if index is None:
        raise StateError("this state has no result of a range test; run the range test again")
    return with_learning_rate(plan, list_rates(plan.spec)[index])


def keep_rate(state: ServerState) -> ServerState:
    """Return the server state after a range test that found the algorithm's own rate.

    Args:
        state: the first server state of the range test.
    """
    return replace(state, round=state.round + 1, phase=PHASE_DONE, models={}).with_record(ChosenRate(DEFAULT))


def describe_lowered_rate(error: DivergedError, spec: PlanSpec, configured: PlanSpec) -> str:
    """Return a warning that a federation starts again with the algorithm's own rate.

    Args:
        error: how the training diverged.
        spec: the spec of the plan with the rate that the range test chose.
        configured: the spec with the `learning_rate` of the configuration.
    """
    reason = str(error).partition(";")[0]
    return (
        f"{reason}; the range test chose learning_rate = {spec.options[RATE]:g}, and the federation starts "
        f"again with {configured.options[RATE]:g}"
    )


def try_rates(train: Callable[[int], float], enough: float = 0.0) -> Array:
    """Return the losses of the rates that are worth a trial.

    Larger rates are tried as long as each has a clearly lower loss than the one before, and the loss is not
    low enough. If not even the first of them has, or the algorithm's rate diverges, smaller rates are tried
    in the same way.

    Args:
        train: returns the loss after training with the rate of an index of `FACTORS`.
        enough: a loss that no further rate has to lower.

    Returns:
        Losses of shape (len(FACTORS),), float32, with `UNTRIED` for the other rates.
    """
    losses = np.full(len(FACTORS), UNTRIED, np.float32)
    losses[DEFAULT] = train(DEFAULT)
    for step in (1, -1) if losses[DEFAULT] < UNTRIED else (-1,):
        index = DEFAULT + step
        while 0 <= index < len(FACTORS):
            losses[index] = train(index)
            if losses[index] >= CLEAR_SHARE * losses[index - step] or losses[index] <= enough:
                break
            index += step
        if losses[DEFAULT + step] < CLEAR_SHARE * losses[DEFAULT]:
            break
    return losses


def choose_rate(losses: Array) -> int:
    """Return the index of the rate that a client votes for.

    It is the algorithm's rate, unless another one has a clearly lower loss. Among the rates whose loss is not
    clearly above the lowest, the smallest is chosen.

    Args:
        losses: losses of shape (len(FACTORS),), with `UNTRIED` for rates that were not tried. They come from
            the network, so any value is accepted.
    """
    figures = np.clip(np.nan_to_num(losses, nan=UNTRIED), 0.0, UNTRIED).astype(np.float64)
    lowest = float(figures.min())
    if lowest >= CLEAR_SHARE * figures[DEFAULT]:
        return DEFAULT
    return int(np.flatnonzero(figures <= lowest / CLEAR_SHARE)[0])


def make_range_test(learner: Learner | None, options: RangeTestOptions) -> Algorithm:
    """Return the algorithm.

    Args:
        learner: runs the plan. The aggregator passes None.
        options: the options of the federation's algorithm.
    """

    def init(initial: Weights, rng: np.random.Generator) -> ServerState:
        zeros = np.zeros(len(FACTORS), np.float32)
        return ServerState(round=1, phase=PHASE_MEASURE, models={START: initial, LOSSES: {LOSSES: zeros}})

    def local_update(
        broadcast: Broadcast, state: ClientState, shard: Shard, client_id: str, rng: np.random.Generator
    ) -> tuple[Update, ClientState]:
        assert learner is not None
        start = broadcast.models[START]
        signature = learner.spec.find_signature(TRAIN)
        hyper = {name: getattr(options, name) for name in signature.hyper if hasattr(options, name)}
        rates = list_rates(learner.spec)
        epochs = extend_epochs(options.epochs, MIN_TEST_STEPS, len(shard.y_train), signature.batch_size)
        draws = int(rng.integers(2**63))

        def train(index: int) -> float:
            try:
                _, loss = learner.fit(
                    TRAIN,
                    {**start, **with_prefix(RECEIVED_PREFIX, start)},
                    {"x": shard.x_train},
                    shard.y_train,
                    epochs=epochs,
                    rng=np.random.default_rng(draws),  # the same batches with each rate
                    hyper={**hyper, RATE: rates[index]},
                )
            except DivergedError:
                return UNTRIED
            return min(loss, UNTRIED)

        is_classification = learner.spec.is_classification
        losses = try_rates(train, ENOUGH_SHARE * math.log(shard.num_classes) if is_classification else 0.0)
        sent = {LOSSES: losses - broadcast.models[LOSSES][LOSSES]}
        update = Update(
            client_id=client_id,
            round=broadcast.round,
            num_samples=len(shard.y_train),
            deltas={LOSSES: sent},
        )
        return update, state

    def aggregate(state: ServerState, updates: Iterable[Update]) -> ServerState:
        votes = sorted(choose_rate(update.deltas[LOSSES][LOSSES]) for update in updates)
        if not votes:
            raise DataError(
                "no client tried a learning rate; set learning_rate in [algorithm] of federation.toml, and "
                "range_test = false"
            )
        chosen = votes[(len(votes) - 1) // 2]
        return keep_rate(state).with_record(ChosenRate(chosen))

    return make_early_algorithm(RANGE_TEST_ALGORITHM, LOSSES, init, local_update, aggregate)


RANGE_TEST_ENTRY = Entry(
    options=RangeTestOptions,
    factory=make_range_test,
    objectives=lambda network, options: (),
    source="Smith, Cyclical Learning Rates for Training Neural Networks, WACV 2017",
)
