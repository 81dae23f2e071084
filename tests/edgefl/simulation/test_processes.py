"""Several processes on this machine: order of items, lazy reading, and the same errors as in one process."""

from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.errors import DataError
from edgefl.base.rng import derive_rng
from edgefl.base.types import ClientState, Shard
from edgefl.learning.algorithms import make_algorithm
from edgefl.learning.client.runner import WorkItem
from edgefl.simulation.clients import SimulatedFederation, train_client
from edgefl.simulation.engines.base import SerialEngine
from edgefl.simulation.engines.processes import MAX_ITEMS_PER_PROCESS, ProcessEngine


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
    return SimulatedFederation(plan=tiny[0], seed=tiny_config.seed, shards=shards)


def make_items(federation, weights):
    spec = federation.plan.spec
    algorithm = make_algorithm(spec.algorithm, None, spec.options)
    state = algorithm.init(weights, derive_rng(federation.seed, 0, "init"))
    return [
        WorkItem(broadcast=algorithm.broadcast(state, client_id), state=ClientState(), client_id=client_id)
        for client_id in sorted(federation.shards)
    ]


def test_processes_keep_order_read_items_lazily_and_survive_client_errors(federation, tiny):
    bad = federation.shards["pi-3"]
    broken = replace(
        federation,
        shards={**federation.shards, "pi-3": replace(bad, x_train=np.full_like(bad.x_train, np.nan))},
    )
    items = make_items(federation, tiny[1])
    read = []
    with pytest.raises(DataError, match="pi-3, round 1: ") as expected:
        list(SerialEngine(broken).run(train_client, items))

    def read_items(count):
        for item in (items[:3] * 5)[:count]:
            read.append(item)
            yield item

    with ProcessEngine(broken, 2) as engine:
        seen = []
        for update, _ in engine.run(train_client, read_items(13)):
            seen.append(update.client_id)
            assert len(read) <= len(seen) + 2 * MAX_ITEMS_PER_PROCESS
        assert seen == [item.client_id for item in read]
        with pytest.raises(DataError) as raised:
            list(engine.run(train_client, items))
        assert str(raised.value) == str(expected.value)
        assert [update.client_id for update, _ in engine.run(train_client, items[:3])] == [
            "pi-0",
            "pi-1",
            "pi-2",
        ]
