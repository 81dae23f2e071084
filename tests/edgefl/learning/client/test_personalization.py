"""A client of a compiled plan chooses between its models."""

from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.config import FederationConfig, ModelConfig, PersonalizationConfig
from edgefl.base.rng import derive_rng
from edgefl.base.types import ClientState, Shard
from edgefl.learning.algorithms import PHASE_PERSONALIZE, make_algorithm
from edgefl.learning.algorithms.names import COMPARE_SCALAR
from edgefl.learning.client.blend import split_members
from edgefl.learning.client.personalization import choose_personal_model
from edgefl.learning.client.runner import ClientRunner, WorkItem
from edgefl.learning.client.selection import COMPARED_MODELS, SHIPPED_MODELS
from edgefl.learning.client.validation import hold_out_validation, read_personalization
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.plan.fill import fill_template, list_weight_names
from edgefl.program.plan.runtime import load_interpreter
from edgefl.program.plan.spec import PREDICT_BLEND, PREDICT_MIXTURE, PREDICT_SINGLE
from edgefl.protocol.server.baseline import with_baseline
from edgefl.simulation.simulate import simulate

CLIENT = "pi-1"


CONFIG = FederationConfig(
    rounds=8,
    algorithm="pfl-mfe",
    options={"epochs": 5, "adapt_epochs": 1, "gate_epochs": 1},
    model=ModelConfig(name="softmax", input_shape=(4,), num_classes=3),
    personalization=PersonalizationConfig(learning_rate=0.05),
)


@pytest.fixture(scope="module")
def built_plan():
    """Return a plan with its initial weights."""
    from edgefl.learning.algorithms.plans import build_plan

    return build_plan(CONFIG)


