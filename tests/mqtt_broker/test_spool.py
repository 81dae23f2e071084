"""The updates of a round on disk: what was put comes back, whatever was being written when the aggregator was killed."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.plan.spec import TensorSpec
from edgefl.wire.messages import Begin
from edgefl.wire.tensors import encode_models
from mqtt_broker.spool import FILE, Spool

EXPECTED = {"global": (TensorSpec("w", (3,)),)}


def update(client_id, value):
    blob = encode_models({"global": {"w": np.full(3, value, np.float32)}})
    sha256 = hashlib.sha256(blob).hexdigest()
    return Begin(client_id, "s", 1, "p", sha256, len(blob), 1, 65536, 5, {}, "n", 0.0), blob


def put(spool, client_id, value):
    begin, blob = update(client_id, value)
    spool.put(begin, EXPECTED, "fp32", blob)
    return begin


def values(spool):
    return [(each.client_id, float(each.deltas["global"]["w"][0])) for each in spool.updates()]


def test_updates_come_sorted_and_are_gone_after_the_round(tmp_path):
    spool = Spool(tmp_path / "spool" / "s")
    assert list(spool.updates()) == []
    for client_id, value in (("pi-2", 2), ("pi-1", 1), ("pi-2", 3)):
        put(spool, client_id, value)
    spool.sync()
    assert values(spool) == [("pi-1", 1), ("pi-2", 3)]
    spool.clear()
    assert values(spool) == [] and (tmp_path / "spool" / "s" / FILE).stat().st_size == 0
    put(spool, "pi-3", 4)
    assert values(spool) == [("pi-3", 4)]
    spool.remove()
    assert not (tmp_path / "spool" / "s").exists()


@given(data=st.data())
def test_cut_anywhere_the_whole_updates_before_are_restored_and_more_can_follow(tmp_path_factory, data):
    directory = tmp_path_factory.mktemp("spool")
    spool, ends = Spool(directory), []
    begins = []
    for i in range(3):
        begins.append(put(spool, f"pi-{i}", i))
        ends.append((directory / FILE).stat().st_size)
    cut = data.draw(st.integers(0, ends[-1]))
    with (directory / FILE).open("r+b") as file:
        file.truncate(cut)
    again = Spool(directory)
    assert [again.restore(begin, EXPECTED, "fp32") for begin in begins] == [end <= cut for end in ends]
    put(again, "pi-9", 9)
    whole = [(f"pi-{i}", float(i)) for i, end in enumerate(ends) if end <= cut]
    assert values(again) == [*whole, ("pi-9", 9.0)]
    third = Spool(directory)
    assert third.restore(update("pi-9", 9)[0], EXPECTED, "fp32")


@pytest.mark.parametrize("damage", [b"x", b"\xff"])
def test_a_damaged_update_is_not_restored(tmp_path, damage):
    spool = Spool(tmp_path)
    begins = [put(spool, f"pi-{i}", i) for i in range(2)]
    content = bytearray((tmp_path / FILE).read_bytes())
    content[-1:] = damage
    (tmp_path / FILE).write_bytes(content)
    again = Spool(tmp_path)
    assert [again.restore(begin, EXPECTED, "fp32") for begin in begins] == [True, False]
    assert not again.restore(update("pi-0", 7)[0], EXPECTED, "fp32")
