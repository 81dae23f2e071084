"""Real brokers, real processes, and actors whose messages the test sends."""

import importlib.util
import sys
from pathlib import Path

import pytest


def load_module(name):
    """Return a module that lies beside this file."""
    key = f"edgefl_tests_{name}"
    if key not in sys.modules:
        spec = importlib.util.spec_from_file_location(key, Path(__file__).with_name(f"{name}.py"))
        sys.modules[key] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[key])
    return sys.modules[key]


processes = load_module("processes")
actors = load_module("actors")
hazards = load_module("hazards")
masked_actor = load_module("masked_actor")
pseudo_terminal = load_module("pseudo_terminal")


@pytest.fixture
def start():
    made = []

    def make(*arguments):
        made.append(processes.Process(*arguments))
        return made[-1]

    yield make
    for process in reversed(made):
        process.close()


@pytest.fixture(scope="session")
def mosquitto_url():
    process, url = processes.start_broker("mosquitto")
    yield url
    process.close()


@pytest.fixture(scope="session")
def amqtt_url():
    pytest.importorskip("amqtt")
    process, url = processes.start_broker("amqtt")
    yield url
    process.close()


@pytest.fixture(params=["mosquitto", pytest.param("amqtt", marks=pytest.mark.slow)])
def any_url(request):
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture
def federate(start, tmp_path):
    def make(url, **settings):
        return processes.Federation(url, tmp_path, start, **settings)

    return make


@pytest.fixture
def puppet():
    made = []

    def make(federation, client_id):
        made.append(actors.Puppet(federation, client_id))
        return made[-1]

    yield make
    for actor in made:
        actor.close()


@pytest.fixture
def listen():
    made = []

    def make(federation, topic=None):
        made.append(actors.Listener(federation.url, topic or f"{federation.topics.root}/#"))
        return made[-1]

    yield make
    for listener in made:
        listener.link.close()


@pytest.fixture
def masked_puppet(puppet, listen):
    def make(federation, client_id):
        blobs = listen(federation, f"{federation.topics.root}/blob/+/+")
        return masked_actor.MaskedPuppet(
            federation, puppet(federation, client_id), blobs, processes.make_toy_weights()
        )

    return make


@pytest.fixture(
    scope="module", params=[4, pytest.param(5, marks=pytest.mark.slow)], ids=["mqtt-3.1.1", "mqtt-5"]
)
def secured(request, tmp_path_factory):
    made = load_module("secured").SecuredBroker(tmp_path_factory.mktemp("broker") / "keys", request.param)
    yield made
    made.stop()


@pytest.fixture
def secured_broker(tmp_path):
    made = load_module("secured").SecuredBroker(tmp_path / "keys", 4)
    yield made
    made.stop()


@pytest.fixture
def masked():
    return masked_actor


@pytest.fixture
def fleet(tmp_path):
    made = []

    def make(faults=(), **settings):
        broker = processes.Broker()
        made.append(broker.kill)
        federation = processes.Federation("", tmp_path, None, **settings)
        clients = [f"pi-{i}" for i in range(3)]
        for i, client_id in enumerate(clients):
            processes.save_shard(tmp_path / f"{client_id}.npz", processes.make_toy_shard(i, 20 + 10 * i))
        made_fleet = hazards.Fleet(federation, broker, processes.Process, clients, faults)
        made.append(made_fleet.close)
        return made_fleet

    yield make
    for end in reversed(made):
        end()


@pytest.fixture
def own_broker():
    """A broker that no other test uses."""
    broker = processes.Broker()
    yield broker
    broker.kill()


@pytest.fixture
def toys():
    return processes.Toys


@pytest.fixture(scope="session")
def services():
    return processes.Services


@pytest.fixture(scope="session")
def listen_to_all():
    return lambda url: actors.Listener(url, "#")


@pytest.fixture
def terminal():
    made = []

    def make(*arguments):
        made.append(pseudo_terminal.Terminal(*arguments))
        return made[-1]

    yield make
    for view in made:
        view.close()
