"""The updates of a round on disk: what was put comes back, whatever was being written when the aggregator was
killed.
"""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.errors import WireError
from edgefl.plan.spec import TensorSpec
from edgefl.wire.messages import Begin
from edgefl.wire.tensors import encode_models
from mqtt_broker.aggregator import spool as spool_module
from mqtt_broker.aggregator.spool import FILE, Spool

EXPECTED = {"global": (TensorSpec("w", (3,)),)}


def update(client_id, value):
    blob = encode_models({"global": {"w": np.full(3, value, np.float32)}})
    sha256 = hashlib.sha256(blob).hexdigest()
    return Begin(client_id, "s", 1, "p", sha256, len(blob), 1, 65536, 5, {}, "n", 0.0), blob


def put(spool, client_id, value):
    begin, blob = update(client_id, value)
    deltas = {"global": {"w": np.full(3, value, np.float32)}}
    spool.put(begin, EXPECTED, "fp32", blob, deltas)
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
    size = (tmp_path / "spool" / "s" / FILE).stat().st_size
    spool.clear()
    assert values(spool) == []
    put(spool, "pi-3", 4)
    assert (tmp_path / "spool" / "s" / FILE).stat().st_size == size
    assert values(spool) == [("pi-3", 4)]
    spool.remove()
    assert not (tmp_path / "spool" / "s").exists()


@given(data=st.data())
def test_cut_anywhere_the_whole_updates_before_are_restored_and_more_can_follow(tmp_path_factory, data):
    directory = tmp_path_factory.mktemp("spool")
    spool = Spool(directory)
    ends = []
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


@given(
    old=st.lists(st.integers(1, 9), max_size=4),
    new=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    data=st.data(),
)
def test_killed_while_a_round_is_written_over_the_one_before_its_whole_updates_are_restored(
    tmp_path_factory, old, new, data
):
    path = tmp_path_factory.mktemp("spool") / FILE
    spool = Spool(path.parent)
    before = b""
    for i, length in enumerate(old):
        put(spool, f"{'x' * length}-{i}", i)
        before = path.read_bytes()
    spool.clear()
    begins = [put(spool, f"{'y' * length}-{i}", 10 + i) for i, length in enumerate(new)]
    ends = {each.begin.client_id: each.offset + each.begin.size for each in spool._entries.values()}
    written = data.draw(st.integers(0, max(ends.values())))
    path.write_bytes(path.read_bytes()[:written] + before[written:])
    again = Spool(path.parent)
    whole = [
        (begin.client_id, 10.0 + i)
        for i, begin in enumerate(begins)
        if again.restore(begin, EXPECTED, "fp32")
    ]
    assert {client_id for client_id, end in ends.items() if end <= written} <= {
        client_id for client_id, _ in whole
    }
    put(again, "z", 99)
    assert values(again) == sorted([*whole, ("z", 99.0)])


def test_the_first_updates_need_not_be_read_again_and_memory_is_bounded_by_what_is_in_them(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(spool_module, "KEPT_BYTES", 24)
    expected = {"global": (TensorSpec("w", (3,)),)}
    sparse = "top-40"
    spool = Spool(tmp_path)
    for number in range(3):
        blob = encode_models({"global": {"w": np.float32([number, 0, 0])}}, sparse)
        begin = replace(update(f"pi-{number}", 0)[0], sha256=hashlib.sha256(blob).hexdigest(), size=len(blob))
        spool.put(begin, expected, sparse, blob, {"global": {"w": np.float32([number, 0, 0])}})
    assert values(spool) == [("pi-0", 0.0), ("pi-1", 1.0), ("pi-2", 2.0)]
    (tmp_path / FILE).write_bytes(bytes((tmp_path / FILE).stat().st_size))
    found = spool.updates()
    assert [float(next(found).deltas["global"]["w"][0]) for _ in range(2)] == [0.0, 1.0]
    with pytest.raises(WireError):
        next(found)


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
