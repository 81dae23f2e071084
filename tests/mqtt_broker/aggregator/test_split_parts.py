"""What is in an aggregator's workers, apart: who is placed where, what is said over the pipes, how their
spools are read.
"""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from edgefl.algorithms.base import with_assignments
from edgefl.config import FederationConfig, PrivacyConfig
from edgefl.errors import ConfigError
from edgefl.plan.spec import TensorSpec
from edgefl.types import ServerState
from edgefl.wire.messages import Begin, Task
from edgefl.wire.tensors import encode_models
from mqtt_broker.aggregator import control
from mqtt_broker.aggregator.figures import Figures
from mqtt_broker.aggregator.places import Groups, picked_of, placed
from mqtt_broker.aggregator.shared_spool import SharedSpool
from mqtt_broker.aggregator.split import check_split
from mqtt_broker.aggregator.spool import Spool

TASK = Task("s", 1, "federate", "p", {}, {}, 1, 30.0, "fp32", 0, 0.0, "n1", 0.0)
BEGIN = Begin("pi-1", "s", 1, "p", "", 0, 1, 65536, 5, {"loss": 0.5}, "n1", 0.0)


def test_with_masks_there_is_one_process():
    config = FederationConfig(privacy=PrivacyConfig(secure_aggregation=True))
    check_split(0, config)
    check_split(2, FederationConfig())
    with pytest.raises(ConfigError, match="--workers does not go with secure_aggregation"):
        check_split(2, config)


def test_clients_are_spread_and_stay():
    none = dict.fromkeys(("a", "b", "c", "d", "e"))
    places = placed({}, none, 2)
    assert places == {"a": (0, None), "b": (1, None), "c": (0, None), "d": (1, None), "e": (0, None)}
    assert placed(places, {"a": None, "f": None}, 2) == {**places, "f": (1, None)}
    assert placed(places, {}, 2) == places


def test_an_expert_group_is_at_one_worker_where_that_is_no_more_than_its_share():
    """Of eight clients that were spread at first, four to a cluster; then one changes, and a cluster of six
    does not fit.
    """
    spread = placed({}, dict.fromkeys("abcdefgh"), 2)
    halves = placed(spread, {c: int(c in "cdgh") for c in "abcdefgh"}, 2)
    assert halves == {c: (int(c in "cdgh"),) * 2 for c in "abcdefgh"}
    after = placed(halves, {"a": 1}, 2)
    assert after["a"] == (0, 1), "the other worker has its share"
    assert {c: after[c] for c in "bcdefgh"} == {c: halves[c] for c in "bcdefgh"}
    uneven = placed(spread, {c: int(c in "gh") for c in "abcdefgh"}, 2)
    assert [uneven[c][0] for c in "abcdefgh"] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_which_group_a_client_is_in():
    w = {"w": np.zeros(1, np.float32)}
    clusters = with_assignments(ServerState(2, "federate", {"global": w}), {"a": 1})
    assert [Groups(clusters, {}).of(c) for c in "ab"] == [1, None]
    two = {"expert0": w, "expert1": w}
    told = ServerState(2, "federate", two, scalars={"q/a/0": 0.3, "q/a/1": 0.7})
    assert [Groups(told, {}).of(c) for c in "ab"] == [1, None]
    picked = {"a": picked_of({"expert": 1.0}), "b": picked_of({"loss": 1.0}), "c": 7.0}
    assert [Groups(ServerState(2, "federate", two), picked).of(c) for c in "abc"] == [1, None, None]
    assert Groups(ServerState(2, "federate", {"global": w}), picked).of("a") is None


@pytest.mark.parametrize(
    "said",
    [
        control.Play(3, 1, ((2, "n2"), (3, "n3")), "/d", (("a", "ff"),), ((2, "b", "ee"),), ()),
        control.Serve(
            (control.Client("pi-1", TASK, {"global": 0}, 99),), ((TensorSpec("head/kernel", (4, 3)),),)
        ),
        control.Arrived("/d", (replace(BEGIN, metrics=Figures({"loss": 0.1})),), 12),
        control.Answer((("a", "ff", "rejected", "no\nline"),)),
        control.Close(),
    ],
)
def test_what_is_said_between_processes_is_read_as_it_was_meant(said):
    line = control.to_line(said)
    assert control.from_line(line) == said
    assert line.count(b"\n") == 1


def test_what_workers_spooled_is_read_in_the_order_of_clients_and_found_again(tmp_path):
    """Two files in one directory of the round; then a restart, with one update damaged."""
    specs = {"m": (TensorSpec("w", (2,)),)}
    spool = SharedSpool(tmp_path / "spool")
    begins = {}
    for client_id, name in (("c", "x"), ("a", "y"), ("b", "x")):
        blob = encode_models({"m": {"w": np.array([ord(client_id), 0.5], np.float32)}})
        begins[client_id] = replace(
            BEGIN, client_id=client_id, sha256=hashlib.sha256(blob).hexdigest(), size=len(blob)
        )
        worker = Spool(spool.directory() / name)
        worker.restore(BEGIN, specs, "fp32")  # goes on behind what the file holds
        worker.put(begins[client_id], specs, "fp32", blob)
        worker.sync()
        spool.adopt(begins[client_id], specs, "fp32", spool.directory() / name)
    assert [(u.client_id, float(u.deltas["m"]["w"][0])) for u in spool.updates()] == [
        ("a", 97.0),
        ("b", 98.0),
        ("c", 99.0),
    ]
    again = SharedSpool(tmp_path / "spool")
    assert all(again.restore(begin, specs, "fp32") for begin in begins.values())
    assert [u.client_id for u in again.updates()] == ["a", "b", "c"]
    assert again.begins() == [begins[c] for c in "abc"]
    damaged = spool.directory() / "y" / "updates"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")
    assert not SharedSpool(tmp_path / "spool").restore(begins["a"], specs, "fp32")
    again.clear()
    assert list(again.updates()) == []
    assert not SharedSpool(tmp_path / "spool").restore(begins["b"], specs, "fp32")
