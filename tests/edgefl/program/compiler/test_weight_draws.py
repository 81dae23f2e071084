"""Initial weights of algorithms with several models.

Each model has its own random draw. The models of a pretrained model share its trunk and have new heads.
"""

from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.config import FederationConfig, ModelConfig
from edgefl.base.rng import derive_rng
from edgefl.cli.main import run_command
from edgefl.learning.algorithms import make_algorithm

keras = pytest.importorskip("keras", reason="the aggregator extra is not installed")

MULTI_MODEL_ALGORITHMS = ("aem", "fedmix")


def orthogonal(input_shape, num_classes):
    """Return a network with orthogonal dense kernels and random biases."""
    drawn = {
        "kernel_initializer": keras.initializers.Orthogonal(),
        "bias_initializer": keras.initializers.RandomUniform(-1.0, 1.0),
    }
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Flatten(),
            layers.Dense(8, activation="relu", name="fc1", **drawn),
            layers.Dense(num_classes, name="fc2", **drawn),
        ]
    )


def make_experts(config):
    """Return the plan, the initial weights of each expert, and the server state of the aggregator."""
    from edgefl.learning.algorithms.plans import build_plan

    plan, initial = build_plan(config)
    state = make_algorithm(plan.spec.algorithm, None, plan.spec.options).init(
        initial, derive_rng(config.seed, 0, "init")
    )
    return plan, [state.models[f"expert{k}"] for k in range(3)], state


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return the path of a .keras file with weights that no initializer would draw, as after training."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((4, 4, 1)),
            layers.Conv2D(2, 3, activation="relu", name="conv"),
            layers.Flatten(),
            layers.Dense(
                5, activation="relu", name="fc1", kernel_initializer=keras.initializers.GlorotUniform(seed=7)
            ),
            layers.Dense(3, name="fc2", kernel_initializer=keras.initializers.GlorotUniform(seed=7)),
        ]
    )
    rng = np.random.default_rng(3)
    model.set_weights([rng.normal(3.0, 0.1, w.shape) for w in model.get_weights()])
    path = tmp_path_factory.mktemp("model") / "trained.keras"
    model.save(path)
    return path


def make_config(algorithm, model):
    return FederationConfig(algorithm=algorithm, model=model, options={"num_experts": 3})


@pytest.mark.parametrize("algorithm", MULTI_MODEL_ALGORITHMS)
def test_a_pretrained_model_keeps_its_trunk_and_gets_a_new_head(algorithm, trained):
    """Trained weights are about 3.

    Glorot draws have a mean of 0 and are at most sqrt(6 / (8 + 5)) = .68. Biases start at zero.
    """
    _, models, state = make_experts(
        make_config(algorithm, ModelConfig(name=str(trained), input_shape=(4, 4, 1), num_classes=3))
    )
    for model in models:
        np.testing.assert_array_equal(model["conv/kernel"], models[0]["conv/kernel"])
        np.testing.assert_array_equal(model["conv/bias"], models[0]["conv/bias"])
    assert models[0]["fc2/bias"].min() > 2, "the first expert is the file's model"
    for model in models[1:]:
        assert np.abs(model["fc1/kernel"]).max() <= 0.68
        assert not model["fc1/bias"].any()
        assert not model["fc2/bias"].any()
    assert len({model["fc2/kernel"].tobytes() for model in models}) == 3
    assert {name for name in models[0] if name.startswith("draw")} == set()
    for model in state.models.values():
        assert not any(name.startswith("draw") for name in model)


def test_untrained_model_is_drawn_by_its_initializers():
    """All kernels are orthogonal (columns of length 1 at right angles), and kernels and biases differ."""
    config = make_config(
        "ifca", ModelConfig(name=f"{__name__}:orthogonal", input_shape=(4, 4, 1), num_classes=3)
    )
    _, models, _ = make_experts(config)
    for model in models:
        np.testing.assert_allclose(model["fc1/kernel"].T @ model["fc1/kernel"], np.eye(8), atol=1e-5)
    assert len({model["fc1/bias"].tobytes() for model in models}) == 3
    assert len({model["fc1/kernel"].tobytes() for model in models}) == 3


def test_draws_are_not_part_of_the_plan():
    """The plan lists no draws. The same seed gives the same draws, and another seed gives others."""
    from edgefl.learning.algorithms.plans import build_plan

    config = make_config("ifca", ModelConfig(name="softmax", input_shape=(4, 4, 1), num_classes=3))
    (plan, initial), (again, same), (_, other) = (
        build_plan(replace(config, seed=seed)) for seed in (1, 1, 2)
    )
    assert {spec.name for spec in plan.spec.weights} == {
        name for name in initial if not name.startswith("draw:")
    }
    assert plan.id == again.id
    draw = "draw:1/" + plan.spec.weights[0].name
    np.testing.assert_array_equal(initial[draw], same[draw])
    assert not np.array_equal(initial[draw], other[draw])


def test_the_aggregator_reads_the_draws_beside_the_plan(tmp_path):
    from mqtt_broker.aggregator.plan_source import open_built_plan

    (tmp_path / "federation.toml").write_text(
        '[federation]\nname = "x"\n[model]\nname = "softmax"\ninput_shape = [4, 4, 1]\nnum_classes = 3\n'
        '[algorithm]\nname = "ifca"\nnum_experts = 3\n'
    )
    assert (
        run_command(
            ["plan", "build", "--config", str(tmp_path / "federation.toml"), "-o", str(tmp_path / "plan")]
        )
        == 0
    )
    _, initial = open_built_plan(
        tmp_path / "plan",
        make_config("ifca", ModelConfig(name="softmax", input_shape=(4, 4, 1), num_classes=3)),
    )
    assert sorted(name for name in initial if name.startswith("draw:1/")) == [
        f"draw:1/{name}" for name in sorted(name for name in initial if not name.startswith("draw:"))
    ]
    assert "draw:2/fc/bias" in initial
