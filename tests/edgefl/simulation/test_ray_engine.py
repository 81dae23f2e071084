"""Actors on a Ray cluster of two raylets: results of one process, order of items, lazy reading, errors."""

import shutil
import socket
from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.errors import DataError, EdgeflError
from edgefl.base.rng import derive_rng
from edgefl.base.types import ClientState, Shard
from edgefl.data.dataset import Dataset
from edgefl.data.mapped_shards import map_dataset
from edgefl.data.partitions.client_partition import ClientPartition
from edgefl.learning.algorithms import make_algorithm
from edgefl.learning.algorithms.base import PHASE_PERSONALIZE
from edgefl.learning.checkpoint import encode_mixture, encode_server_state
from edgefl.learning.client.runner import WorkItem
from edgefl.simulation.clients import SimulatedFederation, personalize_client, train_client
from edgefl.simulation.engines.base import SerialEngine
from edgefl.simulation.simulate import simulate

ray = pytest.importorskip("ray", reason="the ray extra is not installed")


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """Start two raylets with one CPU and one object store each, and set RAY_ADDRESS."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        made = start_two_raylets()
        patch.setenv("RAY_ADDRESS", made.address)
        yield made
        made.shutdown()


def start_two_raylets(attempts=3):
    """Start a cluster. Ray gives its processes 30 s, which a busy machine may exceed at first."""
    from ray.cluster_utils import Cluster

    store = {"num_cpus": 1, "object_store_memory": 80_000_000}
    try:
        made = Cluster(initialize_head=True, head_node_args={**store, "include_dashboard": False})
        made.add_node(**store)
    except Exception:
        if attempts == 1:
            raise
        return start_two_raylets(attempts - 1)
    return made


@pytest.fixture(scope="class")
def ray_connection(cluster):
    """Open a connection for the tests that do not test the connection itself."""
    from edgefl.simulation.engines.ray_session import open_ray_session

    with open_ray_session(2):
        yield


@pytest.fixture
def federation(tiny, tiny_config, digits):
    x, y = digits
    shards = {
        f"pi-{i}": Shard(
            x_train=x[i::5][:40],
            y_train=y[i::5][:40],
            x_test=x[i::5][40:60],
            y_test=y[i::5][40:60],
            num_classes=10,
        )
        for i in range(5)
    }
    return SimulatedFederation(plan=tiny[0], seed=tiny_config.seed, shards=shards, test=(x[300:], y[300:]))


def make_items(federation, weights, phase=""):
    spec = federation.plan.spec
    algorithm = make_algorithm(spec.algorithm, None, spec.options)
    state = algorithm.init(weights, derive_rng(federation.seed, 0, "init"))
    state = replace(state, phase=phase or state.phase)
    return [
        WorkItem(broadcast=algorithm.broadcast(state, client_id), state=ClientState(), client_id=client_id)
        for client_id in sorted(federation.shards)
    ]


def assert_same_result(one, two):
    assert encode_mixture(one.mixture) == encode_mixture(two.mixture)
    assert one.metrics == two.metrics
    np.testing.assert_array_equal(one.class_share, two.class_share)
    assert list(one.test_accuracies) == list(two.test_accuracies)
    for name, by_class in one.test_accuracies.items():
        np.testing.assert_array_equal(by_class, two.test_accuracies[name])


def break_client(federation, client_id):
    """Return the federation with a NaN sample at one client."""
    shard = federation.shards[client_id]
    x = shard.x_train.copy()
    x[0] = np.nan
    return replace(federation, shards={**federation.shards, client_id: replace(shard, x_train=x)})


@pytest.mark.slow
def test_ray_results_equal_serial_results_and_the_connection_closes(federation, tiny, tiny_config):
    from edgefl.simulation.engines.ray import RayEngine

    def play(open_engine=SerialEngine):
        return simulate(
            tiny[0], tiny[1], federation.shards, tiny_config, test=federation.test, open_engine=open_engine
        )

    serial = play()
    distributed = play(lambda own: RayEngine(own, 2))
    assert not ray.is_initialized()
    assert encode_server_state(serial.state) == encode_server_state(distributed.state)
    assert list(serial.results) == list(distributed.results)
    for client_id, result in serial.results.items():
        assert_same_result(result, distributed.results[client_id])
    (mixture, *_) = distributed.mixtures.values()
    assert all(array.flags.owndata for array in mixture.weights.values()), (
        "a result must not lie in Ray's memory, which is gone"
    )


def test_unreachable_ray_address_is_an_error(monkeypatch):
    from edgefl.simulation.engines.ray_session import open_ray_session

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free.getsockname()[1]}")
        with pytest.raises(EdgeflError, match=r"cannot connect to Ray at 127\.0\.0\.1"), open_ray_session(1):
            pass


@pytest.mark.usefixtures("ray_connection")
class TestConnected:
    def test_actors_need_no_file_of_this_machine(self, federation, tiny, digits, tmp_path):
        """The files are removed before actors read samples, because another host does not have them."""
        from edgefl.simulation.engines.ray import RayEngine

        x, y = digits
        dataset = Dataset(
            x_train=(x * 255).astype(np.uint8), y_train=y, x_test=x[:40], y_test=y[:40], num_classes=10
        )
        partitions = {
            f"pi-{i}": ClientPartition(train=np.arange(i, 100, 5), test=np.arange(i, 40, 5)) for i in range(5)
        }
        mapped = replace(federation, shards=map_dataset(dataset, partitions, tmp_path / "maps"))
        items = make_items(mapped, tiny[1], PHASE_PERSONALIZE)
        expected = [result for result, _ in SerialEngine(mapped).run(personalize_client, items)]
        with RayEngine(mapped, 2) as engine:
            shutil.rmtree(tmp_path / "maps")
            results = [result for result, _ in engine.run(personalize_client, items)]
        for one, two in zip(expected, results, strict=True):
            assert_same_result(one, two)
        assert ray.is_initialized(), "who was connected before stays connected"

    def test_items_are_read_lazily_and_results_keep_their_order(self, federation, tiny):
        from edgefl.simulation.engines.ray import MAX_ITEMS_PER_ACTOR, RayEngine

        items = make_items(federation, tiny[1]) * 4
        read = []

        def read_items():
            for item in items:
                read.append(item)
                yield item

        with RayEngine(federation, 2) as engine:
            seen = []
            for update, _ in engine.run(train_client, read_items()):
                seen.append(update.client_id)
                assert len(read) <= len(seen) + 2 * MAX_ITEMS_PER_ACTOR
        assert seen == [item.client_id for item in items]

    def test_client_error_equals_the_error_of_the_serial_engine(self, federation, tiny):
        from edgefl.simulation.engines.ray import RayEngine

        bad = break_client(federation, "pi-3")
        items = make_items(bad, tiny[1])
        with pytest.raises(DataError, match="pi-3, round 1: ") as expected:
            list(SerialEngine(bad).run(train_client, items))
        with RayEngine(bad, 2) as engine, pytest.raises(DataError) as raised:
            list(engine.run(train_client, items))
        assert str(raised.value) == str(expected.value)

    def test_a_killed_actor_is_an_error(self, federation, tiny):
        from edgefl.simulation.engines.ray import RayEngine

        with RayEngine(federation, 2) as engine:
            results = engine.run(train_client, make_items(federation, tiny[1]) * 4)
            next(results)
            ray.kill(engine._actors[0])
            with pytest.raises(EdgeflError, match="an actor of the simulation was killed"):
                list(results)

    def test_more_actors_than_cpus_are_an_error(self, federation):
        from edgefl.simulation.engines.ray import RayEngine

        with (
            pytest.raises(EdgeflError, match=r"[0-2] of 3 actors started within 3 s, Ray has 2 CPUs"),
            RayEngine(federation, 3, start_s=3),
        ):
            pass
