"""DP-FedAvg by hand, the influence of one client on a round, and the algorithms that support it."""

import hashlib
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.algorithms import REGISTRY, make_algorithm
from edgefl.algorithms.arithmetic import average_by_group
from edgefl.config import FederationConfig, PrivacyConfig, parse_config
from edgefl.errors import ConfigError
from edgefl.plan.spec import Plan
from edgefl.privacy.mechanism import check_privacy, draw_cohort, with_privacy
from edgefl.privacy.noise import derive_noise_key, draw_normal
from edgefl.rng import derive_rng
from edgefl.simulation.simulate import simulate
from edgefl.storage.checkpoint import encode_server_state
from edgefl.types import ClientState, ServerState, Update
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec

KEY = derive_noise_key(7)
CONFIG = FederationConfig(clients_per_round=2, privacy=PrivacyConfig(1.0, 0.5, 4, 1e-5))
QUIET = FederationConfig(clients_per_round=2, privacy=PrivacyConfig(1.0, 1e-12, 4, 1e-5))
"""So little noise that the change of a model is that of the sum."""
SUMS = {
    "aem": {"num_experts": 2},
    "apfl": {},
    "biased-fedavg": {},
    "clustered": {"clustering": False},
    "ditto": {},
    "fedap": {"clustering": False},
    "fedavg": {},
    "fedprox": {},
    "ifca": {"num_experts": 2},
    "lg-fedavg": {},
    "pfl-fb": {},
    "pfl-ft": {},
    "pfl-mf": {},
    "pfl-mfe": {},
}
MORE_THAN_SUMS = {
    "aem": {"patience": 2},
    "clustered": {},
    "fedap": {},
    "fedavg": {"mean": "krum"},
    "pfl-mfe": {"clip_norm": 1.0},
    "fedmix": {},
    "fedmix-permutation": {},
    "local": {},
}


def plan(name, **options):
    spec = softmax_spec(
        name, inputs=4, features=4, classes=3, options=dict(REGISTRY[name].defaults) | {"epochs": 1} | options
    )
    return Plan(spec, b"", b"")


def initial(spec):
    rng = np.random.default_rng(3)
    return {item.name: rng.normal(0, 0.3, item.shape).astype(np.float32) for item in spec.weights}


def two_weights(first, second, dtype=np.float32):
    """Return a delta whose head bias and kernel have these values, and which is zero elsewhere."""
    delta = {
        "trunk/kernel": np.zeros((4, 4), dtype),
        "head/kernel": np.zeros((4, 3), dtype),
        "head/bias": np.zeros(3, dtype),
    }
    delta["head/kernel"][0, 0] = first
    delta["head/bias"][0] = second
    return delta


def aggregated(updates, config=CONFIG, name="fedavg", **options):
    spec = plan(name, **options).spec
    algorithm = with_privacy(make_algorithm(name, None, spec.options), config, spec, KEY)
    state = algorithm.init(initial(spec), derive_rng(1, 0, "init"))
    return state, algorithm.aggregate(state, updates)


def moved_by(before, after):
    """Return the change of all models, float64, by model and weight."""
    return {
        f"{model}/{name}": after.models[model][name].astype(np.float64) - array
        for model, weights in before.models.items()
        for name, array in weights.items()
    }


def test_a_round_of_two_clients_by_hand():
    """(3, 4) has norm 5 and is cut to (.6, .8). (.3, .4) has norm .5 and does not change.

    q N is 2, so the mean is (.45, .6) for all sample counts.
    """
    updates = [
        Update("a", 1, 999, {"global": two_weights(3.0, 4.0)}),
        Update("b", 1, 1, {"global": two_weights(0.3, 0.4)}),
    ]
    change = moved_by(*aggregated(updates))
    fifth = 1.0 / 5.0
    total = two_weights(
        3.0 * fifth + float(np.float32(0.3)), 4.0 * fifth + float(np.float32(0.4)), np.float64
    )
    written = b"".join(
        f"global/{name}\n".encode() + total[name].tobytes()
        for name in ("head/bias", "head/kernel", "trunk/kernel")
    )
    digest = hashlib.sha256(written).hexdigest()
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
    both, alone = (moved_by(*aggregated(item, QUIET)) for item in (updates, updates[:1]))
    np.testing.assert_allclose(both["global/head/bias"][0] - alone["global/head/bias"][0], 0.4 / 2, atol=1e-6)
    nobody = moved_by(*aggregated([]))
    assert np.abs(nobody["global/head/bias"]).max() > 0


