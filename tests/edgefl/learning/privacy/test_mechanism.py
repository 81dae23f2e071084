"""DP-FedAvg by hand, the influence of one client on a round, and the algorithms that support it."""

import hashlib
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.config import FederationConfig, PrivacyConfig, parse_config
from edgefl.base.errors import ConfigError
from edgefl.base.rng import derive_rng
from edgefl.base.types import ClientState, ServerState, Update
from edgefl.learning.algorithms import REGISTRY, make_algorithm
from edgefl.learning.algorithms.arithmetic import average_by_group
from edgefl.learning.checkpoint import encode_server_state
from edgefl.learning.privacy.mechanism import check_privacy, draw_cohort, with_privacy
from edgefl.learning.privacy.noise import derive_noise_key, draw_normal
from edgefl.program.plan.spec import Plan
from edgefl.simulation.simulate import simulate
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec

KEY = derive_noise_key(7)
CONFIG = FederationConfig(
    clients_per_round=2, privacy=PrivacyConfig(clip=1.0, noise_multiplier=0.5, population=4, delta=1e-5)
)
QUIET = FederationConfig(
    clients_per_round=2, privacy=PrivacyConfig(clip=1.0, noise_multiplier=1e-12, population=4, delta=1e-5)
)
"""Noise so small that a model changes by the mean of the clipped updates."""
OPTIONS = {
    "aem": {"num_experts": 2},
    "clustered": {"clustering": False},
    "fedap": {"clustering": False},
    "fedem": {"num_experts": 2},
    "ifca": {"num_experts": 2},
}
"""Options with which an algorithm uses sums only, or a smaller one of them."""
SUM_BASED = {
    name: OPTIONS.get(name, {})
    for name in REGISTRY
    if make_algorithm(name, None, OPTIONS.get(name, {})).by_sums
}
"""That these are all is shown by the pages of the algorithms, see tests/test_docs_pages.py."""
NOT_SUM_BASED = {
    "aem": {"patience": 2, "validation_share": 0.1},
    "clustered": {},
    "fedap": {},
    "fedavg": {"mean": "krum"},
    "pfl-mfe": {"clip_norm": 1.0},
    **{name: {} for name in REGISTRY if name not in SUM_BASED},
}


def make_plan(name, **options):
    spec = softmax_spec(
        name, inputs=4, features=4, classes=3, options=dict(REGISTRY[name].defaults) | {"epochs": 1} | options
    )
    return Plan(spec=spec, program=b"", template=b"")


def make_weights(spec):
    rng = np.random.default_rng(3)
    return {item.name: rng.normal(0, 0.3, item.shape).astype(np.float32) for item in spec.weights}


def make_delta(first, second, dtype=np.float32):
    """Return a delta whose head bias and kernel have these values, and which is zero elsewhere."""
    delta = {
        "trunk/kernel": np.zeros((4, 4), dtype),
        "head/kernel": np.zeros((4, 3), dtype),
        "head/bias": np.zeros(3, dtype),
    }
    delta["head/kernel"][0, 0] = first
    delta["head/bias"][0] = second
    return delta


def aggregate(updates, config=CONFIG, name="fedavg", **options):
    spec = make_plan(name, **options).spec
    algorithm = with_privacy(make_algorithm(name, None, spec.options), config, spec, KEY)
    state = algorithm.init(make_weights(spec), derive_rng(1, 0, "init"))
    return state, algorithm.aggregate(state, updates)


def compute_change(before, after):
    """Return the change of all models, float64, by model and weight."""
    return {
        f"{model}/{name}": after.models[model][name].astype(np.float64) - array
        for model, weights in before.models.items()
        for name, array in weights.items()
    }