def draw_samples(count, seed=1):
    """Return samples of three classes, each around a different corner."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 3
    x = np.eye(4, dtype=np.float32)[y] * 2 + rng.normal(0, 0.2, (count, 4)).astype(np.float32)
    return x, y.astype(np.int64)


def make_shard(count):
    x, y = draw_samples(count)
    x_test, y_test = draw_samples(30, seed=2)
    return Shard(x_train=x, y_train=y, x_test=x_test, y_test=y_test, num_classes=3)


def broadcast_last_model(built_plan, federated=None, **settings):
    """Return a plan with these settings, and its last broadcast, whose global model is `federated`."""
    plan, initial = built_plan
    spec = replace(plan.spec, personalization={**plan.spec.personalization, **settings})
    plan = replace(plan, spec=spec)
    algorithm = with_baseline(make_algorithm(spec.algorithm, None, spec.options), CONFIG, spec)
    state = algorithm.init(initial, derive_rng(1, 0, "init"))
    if federated is not None:
        state = replace(state, models={**state.models, "global": federated})
    return plan, algorithm.broadcast(replace(state, round=9, phase=PHASE_PERSONALIZE), CLIENT)


def personalize_client(built_plan, shard, federated=None, **settings):
    """Return the client result for a last broadcast whose global model is `federated`."""
    plan, broadcast = broadcast_last_model(built_plan, federated, **settings)
    runner = ClientRunner(plan, LiteRTLearner(plan), {CLIENT: shard}, seed=1)
    return runner.personalize(WorkItem(broadcast=broadcast, state=ClientState(), client_id=CLIENT))


def have_same_bits(one, two):
    """Return whether two sets of weights have the same bits."""
    return one.keys() == two.keys() and all(np.array_equal(one[name], two[name]) for name in one)


def make_perfect_weights(initial):
    """Return weights that classify every sample correctly."""
    kernel = np.eye(4, 3, dtype=np.float32) * 8
    return {name: kernel if array.ndim == 2 else np.zeros_like(array) for name, array in initial.items()}


def test_local_model_is_shipped_if_federated_model_is_always_wrong(built_plan):
    """The federated model is wrong about every sample, and fine-tuning has no epochs."""
    wrong = {name: -array for name, array in make_perfect_weights(built_plan[1]).items()}
    mixture, _, metrics = personalize_client(built_plan, make_shard(150), wrong, epochs=0, ship="one")
    assert metrics["accuracy_federated"] == 0.0
    assert COMPARED_MODELS[int(metrics["shipped"])] == "local"
    assert metrics["accuracy_shipped"] == metrics["accuracy_local"] > 0.9
    assert (metrics["test_gained"], metrics["test_lost"]) == (0.0, 0.0)
    assert mixture.signature == PREDICT_SINGLE
    assert have_same_bits(mixture.weights, mixture.peers["local"].weights)


def test_federated_model_is_shipped_if_local_training_learns_nothing(built_plan):
    """At a learning rate of nearly zero, the local model keeps its initial weights."""
    _, _, metrics = personalize_client(
        built_plan, make_shard(150), make_perfect_weights(built_plan[1]), learning_rate=1e-9, ship="one"
    )
    assert metrics["accuracy_local"] < 0.9
    assert COMPARED_MODELS[int(metrics["shipped"])] in ("federated", "fine_tuned")
    assert metrics["accuracy_shipped"] == 1.0
    assert metrics["test_gained"] == round(30 * (1 - metrics["accuracy_local"]))


def test_all_models_are_shipped_with_the_shares_of_all_clients(built_plan):
    """A clients ships what a wrong federated model and its own models know together."""
    wrong = {name: -array for name, array in make_perfect_weights(built_plan[1]).items()}
    plan, broadcast = broadcast_last_model(built_plan, wrong, epochs=0)
    shares = {"blend_local": 0.5, "blend_fine_tuned": 0.125, "blend_federated": 0.375}
    broadcast = replace(broadcast, scalars={**broadcast.scalars, **shares})
    runner = ClientRunner(plan, LiteRTLearner(plan), {CLIENT: make_shard(150)}, seed=1)
    mixture, _, metrics = runner.personalize(
        WorkItem(broadcast=broadcast, state=ClientState(), client_id=CLIENT)
    )
    members = split_members(plan.spec, mixture.weights)
    assert {member.name: member.share for member in members} == {
        "local": 0.5,
        "fine_tuned": 0.125,
        "federated": 0.375,
    }
    assert (mixture.signature, mixture.single) == (PREDICT_BLEND, "local")
    assert SHIPPED_MODELS[int(metrics["shipped"])] == "blend"
    assert metrics["accuracy_shipped"] == metrics["accuracy_blend"] > 0.9
    assert metrics["share_federated"] == 0.375
    local = next(member for member in members if member.name == "local")
    assert have_same_bits(local.peer.weights, mixture.peers["local"].weights)


def test_comparison_reports_the_shares_of_a_blend(built_plan):
    """The federated model is always wrong, so its share is at most what its pseudo-count gives it."""
    wrong = {name: -array for name, array in make_perfect_weights(built_plan[1]).items()}
    plan, broadcast = broadcast_last_model(built_plan, wrong, epochs=0)
    runner = ClientRunner(plan, LiteRTLearner(plan), {CLIENT: make_shard(150)}, seed=1)
    last = replace(broadcast, phase="federate", scalars={**broadcast.scalars, COMPARE_SCALAR: 1.0})
    update, _ = runner.update(WorkItem(broadcast=last, state=ClientState(), client_id=CLIENT))
    shares = {name: value for name, value in update.metrics.items() if name.startswith("blend_")}
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["blend_local"] > 0.8
    assert shares["blend_federated"] < 0.1 and shares["blend_fine_tuned"] < 0.1


def test_without_selection_the_mixture_is_shipped(built_plan):
    mixture, _, metrics = personalize_client(built_plan, make_shard(60), select=False)
    assert mixture.signature == PREDICT_MIXTURE
    assert COMPARED_MODELS[int(metrics["shipped"])] == "mixture"
    assert metrics["accuracy_shipped"] == metrics["accuracy_mixture"]
    assert metrics["accuracy_local"] > 0.9
    assert "validation/local" not in mixture.diagnostics


def test_the_shipped_model_trains_on_the_validation_samples_too(built_plan):
    """The local model is the same with and without selection, because it trains on all samples."""
    selected, _, metrics = personalize_client(built_plan, make_shard(150))
    plain, _, _ = personalize_client(built_plan, make_shard(150), select=False, validation_share=0.0)
    assert (metrics["n_train"], metrics["n_validation"]) == (120.0, 30.0)
    assert have_same_bits(plain.peers["local"].weights, selected.peers["local"].weights)


def test_models_to_compare_are_trained_for_less_time_than_models_to_ship(built_plan):
    """The local and the fine-tuned model are trained for the comparison, and then again."""
    ends = []

    class Recording(LiteRTLearner):
        def fit(self, signature, *arguments, final_loss=-np.inf, **more):
            if np.isfinite(final_loss):
                ends.append((final_loss / np.log(3), more["least_epochs"]))
            return super().fit(signature, *arguments, final_loss=final_loss, **more)

    plan, broadcast = broadcast_last_model(built_plan)
    runner = ClientRunner(plan, Recording(plan), {CLIENT: make_shard(160)}, seed=1)
    runner.personalize(WorkItem(broadcast=broadcast, state=ClientState(), client_id=CLIENT))
    assert [round(share, 6) for share, _ in ends] == [0.02, 0.02, 0.002, 0.002]
    assert [epochs for _, epochs in ends] == [25, 25, 50, 50]  # 8 of 128 and 10 of 160 samples in a batch


def test_algorithm_is_told_which_samples_the_rounds_did_not_have(built_plan):
    """The algorithm first makes its model for the comparison, and then on all samples."""
    plan, broadcast = broadcast_last_model(built_plan)
    learner = LiteRTLearner(plan)
    algorithm = make_algorithm(plan.spec.algorithm, learner, plan.spec.options)
    received = []

    def personalize(broadcast, state, shard, rng):
        received.append(shard)
        return algorithm.personalize(broadcast, state, shard, rng)

    shard = make_shard(30)
    split = hold_out_validation(shard, 0.2, seed=1, client_id=CLIENT)
    settings = read_personalization(plan.spec)
    choose_personal_model(
        replace(algorithm, personalize=personalize),
        learner,
        broadcast,
        ClientState(),
        shard,
        split,
        settings,
        CLIENT,
        lambda purpose: derive_rng(1, 1, purpose),
    )
    compared, final = received
    assert compared.unseen_train is None
    assert len(final.y_train) == 30 and len(final.unseen_train) == 9
    np.testing.assert_array_equal(final.x_train[final.unseen_train], split.x)


def test_test_samples_do_not_influence_the_choice(built_plan):
    """With other test samples, the same model is shipped."""
    shard = make_shard(150)
    other = replace(shard, y_test=(shard.y_test + 1) % 3)
    first, second = (personalize_client(built_plan, client_shard) for client_shard in (shard, other))
    assert first[2]["shipped"] == second[2]["shipped"]
    assert have_same_bits(first[0].weights, second[0].weights)


@pytest.mark.parametrize("count", [1, 2, 3, 12])
def test_personalization_works_with_few_samples(built_plan, count):
    mixture, _, metrics = personalize_client(built_plan, make_shard(count))
    assert np.isfinite(metrics["accuracy_shipped"])
    assert all(np.isfinite(array).all() for array in mixture.weights.values())


def test_plan_has_templates_for_a_mixture_and_a_single_model(built_plan):
    plan, initial = built_plan
    template, bindings = plan.find_template(PREDICT_SINGLE)
    assert template == plan.single != plan.template
    model = fill_template(template, bindings, {name: initial[name] for name in list_weight_names(bindings)})
    interpreter = load_interpreter(model)
    interpreter.allocate_tensors()
    x = draw_samples(1)[0]
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    expected = LiteRTLearner(plan).predict(PREDICT_SINGLE, initial, {"x": x})
    output = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    np.testing.assert_allclose(output, expected, atol=1e-5)


def test_preferred_model_is_shipped_without_validation_samples(built_plan):
    _, _, metrics = personalize_client(built_plan, make_shard(1), ship="one")
    assert metrics["n_validation"] == 0.0
    assert COMPARED_MODELS[int(metrics["shipped"])] == "local"


def test_rounds_do_not_train_on_validation_samples(built_plan):
    """Labels are random, so a model is right more often than chance only on samples that it has seen.

    A client has few samples and many inputs, so a linear model memorizes its samples.
    """
    from edgefl.learning.algorithms.plans import build_plan

    config = FederationConfig(
        rounds=15,
        options={"epochs": 5, "learning_rate": 0.5},
        model=ModelConfig(name="softmax", input_shape=(64,), num_classes=8),
    )
    rng = np.random.default_rng(5)

    def draw_random_shard():
        x = rng.normal(0, 1, (45, 64)).astype(np.float32)
        return Shard(
            x_train=x,
            y_train=rng.integers(0, 8, 45),
            x_test=x[:8],
            y_test=rng.integers(0, 8, 8),
            num_classes=8,
        )

    shards = {f"pi-{i}": draw_random_shard() for i in range(3)}
    plan, initial = build_plan(config)
    client_results = simulate(plan, initial, shards, config).results.values()
    accuracies = [result.mixture.diagnostics["validation/federated"] for result in client_results]
    assert np.mean(accuracies) < 0.35
    assert np.mean([result.metrics["n_validation"] for result in client_results]) == pytest.approx(15, abs=3)


def test_plan_of_an_edgefl_without_blends_ships_one_model(built_plan):
    spec = built_plan[0].spec
    settings = {key: value for key, value in spec.personalization.items() if key != "ship"}
    assert read_personalization(spec).ship == "auto"
    assert read_personalization(replace(spec, personalization=settings)).ship == "one"