def test_two_releases_of_one_round_have_unrelated_noise():
    """A backup is restored, and the round runs again with one client less.

    The difference of the models is not that client's update.
    """
    updates = [
        Update("a", 1, 1, {"global": two_weights(0.3, 0.4)}),
        Update("b", 1, 1, {"global": two_weights(0.1, 0.2)}),
    ]
    both, alone = (moved_by(*aggregated(item)) for item in (updates, updates[:1]))
    for name, exact in two_weights(0.1, 0.2).items():
        noisy = both[f"global/{name}"] - alone[f"global/{name}"]
        assert np.abs(noisy - exact / 2).max() > 0.05, "without noise"
    again = moved_by(*aggregated(updates))
    assert all(again[name].tobytes() == both[name].tobytes() for name in both)


@given(
    scale=st.sampled_from([0.0, 1e-3, 0.7, 30.0, 1e18]),
    seed=st.integers(0, 1000),
    expert=st.integers(0, 1),
    name=st.sampled_from(["fedavg", "ifca"]),
)
def test_one_client_moves_all_models_together_by_no_more_than_the_clip(scale, seed, expert, name):
    rng = np.random.default_rng(seed)

    def update(client_id, size, model):
        shapes = {item.name: item.shape for item in plan(name).spec.weights}
        return Update(
            client_id,
            1,
            5,
            {model: {n: (rng.normal(0, 1, s) * size).astype(np.float32) for n, s in shapes.items()}},
        )

    model = "global" if name == "fedavg" else f"expert{expert}"
    others = [update("a", 0.5, "global" if name == "fedavg" else "expert0"), update("b", 3.0, model)]
    options = {} if name == "fedavg" else {"num_experts": 2}
    changes = [
        moved_by(*aggregated(item, QUIET, name, **options))
        for item in (others, [*others, update("c", scale, model)])
    ]
    distance = np.sqrt(sum(np.square(changes[0][key] - changes[1][key]).sum() for key in changes[0]))
    assert distance <= 1.0 / 2 * (1 + 1e-5)
    if scale >= 30:
        assert distance >= 1.0 / 2 * (1 - 1e-4)


def test_an_update_that_is_not_finite_counts_as_zeros():
    bad = Update("a", 1, 1, {"global": two_weights(np.inf, np.nan)})
    state, after = aggregated([bad])
    assert encode_server_state(after) == encode_server_state(aggregated([])[1])
    assert state.round == 1


def test_noise_goes_on_every_model_and_only_on_what_is_trained(shards):
    """Weights that no client trains, such as a frozen trunk, are not released."""
    spec = plan("ifca", num_experts=3).spec
    signatures = tuple(
        replace(item, trained=tuple(t for t in item.trained if t.name != "trunk/kernel"))
        if item.name == "train"
        else item
        for item in spec.signatures
    )
    frozen = replace(spec, signatures=signatures)
    algorithm = with_privacy(make_algorithm("ifca", None, frozen.options), CONFIG, frozen, KEY)
    state = algorithm.init(initial(frozen), derive_rng(1, 0, "init"))
    cheat = {name: np.ones_like(array) for name, array in state.models["expert1"].items()}
    change = moved_by(state, algorithm.aggregate(state, [Update("a", 1, 1, {"expert1": cheat})]))
    for model in ("expert0", "expert1", "expert2"):
        assert not change[f"{model}/trunk/kernel"].any()
        assert change[f"{model}/head/kernel"].all()