def test_round_of_two_clients_is_clipped_averaged_and_noised():
    """(3, 4) has norm 5 and is clipped to (.6, .8). (.3, .4) has norm .5 and does not change.

    q N is 2, so the mean is (.45, .6) for all sample counts.
    """
    updates = [
        Update(client_id="a", round=1, num_samples=999, deltas={"global": make_delta(3.0, 4.0)}),
        Update(client_id="b", round=1, num_samples=1, deltas={"global": make_delta(0.3, 0.4)}),
    ]
    change = compute_change(*aggregate(updates))
    clip_factor = 1.0 / 5.0
    total = make_delta(
        3.0 * clip_factor + float(np.float32(0.3)), 4.0 * clip_factor + float(np.float32(0.4)), np.float64
    )
    serialized = b"".join(
        f"global/{name}\n".encode() + total[name].tobytes()
        for name in ("head/bias", "head/kernel", "trunk/kernel")
    )
    digest = hashlib.sha256(serialized).hexdigest()
    for name in ("trunk/kernel", "head/kernel", "head/bias"):
        noise = (
            0.5
            * 1.0
            / 2
            * draw_normal(
                KEY, f"noise of round 1 on global/{name} for {digest}", change[f"global/{name}"].shape
            )
        )
        mean = {"head/kernel": 0.45, "head/bias": 0.6, "trunk/kernel": 0.0}[name]
        expected = noise + np.where(np.arange(noise.size).reshape(noise.shape) == 0, mean, 0.0)
        np.testing.assert_allclose(change[f"global/{name}"], expected, atol=1e-6)
    # The denominator is the expected cohort, not the actual one. An empty cohort is a round too.
    both, alone = (compute_change(*aggregate(item, QUIET)) for item in (updates, updates[:1]))
    np.testing.assert_allclose(both["global/head/bias"][0] - alone["global/head/bias"][0], 0.4 / 2, atol=1e-6)
    empty_cohort = compute_change(*aggregate([]))
    assert np.abs(empty_cohort["global/head/bias"]).max() > 0


def test_two_releases_of_one_round_have_independent_noise():
    """A backup is restored, and the round runs again without one client.

    The difference of the models does not reveal the update of that client.
    """
    updates = [
        Update(client_id="a", round=1, num_samples=1, deltas={"global": make_delta(0.3, 0.4)}),
        Update(client_id="b", round=1, num_samples=1, deltas={"global": make_delta(0.1, 0.2)}),
    ]
    both, alone = (compute_change(*aggregate(item)) for item in (updates, updates[:1]))
    for name, exact in make_delta(0.1, 0.2).items():
        noisy = both[f"global/{name}"] - alone[f"global/{name}"]
        assert np.abs(noisy - exact / 2).max() > 0.05, "without noise"
    again = compute_change(*aggregate(updates))
    assert all(again[name].tobytes() == both[name].tobytes() for name in both)


@given(
    scale=st.sampled_from([0.0, 1e-3, 0.7, 30.0, 1e18]),
    seed=st.integers(0, 1000),
    expert=st.integers(0, 1),
    name=st.sampled_from(["fedavg", "ifca"]),
)
def test_one_client_changes_all_models_by_at_most_the_clip(scale, seed, expert, name):
    rng = np.random.default_rng(seed)

    def update(client_id, size, model):
        shapes = {item.name: item.shape for item in make_plan(name).spec.weights}
        return Update(
            client_id=client_id,
            round=1,
            num_samples=5,
            deltas={model: {n: (rng.normal(0, 1, s) * size).astype(np.float32) for n, s in shapes.items()}},
        )

    model = "global" if name == "fedavg" else f"expert{expert}"
    others = [update("a", 0.5, "global" if name == "fedavg" else "expert0"), update("b", 3.0, model)]
    options = {} if name == "fedavg" else {"num_experts": 2}
    changes = [
        compute_change(*aggregate(item, QUIET, name, **options))
        for item in (others, [*others, update("c", scale, model)])
    ]
    distance = np.sqrt(sum(np.square(changes[0][key] - changes[1][key]).sum() for key in changes[0]))
    assert distance <= 1.0 / 2 * (1 + 1e-5)
    if scale >= 30:
        assert distance >= 1.0 / 2 * (1 - 1e-4)


