"""A plan that was built with other options than those of the configuration."""

from dataclasses import asdict, replace

from edgefl.base.config import (
    AugmentationConfig,
    FederationConfig,
    ModelConfig,
    PersonalizationConfig,
    SamplesConfig,
    TrainingConfig,
)
from edgefl.base.tasks.config import TaskConfig
from edgefl.learning.algorithms import resolve_algorithm_options
from edgefl.program.plan.spec import TensorSpec
from mqtt_broker.aggregator.plan_source import describe_scaling_model, list_differing_options
from tests.support.numpy_learner.softmax import softmax_spec


def test_differing_algorithm_options_are_named():
    config = FederationConfig(algorithm="fedap", rounds=20, options={"epochs": 2})
    options = resolve_algorithm_options(config)
    assert options["pretrain_rounds"] == 5
    settings = asdict(PersonalizationConfig())
    same = softmax_spec("fedap", inputs=2, features=2, classes=2, options=options, personalization=settings)
    assert list_differing_options(same, config) == []
    other = softmax_spec(
        "fedap",
        inputs=2,
        features=2,
        classes=2,
        options={**options, "epochs": 1, "pretrain_rounds": 2},
        personalization=settings,
    )
    lines = list_differing_options(other, config)
    epochs, pretraining = sorted(lines)
    assert "pretrain_rounds = 2, the configuration 5; the plan's value is used" in pretraining
    assert "epochs = 1, the configuration 2" in epochs


def make_spec(settings):
    return softmax_spec("fedavg", inputs=2, features=2, classes=2, personalization=settings)


def test_differing_personalization_settings_are_named():
    """The deadline may differ, because the aggregator reads it from the configuration."""
    config = FederationConfig(personalization=PersonalizationConfig(select=False, epochs=3, deadline_s=60.0))
    planned = asdict(PersonalizationConfig())
    assert list_differing_options(make_spec(planned), config) == [
        "the plan has [personalization] select = True, the configuration False; the plan's value is used. "
        "To use the configuration's, build the plan with `edgefl plan build --config`",
        "the plan has [personalization] epochs = 10, the configuration 3; the plan's value is used. "
        "To use the configuration's, build the plan with `edgefl plan build --config`",
    ]
    assert list_differing_options(make_spec({**planned, "select": False, "epochs": 3}), config) == []


def test_plan_without_personalization_settings_differs_from_the_defaults():
    """An older version built the plan: devices ship the mixture and hold out no validation samples."""
    lines = list_differing_options(make_spec({}), FederationConfig())
    assert [line.partition(";")[0] for line in lines] == [
        "the plan has [personalization] select = False, the configuration True",
        "the plan has [personalization] validation_share = 0.0, the configuration 0.2",
        "the plan has [personalization] baseline = False, the configuration True",
    ]


def test_other_division_of_batches_is_named():
    whole = make_spec(asdict(PersonalizationConfig()))
    train = whole.find_signature("train")
    fives = replace(train, batch_size=10, data=(TensorSpec("x", (5, 2)),), gradients=train.trained)
    spec = replace(whole, signatures=(fives,))
    assert list_differing_options(spec, FederationConfig(training=TrainingConfig(micro_batch=8))) == []
    (line,) = list_differing_options(spec, FederationConfig(training=TrainingConfig(micro_batch=4)))
    assert line.startswith("the plan has [training] micro_batch = 5, the configuration 4; ")
    (line,) = list_differing_options(spec, FederationConfig())
    assert line.startswith("the plan has [training] micro_batch = 5, the configuration 0; ")
    (line,) = list_differing_options(whole, FederationConfig(training=TrainingConfig(micro_batch=1)))
    assert line.startswith("the plan has [training] micro_batch = 0, the configuration 1; ")


def test_differing_model_and_task_are_named():
    """Keys of [model] with their default are not set, such as those of a configuration without [model]."""
    spec = make_spec(asdict(PersonalizationConfig()))
    assert list_differing_options(spec, FederationConfig()) == []
    model = ModelConfig(
        name="mlp", input_shape=(2,), num_classes=4, options={"hidden": 8}, mean=(0.5,), std=(2.0,)
    )
    config = FederationConfig(model=model, task=TaskConfig(kind="regression", outputs=4))
    planned = replace(spec, model_options={"hidden": 4, "mean": [0.5], "std": [1.0]})
    lines = list_differing_options(planned, config)
    assert [line.partition(";")[0] for line in lines] == [
        f"the plan has [model] name = {spec.model!r}, the configuration 'mlp'",
        "the plan has [model] num_classes = 2, the configuration 4",
        "the plan has [model] std = (1.0,), the configuration (2.0,)",
        "the plan has [model] hidden = 4, the configuration 8",
        "the plan has [task] kind = 'classification', the configuration 'regression'",
        "the plan has [task] loss = '', the configuration 'mse'",
        "the plan has [task] outputs = 1, the configuration 4",
    ]
    same = replace(
        planned,
        model="mlp",
        num_classes=4,
        model_options={"hidden": 8, "mean": [0.5], "std": [2.0]},
        task=config.task.as_plan_entry(),
    )
    assert list_differing_options(same, config) == []


def test_plan_without_the_normalization_of_the_configuration_is_named():
    config = FederationConfig(model=ModelConfig(normalize=True))
    spec = make_spec(asdict(PersonalizationConfig()))
    (line,) = list_differing_options(spec, config)
    assert line.startswith("the plan has [model] normalize = False, the configuration True")
    measured = replace(spec, model_options={"mean": [0.5], "std": [1.0]})
    scaling = replace(spec, samples=SamplesConfig(scale=1, max_value=255).as_plan_entry())
    assert list_differing_options(measured, config) == list_differing_options(scaling, config) == []


def test_differing_augmentation_is_named():
    config = FederationConfig(augmentation=AugmentationConfig(crop=4, flip=True))
    spec = make_spec(asdict(PersonalizationConfig()))
    lines = list_differing_options(spec, config)
    assert [line.partition(";")[0] for line in lines] == [
        "the plan has [augmentation] crop = 0, the configuration 4",
        "the plan has [augmentation] flip = False, the configuration True",
    ]
    planned = replace(spec, input_shape=(28, 28, 1), augmentation=config.augmentation.as_plan_entry())
    assert list_differing_options(planned, config) == []


def test_differing_unit_and_a_model_that_scales_are_named():
    spec = make_spec(asdict(PersonalizationConfig()))
    scaling = replace(spec, samples=SamplesConfig(scale=1, max_value=255).as_plan_entry())
    assert describe_scaling_model(scaling, FederationConfig()).startswith("the model scales its own input")
    assert list_differing_options(scaling, FederationConfig()) == []
    stated = FederationConfig(samples=SamplesConfig(scale=255))
    assert describe_scaling_model(scaling, stated) == describe_scaling_model(spec, FederationConfig()) == ""
    (line,) = list_differing_options(scaling, stated)
    assert line.startswith(
        "the plan has [samples] scale = 1, the configuration 255; the plan's value is used"
    )
