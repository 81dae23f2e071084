"""A plan that was built with other options than the configuration's."""

from edgefl.algorithms import resolved_options
from edgefl.config import FederationConfig
from mqtt_broker.aggregator.plan_source import differing_options
from tests.support.numpy_learner.softmax import softmax_spec


def test_options_of_which_plan_and_configuration_differ_are_named():
    config = FederationConfig(algorithm="fedap", rounds=20, options={"epochs": 2})
    options = resolved_options(config)
    assert options["pretrain_rounds"] == 5
    same = softmax_spec("fedap", inputs=2, features=2, classes=2, options=options)
    assert differing_options(same, config) == []
    other = softmax_spec(
        "fedap", inputs=2, features=2, classes=2, options={**options, "epochs": 1, "pretrain_rounds": 2}
    )
    lines = differing_options(other, config)
    assert len(lines) == 2
    assert "pretrain_rounds = 2, the configuration 5; the plan counts" in lines[0]
    assert "epochs = 1, the configuration 2" in lines[1]
