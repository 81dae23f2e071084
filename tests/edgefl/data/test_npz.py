from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.errors import DataError
from edgefl.base.tasks.samples import SamplesConfig
from edgefl.base.types import Shard
from edgefl.data.datasets.npz_file import load as load_npz
from edgefl.data.npz import list_channels, load_shard, make_samples, make_shard, save_shard
from edgefl.data.sources import DataSource, load_samples, make_source, read_source
from edgefl.data.split import RULES, SplitRecord, decode_split, encode_split
from edgefl.data.unit import list_class_names
from tests.support.sample_files import SAMPLE_FILES, windows_of


def write(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def make_arrays(count: int = 10) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {"x": rng.random((count, 4, 3)).astype(np.float32), "y": np.arange(count) % 3}


def test_uint8_samples_are_scaled_and_floats_are_unchanged(tmp_path: Path) -> None:
    x = np.array([[0], [51], [255], [102]], np.uint8)
    shard = load_shard(
        write(tmp_path / "a.npz", x=x, y=np.array([0, 1, 0, 1]), x_test=x, y_test=np.array([0, 1, 0, 2]))
    )
    assert shard.x_train.dtype == np.float32
    np.testing.assert_array_equal(shard.x_train, np.float32([[0], [0.2], [1], [0.4]]))
    assert shard.y_train.dtype == np.int64
    assert shard.num_classes == 3
    floats = load_shard(write(tmp_path / "b.npz", **make_arrays()))
    assert floats.x_train.shape == (7, 4, 3)
    assert floats.y_test.tolist() == [1, 2, 0]


def test_split_is_determined_by_the_seed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.npz", **make_arrays(50), group=np.arange(50) // 2)
    first = load_shard(path, seed=3)
    again = load_shard(path, seed=3)
    other = load_shard(path, seed=4)
    np.testing.assert_array_equal(first.x_test, again.x_test)
    assert not np.array_equal(first.x_test, other.x_test)
    all_samples = np.concatenate([first.x_train, first.x_test]).reshape(50, -1)
    np.testing.assert_array_equal(np.sort(all_samples, 0), np.sort(make_arrays(50)["x"].reshape(50, -1), 0))


def test_groups_are_not_divided_and_training_samples_store_their_group(tmp_path: Path) -> None:
    """Six recordings of five samples: class 0 in b, c and d, class 1 in a, e and f."""
    names = np.repeat(["b", "a", "c", "d", "e", "f"], 5)
    arrays = {
        "x": np.arange(30, dtype=np.float32)[:, None],
        "y": np.repeat([0, 1, 0, 0, 1, 1], 5),
        "group": names,
    }
    made = make_samples(arrays, "here")
    shard, split = made.shard, made.split
    held_out_names = {names[int(value)] for value in shard.x_test[:, 0]}
    assert len(held_out_names & {*"bcd"}) == len(held_out_names & {*"aef"}) == 1 and len(shard.y_test) == 10
    assert shard.group_train is not None
    training_names = [names[int(value)] for value in shard.x_train[:, 0]]
    assert [sorted(set(names))[group] for group in shard.group_train] == training_names
    assert split == SplitRecord(rule="group", seed=1, train=20, test=10)
    save_shard(tmp_path / "s.npz", shard)
    restored_groups = load_shard(tmp_path / "s.npz").group_train
    assert restored_groups is not None
    np.testing.assert_array_equal(restored_groups, np.unique(training_names, return_inverse=True)[1])


def test_split_record_names_the_rule() -> None:
    rules = {name: make_samples(arrays, name).split.rule for name, arrays in SAMPLE_FILES.items()}
    assert rules == {"recordings": "recording", "groups": "group", "time": "time", "ring": "window_number"}
    with_test_part = make_arrays() | {"x_test": make_arrays()["x"], "y_test": make_arrays()["y"]}
    assert make_samples(with_test_part, "own").split.rule == "x_test"


def test_only_recording_of_a_file_with_test_samples_is_cut() -> None:
    """There are three windows of 8 rows with a step of 4, and one window of another recording."""
    signal = np.random.default_rng(3).normal(size=(16, 2)).astype(np.float32)
    x = np.stack([signal[0:8], signal[4:12], np.flip(signal[:8], 0), signal[8:16]])
    arrays = {"x": x, "y": np.array([0, 0, 1, 0]), "x_test": x[:1] + 1, "y_test": np.array([1])}
    shard = make_shard(arrays, "here")
    np.testing.assert_array_equal(shard.x_train, x[[0, 2, 3]], "cut between its outer windows")
    assert shard.group_train is not None and len(set(shard.group_train)) == 3
    pictures = {name: each.reshape(len(each), -1) for name, each in arrays.items()}
    pictures |= {"y": arrays["y"], "y_test": arrays["y_test"]}
    assert make_shard(pictures, "here").group_train is None


def test_overlapping_groups_of_a_file_with_test_samples_are_joined() -> None:
    """Windows of 16 rows with a step of 4: windows 0 to 5 are one recording, 6 and 7 another."""
    x = np.concatenate([windows_of(6, 4, 5), windows_of(2, 16, 6)])
    arrays = {
        "x": x,
        "y": np.arange(8) % 2,
        "group": np.array(["b", "b", "b", "a", "a", "a", "c", "c"]),
        "x_test": windows_of(2, 16, 7),
        "y_test": np.array([0, 1]),
    }
    made = make_samples(arrays, "here")
    shard, split = made.shard, made.split
    np.testing.assert_array_equal(shard.x_train, x, "no window is left out")
    assert shard.group_train is not None
    assert np.unique(shard.group_train, return_inverse=True)[1].tolist() == [0, 0, 0, 0, 0, 0, 1, 1]
    assert split == SplitRecord(rule="x_test", seed=1, train=8, test=2)


def test_split_record_counts_test_windows_that_overlap_training_windows() -> None:
    """`x_test` has a new window, a window that shares halves with training windows, and a copy."""
    windows = windows_of(12, 8, 8)
    x = windows[::2]
    x_test = np.concatenate([windows_of(1, 16, 9), windows[1:2], x[3:4]])
    arrays = {"x": x, "y": np.arange(6) % 2, "x_test": x_test, "y_test": np.array([0, 1, 0])}
    split = make_samples(arrays, "here", count_overlapping=True).split
    assert split.overlapping == 2
    assert "2 of 3 windows of x_test overlap training windows" in split.description
    assert decode_split(encode_split(split)) == split
    without_overlap = arrays | {"x_test": x_test[:1], "y_test": np.array([0])}
    split = make_samples(without_overlap, "here", count_overlapping=True).split
    assert (split.overlapping, split.description) == (0, RULES["x_test"])
    pictures = {name: each.reshape(len(each), 16, 2, 1) for name, each in arrays.items() if "x" in name}
    split = make_samples(arrays | pictures, "here", count_overlapping=True).split
    assert split.overlapping == 0


@given(st.integers(4, 60), st.floats(0.01, 0.99))
def test_both_parts_of_a_split_have_samples(count: int, share: float) -> None:
    x = np.arange(count, dtype=np.float32)[:, None]
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        path = write(
            Path(directory) / "s.npz",
            x=x,
            y=np.r_[np.zeros(count // 2), np.ones(count - count // 2)].astype(int),
        )
        shard = load_shard(path, test_share=share)
    assert len(shard.y_train) >= 1
    assert len(shard.y_test) >= 1
    assert sorted(np.concatenate([shard.x_train, shard.x_test]).ravel().tolist()) == list(range(count))


def test_a_device_may_have_samples_of_one_class(tmp_path: Path) -> None:
    shard = load_shard(write(tmp_path / "s.npz", **make_arrays() | {"y": np.full(10, 2)}), num_classes=5)
    assert set(shard.y_train.tolist()) == set(shard.y_test.tolist()) == {2}
    assert (len(shard.y_train), len(shard.y_test), shard.num_classes) == (8, 2, 5)


def test_saved_shard_is_read_back_bit_for_bit(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(9, 5)).astype(np.float32)
    shard = Shard(
        x_train=x, y_train=np.arange(9) % 4, x_test=x[:3] * 2, y_test=np.array([0, 1, 2]), num_classes=7
    )
    save_shard(tmp_path / "deep" / "s.npz", shard)
    restored = load_shard(tmp_path / "deep" / "s.npz")
    for name in ("x_train", "y_train", "x_test", "y_test"):
        np.testing.assert_array_equal(getattr(restored, name), getattr(shard, name))
    assert restored.num_classes == 7


def add_nan(x: Any) -> Any:
    x = x.copy()
    x[3] = np.nan
    return x


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("no x", {"x": None}, "no array x"),
    ("no y", {"y": None}, "no array y"),
    ("lengths", {"y": np.arange(9) % 3}, "10 samples and y has 9 labels"),
    ("nan", {"x": add_nan(make_arrays()["x"])}, "NaN or infinite values in 1 of 10 samples, first at 3"),
    ("overflow", {"x": np.full((10, 2), 1e300)}, "infinite"),
    ("negative", {"y": np.arange(10) - 1}, "label -1"),
    ("fractions", {"y": np.arange(10) / 2}, "expected whole numbers"),
    ("cube", {"y": np.zeros((10, 2, 2), int)}, "one whole number per sample"),
    ("empty", {"x": np.zeros((0, 4)), "y": np.zeros(0, int)}, "empty"),
    ("flat", {"x": np.zeros(10)}, "expected \\(samples"),
    ("text", {"x": np.array(["a"] * 10)}, "expected uint8 pictures or floats"),
    ("pickled", {"x": np.array([{}] * 10, object)}, "cannot be read"),
    ("half a test split", {"x_test": make_arrays()["x"]}, "no array y_test"),
    (
        "another test shape",
        {"x_test": np.zeros((2, 9)), "y_test": np.zeros(2, int)},
        "x_test has samples of shape \\(9,\\)",
    ),
    ("too few classes", {"num_classes": 2}, "label 2"),
    ("group lengths", {"group": np.arange(9)}, r"group is int64\[9\], expected 10 whole numbers or names"),
    ("group type", {"group": np.arange(10) / 2}, "group is float64"),
    ("one group", {"group": np.zeros(10, int)}, "no class is in two of them"),
    ("a group for each class", {"group": np.arange(10) % 3}, "names 3 groups .* leave `group` out"),
    ("bad num_classes", {"num_classes": np.zeros(2)}, "num_classes"),
]


@pytest.mark.parametrize(("change", "message"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_error_for_an_invalid_shard_names_file_and_cause(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    arrays = {name: value for name, value in (make_arrays() | change).items() if value is not None}
    path = write(tmp_path / "bad.npz", **arrays)
    with pytest.raises(DataError, match=message) as caught:
        load_shard(path)
    assert str(path) in str(caught.value)


def test_files_that_are_not_shards_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no shard at"):
        load_shard(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(DataError, match="cannot be read"):
        load_shard(tmp_path / "text.npz")
    np.save(tmp_path / "bare.npy", np.zeros(3))
    with pytest.raises(DataError, match="bare array"):
        load_shard(tmp_path / "bare.npy")
    whole = write(tmp_path / "whole.npz", **make_arrays(200)).read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="cannot be read"):
        load_shard(tmp_path / "cut.npz")
    damaged = bytearray(whole)
    damaged[300] ^= 255
    (tmp_path / "damaged.npz").write_bytes(damaged)
    with pytest.raises(DataError, match="cannot be read"):
        load_shard(tmp_path / "damaged.npz")


@pytest.mark.parametrize("group", [None, np.arange(100) // 10])
def test_whole_numbers_to_predict_are_no_classes_of_the_split(group: Any) -> None:
    x = np.random.default_rng(1).normal(size=(100, 4)).astype(np.float32)
    arrays = {"x": x, "y": 10 * np.arange(100)} | ({} if group is None else {"group": group})
    shard = make_samples(arrays, "hours.npz", any_task=True).shard
    assert (len(shard.y_train), len(shard.y_test)) == (80, 20)


def test_arrays_that_were_found_are_listed(tmp_path) -> None:
    np.savez(tmp_path / "a.npz", X=np.zeros((4, 3)), labels=np.zeros(4))
    with pytest.raises(DataError, match=r"a.npz: there is no array x, the file has X, labels; write it with"):
        load_samples(make_source(str(tmp_path / "a.npz")))


@pytest.mark.parametrize("scale", [0, -1, [1, 2], "1", np.nan, np.inf, 1e-312, 1e300])
def test_scale_of_a_file_is_one_number_above_0(tmp_path, scale) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 3)), y=np.arange(4) % 2, scale=scale)
    with pytest.raises(DataError, match="expected one number above 0 that divides x"):
        load_samples(make_source(str(tmp_path / "a.npz")))


@pytest.mark.parametrize(
    ("texts", "numbers", "names"),
    [
        (["sit", "run", "sit", "walk"], [1, 0, 1, 2], ("run", "sit", "walk")),
        (["3.0", "1", "10.0", "2"], [3, 1, 10, 2], ()),
        ([b"sit", "läuft".encode(), b"sit", b"a"], [2, 1, 2, 0], ("a", "läuft", "sit")),
    ],
)
@pytest.mark.parametrize("has_list", [False, True])
def test_labels_that_are_texts_are_read_as_in_a_csv_file(tmp_path, texts, numbers, names, has_list) -> None:
    np.savez(
        tmp_path / "a.npz", x=np.zeros((4, 3)), y=np.array(texts), x_test=np.ones((1, 3)), y_test=texts[:1]
    )
    if has_list and names:
        (tmp_path / "classes.txt").write_text("\n".join(reversed(names)))
        numbers = [len(names) - 1 - number for number in numbers]
        names = tuple(reversed(names))
    arrays = read_source(make_source(str(tmp_path / "a.npz")))
    assert arrays["y"].tolist() == numbers
    assert arrays["y_test"].tolist() == numbers[:1]
    assert list_class_names(arrays) == names
    classes = names or ()
    dataset = load_npz(str(tmp_path / "a.npz"), 1, SamplesConfig(classes=classes))
    assert dataset.y_train.tolist() == numbers


@pytest.mark.parametrize(
    ("arrays", "name", "likely"),
    [
        ({"labels": [0, 1]}, "labels", "y"),
        ({"Y": [0, 1]}, "Y", "y"),
        ({"target": [0.5, 1]}, "target", "y"),
        ({"y": [0, 1], "X_test": [[1.0]], "Y_test": [0]}, "X_test", "x_test"),
    ],
)
def test_array_under_another_name_is_refused(tmp_path, arrays, name, likely) -> None:
    path = write(tmp_path / "a.npz", x=np.zeros((2, 3), np.float32), **arrays)
    for read in (lambda: read_source(make_source(str(path))), lambda: load_npz(str(path))):
        with pytest.raises(DataError, match=f"the array '{name}' is unknown, expected '{likely}'; rename it"):
            read()


def test_other_arrays_are_named(tmp_path) -> None:
    path = write(tmp_path / "a.npz", **make_arrays(), labels=np.arange(10), rate=50, client=np.arange(10))
    loaded = load_samples(make_source(str(path)))
    assert loaded.changes == ("arrays that are left out: labels, rate",)


def test_channels_of_a_file_have_the_order_of_their_names_or_of_the_federation(tmp_path) -> None:
    x = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    names = np.array(["a10", "a9", "a1"])
    path = write(tmp_path / "a.npz", x=x, y=[0, 1], x_test=x + 1, y_test=[0, 1], channel_names=names)
    source = make_source(str(path))
    by_name = read_source(source)
    np.testing.assert_array_equal(by_name["x"], x[..., [2, 1, 0]])
    np.testing.assert_array_equal(by_name["x_test"], x[..., [2, 1, 0]] + 1)
    assert by_name["channels"].tolist() == ["a1", "a9", "a10"]
    federation = SamplesConfig(channels=("a9", "a10"))
    loaded = load_samples(source, federation)
    np.testing.assert_array_equal(loaded.shard.x_train, x[..., [1, 0]])
    assert loaded.changes == ("channels a9, a10; left out: a1 (not requested)",)
    np.testing.assert_array_equal(load_npz(str(path), samples=federation).x_train, x[..., [1, 0]])
    dataset = load_npz(str(path), samples=federation)
    assert dataset.channels == federation.channels
    with pytest.raises(DataError, match="no channel 'a2' among a10, a9, a1, the federation has a1, a2"):
        read_source(source, SamplesConfig(channels=("a1", "a2")))


def test_files_of_other_channels_are_not_joined(tmp_path) -> None:
    arrays = {"x": np.zeros((4, 2, 2), np.float32), "y": [0, 1, 0, 1]}
    paths = [
        str(write(tmp_path / f"{name}.npz", **arrays, channel_names=np.array([name, "z"]))) for name in "ab"
    ]
    with pytest.raises(DataError, match=r"b\.npz has the channels b, z, .*a\.npz a, z; expected the same"):
        load_npz(",".join(paths))


@pytest.mark.parametrize("names", [["a", "b"], ["a", "b", "b"]])
def test_names_that_do_not_fit_the_channels_are_refused(tmp_path, names) -> None:
    path = write(tmp_path / "a.npz", x=np.zeros((2, 2, 3), np.float32), y=[0, 1], channel_names=names)
    with pytest.raises(DataError, match="expected one name for each channel of x"):
        read_source(make_source(str(path)))


def test_labels_that_are_no_texts_are_refused(tmp_path) -> None:
    path = write(tmp_path / "a.npz", x=np.zeros((2, 3), np.float32), y=np.array([b"\xe9", b"a"]))
    with pytest.raises(DataError, match="the labels are no texts in UTF-8"):
        read_source(make_source(str(path)))
    path = write(tmp_path / "a.npz", x=np.zeros((2, 3), np.float32), y=np.array(["a", "nan"]))
    with pytest.raises(DataError, match="the label 'nan' is no class"):
        read_source(make_source(str(path)))


def test_column_of_texts_is_read_as_labels(tmp_path) -> None:
    path = write(tmp_path / "a.npz", x=np.zeros((2, 3), np.float32), y=np.array([["b"], ["a"]]))
    assert read_source(make_source(str(path)))["y"].tolist() == [1, 0]


@pytest.mark.parametrize(
    "labels", [{"y": np.arange(10) % 3, "num_classes": 5}, {"y": np.eye(5)[np.arange(10) % 3]}]
)
def test_samples_with_more_classes_than_the_federation_are_refused(labels) -> None:
    arrays = {"x": make_arrays()["x"], **{name: np.asarray(value) for name, value in labels.items()}}
    assert make_shard(arrays, "pi-1", num_classes=6).num_classes == 6
    with pytest.raises(DataError, match=r"pi-1: the samples have 5 classes, .* the federation has 4"):
        make_shard(arrays, "pi-1", num_classes=4)


def test_parts_of_other_kinds_are_refused(tmp_path: Path) -> None:
    x = np.arange(40.0).reshape(20, 2)
    for arrays, error in (
        (
            {"y_test": np.array(["walk", "run"] * 10)},
            "y_test holds texts and y int64, expected names or numbers",
        ),
        (
            {"x": x.astype(np.uint8), "y_test": np.arange(20) % 2},
            "x is uint8 and x_test float64, expected one",
        ),
    ):
        np.savez(tmp_path / "a.npz", **{"x": x, "y": np.arange(20) % 2, "x_test": x, **arrays})
        with pytest.raises(DataError, match=error):
            make_shard(read_source(DataSource(data=str(tmp_path / "a.npz"))), "a.npz")


def test_names_may_be_bytes(tmp_path: Path) -> None:
    names = {"class_names": np.array([b"run", b"sit"]), "channel_names": np.array([b"ay", b"ax"])}
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 2)), y=np.arange(4) % 2, **names)
    arrays = read_source(DataSource(data=str(tmp_path / "a.npz")))
    assert list_class_names(arrays) == ("run", "sit")
    assert list_channels(arrays) == ("ax", "ay")


def test_channels_without_names_are_read_in_the_order_of_the_federation_with_a_note(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 2)), y=np.arange(4) % 2)
    arrays = read_source(DataSource(data=str(tmp_path / "a.npz")), SamplesConfig(channels=("ax", "ay")))
    assert arrays["notes"].tolist() == ["the channels have no names, and are read in the order ax, ay"]


def test_names_in_another_encoding_are_refused(tmp_path: Path) -> None:
    names = np.array(["k\u00fc".encode("latin-1"), b"b"])
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 2)), y=np.arange(4) % 2, channel_names=names)
    with pytest.raises(DataError, match=r"channel_names holds no texts in UTF-8.* channel_names.astype"):
        read_source(DataSource(data=str(tmp_path / "a.npz")))