@pytest.mark.parametrize("name", sorted(SUMS))
def test_what_goes_by_sums_makes_the_same_of_updates_and_of_their_means(name, shards):
    """The law behind `by_sums`, on a round of real updates. A private federation with it runs to its end."""
    the_plan = plan(name, **SUMS[name])
    learner = SoftmaxLearner(the_plan.spec)
    weights = initial(the_plan.spec)
    algorithm = make_algorithm(name, learner, the_plan.spec.options)
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
    one = Update("", 1, 1, means)
    assert models_of(algorithm.aggregate(state, updates)) == models_of(algorithm.aggregate(state, [one]))

    config = FederationConfig(
        rounds=2, clients_per_round=2, privacy=PrivacyConfig(1.0, 0.1, len(shards), 1e-5)
    )
    ends = [simulate(the_plan, weights, shards, config, learner=learner) for _ in range(2)]
    assert encode_server_state(ends[0].state) == encode_server_state(ends[1].state)
    assert models_of(ends[0].state) != models_of(
        simulate(the_plan, weights, shards, replace(config, seed=2), learner=learner).state
    )


def models_of(state):
    return encode_server_state(ServerState(1, "", state.models))


def test_every_algorithm_is_either_private_or_refused():
    for name in REGISTRY:
        assert name in SUMS or name in MORE_THAN_SUMS
    for name, options in MORE_THAN_SUMS.items():
        with pytest.raises(ConfigError, match=f"does not work with {name}"):
            check_privacy(make_algorithm(name, None, options), CONFIG)
        check_privacy(make_algorithm(name, None, options), FederationConfig())


def test_without_the_table_nothing_changes():
    spec = plan("fedavg").spec
    algorithm = make_algorithm("fedavg", None, {})
    assert with_privacy(algorithm, FederationConfig(), spec, b"") is algorithm


def test_clients_are_drawn_independently_with_the_rate():
    ids = [f"c{i:03}" for i in range(100)]
    config = FederationConfig(clients_per_round=10, privacy=PrivacyConfig(1.0, 1.0, 100, 1e-5))
    draw = partial(draw_cohort, config, KEY)
    cohorts = [draw(ServerState(number, "federate", {}), ids) for number in range(1, 301)]
    sizes = [len(cohort) for cohort in cohorts]
    assert abs(np.mean(sizes) - 10) < 0.7
    assert abs(np.var(sizes) - 9) < 3  # N q (1 - q), whereas a sample of fixed size has no variance
    often = [sum(client in cohort for cohort in cohorts) for client in ids]
    assert min(often) > 10
    assert max(often) < 60
    assert draw(ServerState(1, "federate", {}), reversed(ids)) == cohorts[0]
    everybody = FederationConfig(privacy=PrivacyConfig(1.0, 1.0, 100, 1e-5))
    assert draw_cohort(everybody, KEY, ServerState(1, "federate", {}), ids) == tuple(ids)


def test_empty_cohorts_are_rounds_of_noise(shards):
    the_plan = plan("fedavg")
    config = FederationConfig(
        rounds=6, clients_per_round=1, privacy=PrivacyConfig(1.0, 0.1, len(shards), 1e-5)
    )
    sizes = []
    end = simulate(
        the_plan,
        initial(the_plan.spec),
        shards,
        config,
        learner=SoftmaxLearner(the_plan.spec),
        progress=lambda state, record: sizes.append(len(record.updates)),
    )
    assert (min(sizes), end.state.round) == (0, 7)


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


def test_the_simulator_wants_the_population_to_be_its_clients(shards):
    the_plan = plan("fedavg")
    config = FederationConfig(privacy=PrivacyConfig(1.0, 1.0, 5, 1e-5))
    with pytest.raises(ConfigError, match="population is 5, expected 3"):
        simulate(the_plan, initial(the_plan.spec), shards, config, learner=SoftmaxLearner(the_plan.spec))


def test_the_order_of_the_weights_in_a_state_changes_no_noise():
    """A state that was read from a file may have its weights in another order."""
    spec = plan("fedavg").spec
    algorithm = with_privacy(make_algorithm("fedavg", None, spec.options), CONFIG, spec, KEY)
    state = algorithm.init(initial(spec), derive_rng(1, 0, "init"))
    turned = replace(
        state, models={name: dict(reversed(weights.items())) for name, weights in state.models.items()}
    )
    update = Update("a", 1, 1, {"global": two_weights(0.3, 0.4)})
    one, other = (algorithm.aggregate(item, [update]).models["global"] for item in (state, turned))
    assert {name: array.tobytes() for name, array in one.items()} == {
        name: array.tobytes() for name, array in other.items()
    }