def test_non_finite_update_counts_as_zeros():
    bad = Update(client_id="a", round=1, num_samples=1, deltas={"global": make_delta(np.inf, np.nan)})
    state, after = aggregate([bad])
    assert encode_server_state(after) == encode_server_state(aggregate([])[1])
    assert state.round == 1


def test_noise_is_added_to_the_trained_weights_of_all_models(shards):
    """Weights that no client trains, such as a frozen trunk, are not released."""
    spec = make_plan("ifca", num_experts=3).spec
    signatures = tuple(
        replace(item, trained=tuple(t for t in item.trained if t.name != "trunk/kernel"))
        if item.name == "train"
        else item
        for item in spec.signatures
    )
    frozen = replace(spec, signatures=signatures)
    algorithm = with_privacy(make_algorithm("ifca", None, frozen.options), CONFIG, frozen, KEY)
    state = algorithm.init(make_weights(frozen), derive_rng(1, 0, "init"))
    full_delta = {name: np.ones_like(array) for name, array in state.models["expert1"].items()}
    change = compute_change(
        state,
        algorithm.aggregate(
            state, [Update(client_id="a", round=1, num_samples=1, deltas={"expert1": full_delta})]
        ),
    )
    for model in ("expert0", "expert1", "expert2"):
        assert not change[f"{model}/trunk/kernel"].any()
        assert change[f"{model}/head/kernel"].all()


@pytest.mark.parametrize("name", sorted(SUM_BASED))
def test_sum_based_algorithm_gives_the_same_models_from_means(name, shards):
    """Check `by_sums` on a round of real updates, and run a private federation to its end."""
    plan = make_plan(name, **SUM_BASED[name])
    learner = SoftmaxLearner(plan.spec)
    weights = make_weights(plan.spec)
    algorithm = make_algorithm(name, learner, plan.spec.options)
    assert algorithm.by_sums
    state = algorithm.init(weights, derive_rng(1, 0, "init"))
    updates = [
        algorithm.local_update(
            algorithm.broadcast(state, client), ClientState(), shard, client, derive_rng(1, 1, client)
        )[0]
        for client, shard in sorted(shards.items())
    ]
    means = average_by_group(
        (model, delta, u.num_samples) for u in updates for model, delta in u.deltas.items()
    )
    mean_update = Update(client_id="", round=1, num_samples=1, deltas=means)
    assert encode_models(algorithm.aggregate(state, updates)) == encode_models(
        algorithm.aggregate(state, [mean_update])
    )

    config = FederationConfig(
        rounds=2,
        clients_per_round=2,
        privacy=PrivacyConfig(clip=1.0, noise_multiplier=0.1, population=len(shards), delta=1e-5),
    )
    results = [simulate(plan, weights, shards, config, open_learner=lambda plan: learner) for _ in range(2)]
    assert encode_server_state(results[0].state) == encode_server_state(results[1].state)
    assert encode_models(results[0].state) != encode_models(
        simulate(plan, weights, shards, replace(config, seed=2), open_learner=lambda plan: learner).state
    )


def encode_models(state):
    return encode_server_state(ServerState(round=1, phase="", models=state.models))


def test_algorithms_that_are_not_sum_based_are_refused():
    assert OPTIONS.keys() | {"fedavg"} <= SUM_BASED.keys()
    assert {"cfl", "fedmix", "local"} <= NOT_SUM_BASED.keys()
    for name, options in NOT_SUM_BASED.items():
        with pytest.raises(ConfigError, match=f"does not work with {name}"):
            check_privacy(make_algorithm(name, None, options), CONFIG)
        check_privacy(make_algorithm(name, None, options), FederationConfig())


def test_algorithm_is_unchanged_without_the_privacy_table():
    spec = make_plan("fedavg").spec
    algorithm = make_algorithm("fedavg", None, {})
    assert with_privacy(algorithm, FederationConfig(), spec, b"") is algorithm


