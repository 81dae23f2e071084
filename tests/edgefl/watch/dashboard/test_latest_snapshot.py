"""Patches between snapshots, and the update for a browser that has seen some of them."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.watch.dashboard.latest_snapshot import LatestSnapshot
from edgefl.watch.dashboard.patch import index_records, merge_patch

LEAVES = st.none() | st.integers(0, 3) | st.text("ab", max_size=2) | st.lists(st.integers(0, 2), max_size=2)
TREES = st.dictionaries(st.sampled_from(["a", "b", "constructor", "__proto__"]), LEAVES, max_size=4)
DEVICES = st.dictionaries(st.sampled_from(["pi-1", "pi-2", "constructor"]), TREES, max_size=3)
SNAPSHOTS = st.builds(
    lambda devices, rows, more: {
        "history": [{"round": r} for r in rows],
        "devices": [{**d, "id": i} for i, d in devices.items()],
        **more,
    },
    DEVICES,
    st.sets(st.integers(1, 4)),
    TREES,
)


def test_patch_contains_only_the_changes():
    before = {
        "round": 1,
        "devices": {"pi-1": {"state": "idle", "why": "x", "loss": 1.0}, "pi-2": {"state": "idle"}},
    }
    after = {"round": 2, "devices": {"pi-1": {"state": "sent", "why": "x"}, "pi-3": {"state": "idle"}}}
    assert merge_patch(before, after) == {
        "round": 2,
        "devices": {"pi-1": {"state": "sent", "loss": None}, "pi-2": None, "pi-3": {"state": "idle"}},
    }
    assert merge_patch(after, after) == {}


@given(SNAPSHOTS, SNAPSHOTS)
def test_patch_turns_one_snapshot_into_the_other(before, after):
    def apply_patch(target, patch):
        result = dict(target)
        for key, value in patch.items():
            if value is None:
                result.pop(key, None)
            else:
                result[key] = (
                    apply_patch(result[key], value)
                    if isinstance(value, dict) and isinstance(result.get(key), dict)
                    else value
                )
        return result

    first = index_records(before)
    second = index_records(after)
    patch = merge_patch(first, second)
    assert apply_patch(first, patch) == second
    assert bool(patch) == (first != second)


def test_records_are_indexed_by_key_without_missing_values(make_snapshot):
    snapshot = make_snapshot(3)
    snapshot["devices"][0]["accuracy"] = None
    indexed = index_records(snapshot)
    assert list(indexed["devices"]) == ["pi-1", "pi-2", "pi-3"]
    assert indexed["history"]["4"]["round"] == 4
    assert indexed["clusters"]["rounds"]["5"]["assignment"]["pi-2"] == 1
    assert "accuracy" not in indexed["devices"]["pi-1"]


def test_reader_one_version_behind_gets_a_patch_others_a_snapshot(make_snapshot):
    latest = LatestSnapshot()
    snapshot = make_snapshot(3)
    assert latest.wait_for_update(0, 0.0) is None
    assert latest.put(snapshot)
    first = latest.wait_for_update(0, 0.0)
    assert (first.kind, first.version) == ("whole", 1)
    assert latest.wait_for_update(1, 0.0) is None
    for round in (50, 51):
        snapshot = copy.deepcopy(snapshot)
        snapshot["round"] = round
        assert latest.put(snapshot)
    assert (latest.wait_for_update(2, 0.0).kind, latest.wait_for_update(2, 0.0).data) == (
        "patch",
        b'{"round":51}',
    )
    assert latest.wait_for_update(1, 0.0).kind == "whole"
    assert latest.wait_for_update(0, 0.0).data == latest.wait_for_update(1, 0.0).data


def test_snapshot_with_only_a_new_time_is_not_passed_on(make_snapshot):
    latest = LatestSnapshot()
    snapshot = make_snapshot(3)
    assert latest.put(snapshot)
    assert not latest.put({**snapshot, "ts": snapshot["ts"] + 1})
    assert latest.put({**snapshot, "ts": snapshot["ts"] + 2, "round": 99})
    assert (
        latest.wait_for_update(1, 0.0).data.startswith(b'{"ts":')
        or b'"ts"' in latest.wait_for_update(1, 0.0).data
    )


def test_a_snapshot_with_nan_is_refused(make_snapshot):
    with pytest.raises(ValueError):
        LatestSnapshot().put({**make_snapshot(2), "deadline_s": float("nan")})


def test_readers_are_counted_and_closing_ends_the_wait():
    latest = LatestSnapshot()
    with latest.count_reader() as one, latest.count_reader() as two:
        assert (one, two, latest.is_watched) == (1, 2, True)
    assert not latest.is_watched
    latest.close()
    assert latest.wait_for_update(0, 30.0) is None and latest.is_closed
