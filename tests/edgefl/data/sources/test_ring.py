"""The ring stores the newest windows, is written atomically, and does not train on held-out windows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.errors import ConfigError, DataError, StateError
from edgefl.data.npz import load_shard
from edgefl.data.sources import load_samples, make_source
from edgefl.data.sources.ring import MAX_RING_BYTES, NO_LABELS, TARGET_LABELS, Ring, load_ring, lock_ring

AXES = ("x", "y", "z")


def fill(ring, count, step=4):
    """Add windows of one recording. Each reading is the number of its window."""
    for _ in range(count):
        number = ring.recorded
        ring.add(np.full((4, 3), number, np.float32), number % 3, 0, number * step)


def read_stored(path):
    with np.load(path) as file:
        return dict(zip(file["window_number"].tolist(), file["x"][:, 0, 0].tolist(), strict=True)), file[
            "y"
        ].tolist()


@given(st.integers(1, 7), st.lists(st.tuples(st.integers(1, 7), st.integers(0, 9)), max_size=4))
def test_newest_windows_survive_restarts_with_any_capacity(tmp_path_factory, capacity, restarts):
    path = tmp_path_factory.mktemp("ring") / "r.npz"
    total = 0
    expected = []
    for size, count in [(capacity, 5), *restarts]:
        ring = load_ring(path, size, 4, ()) or Ring(size, 4, AXES)
        fill(ring, count)
        expected = [*expected[-size:], *range(total, total + count)][-size:]
        total += count
        assert (ring.recorded, len(ring)) == (total, len(expected))
        ring.save(path)
        numbers, labels = read_stored(path)
        assert numbers == {number: float(number) for number in expected}
        assert labels == [number % 3 for number in numbers]


def test_held_out_windows_stay_held_out_as_the_ring_advances(tmp_path):
    ring = Ring(300, 4, AXES)
    sides = {}
    for _ in range(5):
        fill(ring, 150)
        ring.save(tmp_path / "r.npz")
        shard = load_shard(tmp_path / "r.npz", seed=1)
        assert 0.1 < len(shard.y_test) / len(ring) < 0.3
        for part, x in (("train", shard.x_train), ("test", shard.x_test)):
            for number in x[:, 0, 0].tolist():
                assert sides.setdefault(number, part) == part
    assert len(sides) == 750
    other = load_shard(tmp_path / "r.npz", seed=2).x_test
    assert set(other[:, 0, 0].tolist()) != {
        number for number, side in sides.items() if side == "test" and number >= 450
    }


def collect_rows(x):
    """Return the row numbers of windows whose readings are their row numbers."""
    return {row for window in x[:, :, 0].astype(int).tolist() for row in window}


@given(st.integers(1, 6), st.integers(0, 5), st.integers(0, 400))
def test_readings_are_never_on_both_sides(tmp_path_factory, step, seed, gap):
    """Readings are counted. The ring has room for 20 blocks and is saved three times while it advances."""
    path = tmp_path_factory.mktemp("ring") / "r.npz"
    capacity = 20 * 32 // step
    ring = Ring(capacity, 4, ("row",))
    trained, tested = set(), set()
    first = row = 0
    for _ in range(3):
        for number in range(capacity * 2 // 3):
            if number == gap:
                first, row = ring.recorded, row + 100
            ring.add(
                np.arange(row, row + 4, dtype=np.float32)[:, None],
                number % 2,
                first,
                (ring.recorded - first) * step,
            )
            row += step
        ring.save(path)
        ring = load_ring(path, capacity, 4, ())
        shard = load_shard(path, seed=seed)
        trained |= collect_rows(shard.x_train)
        tested |= collect_rows(shard.x_test)
        assert trained and tested and not trained & tested


def test_windows_in_two_blocks_are_left_out(tmp_path):
    """Blocks have 32 readings. With windows of 4 and a step of 2, windows 15 and 31 are in two blocks."""
    ring = Ring(100, 4, AXES)
    fill(ring, 48, step=2)
    ring.save(tmp_path / "r.npz")
    shard = load_shard(tmp_path / "r.npz")
    numbers = sorted(np.concatenate([shard.x_train, shard.x_test])[:, 0, 0].tolist())
    assert numbers == [number for number in range(48) if number not in (15, 31, 47)]
    assert len(shard.y_test) in (15, 30)
    pairs = set(zip(shard.x_train[:, 0, 0] // 16, shard.group_train.tolist(), strict=True))
    assert len(pairs) == len({block for block, _ in pairs}) == len({group for _, group in pairs})


def test_a_ring_of_one_block_is_refused(tmp_path):
    ring = Ring(100, 4, AXES)
    fill(ring, 8)
    ring.save(tmp_path / "r.npz")
    with pytest.raises(DataError, match=r"holds 8 windows from one block of 32 readings, .* record more"):
        load_shard(tmp_path / "r.npz")
    fill(ring, 1)
    ring.save(tmp_path / "r.npz")
    shard = load_shard(tmp_path / "r.npz")
    assert {len(shard.y_train), len(shard.y_test)} == {1, 8}


def test_failed_add_does_not_change_labels_of_other_windows(tmp_path):
    ring = Ring(2, 4, AXES)
    fill(ring, 2)
    with pytest.raises(ValueError, match="broadcast"):
        ring.add(np.zeros((9, 9), np.float32), 2, 0, 0)
    ring.save(tmp_path / "r.npz")
    assert read_stored(tmp_path / "r.npz") == ({1: 1.0}, [1])


def test_class_names_are_stored_and_checked(tmp_path):
    ring = Ring(9, 4, AXES, ("walk", "run", "stand"))
    fill(ring, 9)
    ring.save(tmp_path / "r.npz")
    assert load_ring(tmp_path / "r.npz", 9, 4, ("walk", "run", "stand")).classes == ("walk", "run", "stand")
    assert load_shard(tmp_path / "r.npz", num_classes=3).num_classes == 3
    with pytest.raises(DataError, match=r"has 3 classes \(walk, run, stand\), the federation has 4"):
        load_shard(tmp_path / "r.npz", num_classes=4)
    with pytest.raises(DataError, match=r"classes walk, run, stand, expected .* classes by number"):
        load_ring(tmp_path / "r.npz", 9, 4, ())


def test_files_that_are_not_rings_are_refused(tmp_path):
    assert load_ring(tmp_path / "none.npz", 2, 4, ()) is None
    np.savez(tmp_path / "shard.npz", x=np.zeros((2, 2)), y=np.arange(2))
    with pytest.raises(DataError, match="is not a ring of `edgefl device record`, it contains x, y"):
        load_ring(tmp_path / "shard.npz", 2, 4, ())
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(DataError, match=r"cannot be read as .npz"):
        load_ring(tmp_path / "text.npz", 2, 4, ())
    ring = Ring(2, 4, AXES)
    fill(ring, 2)
    ring.save(tmp_path / "r.npz")
    with pytest.raises(
        DataError, match="holds windows of 4 rows, classes by number, expected windows of 5 rows"
    ):
        load_ring(tmp_path / "r.npz", 2, 5, ())
    np.savez(
        tmp_path / "d.npz",
        x=np.zeros((2, 4, 3)),
        y=np.arange(2),
        window_number=np.arange(3),
        channel_names=np.array(AXES),
    )
    with pytest.raises(DataError, match="is damaged"):
        load_ring(tmp_path / "d.npz", 2, 4, ())
    np.savez(tmp_path / "n.npz", x=np.zeros((2, 3)), y=np.arange(2), window_number=np.arange(3))
    with pytest.raises(DataError, match=r"window_number is int64\[3\], expected 2"):
        load_shard(tmp_path / "n.npz")


def test_capacity_and_file_lock_are_checked(tmp_path):
    with pytest.raises(ConfigError, match="use a smaller --capacity"):
        Ring(MAX_RING_BYTES, 1, ("x",))
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="cannot use"), lock_ring(tmp_path / "file" / "r.npz"):
        pass
    (tmp_path / ".r.npz.left").write_text("half")
    with lock_ring(tmp_path / "r.npz"):
        assert not (tmp_path / ".r.npz.left").exists()
        with pytest.raises(StateError, match="another recorder writes"), lock_ring(tmp_path / "r.npz"):
            pass
    with lock_ring(tmp_path / "r.npz"):
        pass


def test_missing_folder_of_a_ring_is_created(tmp_path):
    """The option -o of the recorder may name a folder that does not exist yet."""
    with lock_ring(tmp_path / "two" / "folders" / "r.npz"):
        assert (tmp_path / "two" / "folders").is_dir()


@pytest.mark.parametrize("labels", [TARGET_LABELS, NO_LABELS])
def test_numbers_and_missing_labels_survive_a_restart(tmp_path, labels):
    ring = Ring(60, 4, AXES, labels=labels)
    for number in range(60):
        ring.add(np.full((4, 3), number, np.float32), number / 4, 0, number * 4)
    ring.save(tmp_path / "r.npz")
    loaded = load_ring(tmp_path / "r.npz", 40, 4, (), labels)
    assert loaded is not None and len(loaded) == 40
    loaded.save(tmp_path / "r.npz")
    shard = load_samples(make_source(str(tmp_path / "r.npz")), any_task=True).shard
    assert shard.has_labels == (labels == TARGET_LABELS)
    if labels == TARGET_LABELS:
        assert shard.target_train is not None
        np.testing.assert_array_equal(shard.target_train[:, 0], shard.x_train[:, 0, 0] / 4)
    else:
        assert shard.target_train is None
    with pytest.raises(DataError, match="expected windows with classes"):
        load_ring(tmp_path / "r.npz", 40, 4, ())
