from edgefl.algorithms import FEDERATE, PERSONALIZE
from edgefl.config import FederationConfig, PersonalizationConfig
from mqtt_broker.aggregator.tasks import deadline_of


def test_devices_have_the_time_of_all_rounds_to_personalize():
    config = FederationConfig(rounds=20, deadline_s=120.0)
    assert deadline_of(config, FEDERATE) == 120.0
    assert deadline_of(config, PERSONALIZE) == 20 * 120.0


def test_the_time_to_personalize_can_be_set():
    config = FederationConfig(rounds=20, personalization=PersonalizationConfig(deadline_s=600.0))
    assert deadline_of(config, PERSONALIZE) == 600.0