def test_clients_are_drawn_independently_at_the_sampling_rate():
    ids = [f"c{i:03}" for i in range(100)]
    config = FederationConfig(
        clients_per_round=10,
        privacy=PrivacyConfig(clip=1.0, noise_multiplier=1.0, population=100, delta=1e-5),
    )
    draw = partial(draw_cohort, config, KEY)
    cohorts = [draw(ServerState(round=number, phase="federate", models={}), ids) for number in range(1, 301)]
    sizes = [len(cohort) for cohort in cohorts]
    assert abs(np.mean(sizes) - 10) < 0.7
    assert abs(np.var(sizes) - 9) < 3  # N q (1 - q), whereas a sample of fixed size has no variance
    num_rounds_by_client = [sum(client in cohort for cohort in cohorts) for client in ids]
    assert min(num_rounds_by_client) > 10
    assert max(num_rounds_by_client) < 60
    assert draw(ServerState(round=1, phase="federate", models={}), reversed(ids)) == cohorts[0]
    without_sampling = FederationConfig(
        privacy=PrivacyConfig(clip=1.0, noise_multiplier=1.0, population=100, delta=1e-5)
    )
    assert draw_cohort(
        without_sampling, KEY, ServerState(round=1, phase="federate", models={}), ids
    ) == tuple(ids)


def test_rounds_with_an_empty_cohort_are_completed(shards):
    plan = make_plan("fedavg")
    config = FederationConfig(
        rounds=6,
        clients_per_round=1,
        privacy=PrivacyConfig(clip=1.0, noise_multiplier=0.1, population=len(shards), delta=1e-5),
    )
    sizes = []
    result = simulate(
        plan,
        make_weights(plan.spec),
        shards,
        config,
        open_learner=lambda plan: SoftmaxLearner(plan.spec),
        progress=lambda state, record: sizes.append(len(record.updates)),
    )
    assert (min(sizes), result.state.round) == (0, 7)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("clip = 1.0", "expected both above 0"),
        ("noise_multiplier = 1.0", "expected both above 0"),
        ("clip = -1.0", "clip is -1.0"),
        ("clip = nan\nnoise_multiplier = 1", "clip is nan"),
        ("clip = 1\nnoise_multiplier = 1", "population is 0"),
        ("clip = 1\nnoise_multiplier = 1\npopulation = 100\ndelta = 0.02", "below 1 / population = 0.01"),
        (
            "clip = 1\nnoise_multiplier = 1\npopulation = 4\n[federation]\nclients_per_round = 5",
            "at most the population",
        ),
        ("noise_multipler = 1", "did you mean 'noise_multiplier'"),
    ],
)
def test_an_impossible_configuration_is_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_config(f"[privacy]\n{text}")


def test_simulator_requires_population_equal_to_its_clients(shards):
    plan = make_plan("fedavg")
    config = FederationConfig(privacy=PrivacyConfig(clip=1.0, noise_multiplier=1.0, population=5, delta=1e-5))
    with pytest.raises(ConfigError, match="population is 5, expected 3"):
        simulate(
            plan, make_weights(plan.spec), shards, config, open_learner=lambda plan: SoftmaxLearner(plan.spec)
        )


def test_noise_does_not_depend_on_the_order_of_weights():
    """A state that was read from a file may have its weights in another order."""
    spec = make_plan("fedavg").spec
    algorithm = with_privacy(make_algorithm("fedavg", None, spec.options), CONFIG, spec, KEY)
    state = algorithm.init(make_weights(spec), derive_rng(1, 0, "init"))
    reordered = replace(
        state, models={name: dict(reversed(weights.items())) for name, weights in state.models.items()}
    )
    update = Update(client_id="a", round=1, num_samples=1, deltas={"global": make_delta(0.3, 0.4)})
    first, second = (algorithm.aggregate(item, [update]).models["global"] for item in (state, reordered))
    assert {name: array.tobytes() for name, array in first.items()} == {
        name: array.tobytes() for name, array in second.items()
    }
