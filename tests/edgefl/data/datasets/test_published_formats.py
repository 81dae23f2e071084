"""The formats in which data sets are published, with small handmade archives."""

import gzip
import hashlib
import io
import json
import tarfile
import wave
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgefl.base.errors import ConfigError, DataError
from edgefl.data import list_datasets, load_dataset
from edgefl.data.datasets import cifar10, cifar100, shoulder
from edgefl.data.datasets.catalog import DATASETS
from edgefl.data.datasets.uci_har import CHANNELS


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEFL_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def write_tar(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def encode_record(labels: list[int], picture: np.ndarray) -> bytes:
    return bytes(labels) + picture.transpose(2, 0, 1).tobytes()


def test_cifar10_binary_archive_is_read(folder: Path) -> None:
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (6, 32, 32, 3)).astype(np.uint8)
    names = [*cifar10.TRAIN_FILES, *cifar10.TEST_FILES]
    write_tar(
        folder / cifar10.ARCHIVE, {name: encode_record([i + 2], pictures[i]) for i, name in enumerate(names)}
    )
    data = load_dataset("cifar10")
    assert data.y_train.tolist() == [2, 3, 4, 5, 6] and data.y_test.tolist() == [7]
    np.testing.assert_array_equal(data.x_train, pictures[:5] / np.float32(255))
    np.testing.assert_array_equal(data.x_test, pictures[5:] / np.float32(255))


def test_cifar100_binary_archive_is_read(folder: Path) -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3)).astype(np.uint8)
    train = encode_record([4, 0], pictures[0]) + encode_record([1, 1], pictures[1])
    write_tar(
        folder / cifar100.ARCHIVE,
        {
            "cifar-100-binary/train.bin": train,
            "cifar-100-binary/test.bin": encode_record([1, 1], pictures[2]),
        },
    )
    data = load_dataset("cifar100")
    assert data.y_train.tolist() == [0, 1] and data.num_classes == 100 and data.note == ""
    assert data.coarse is not None and data.coarse[:2].tolist() == [4, 1]
    np.testing.assert_array_equal(data.x_test[0], pictures[2] / np.float32(255))


def test_cifar100_superclasses_have_five_classes_each() -> None:
    names = " ".join(cifar100.SUPERCLASSES).split()
    assert len(set(names)) == 100
    assert np.bincount(cifar100.find_superclasses(names)).tolist() == [5] * 20
    assert cifar100.find_superclasses(["whale", "apple", "wolf"]).tolist() == [0, 4, 8]
    with pytest.raises(DataError, match="no class 'house_cat'"):
        cifar100.find_superclasses(["house_cat"])


def test_damaged_cifar_archives_are_refused(folder: Path) -> None:
    path = folder / cifar10.ARCHIVE
    for content in (b"no tar", gzip.compress(b"neither")):
        path.write_bytes(content)
        with pytest.raises(DataError, match="not the binary version of CIFAR"):
            load_dataset("cifar10")
    write_tar(path, {"cifar-10-batches-py/data_batch_1": b"x"})
    with pytest.raises(DataError, match="not the binary version"):
        load_dataset("cifar10")
    write_tar(path, dict.fromkeys((*cifar10.TRAIN_FILES, *cifar10.TEST_FILES), b"x" * 3072))
    with pytest.raises(DataError, match="not the binary version"):
        load_dataset("cifar10")


def write_idx(folder: Path, name: str, magic: int, values: np.ndarray) -> None:
    header = np.array([magic, *values.shape], ">u4").tobytes()
    (folder / "qmnist").mkdir(exist_ok=True)
    (folder / "qmnist" / name).write_bytes(gzip.compress(header + values.tobytes()))


def test_qmnist_is_split_by_writer(folder: Path) -> None:
    pictures = np.arange(6 * 784).reshape(6, 28, 28).astype(np.uint8)
    # Columns: class, form series, writer, digit of this writer. Writer 9 wrote the last digit first.
    table = np.array([[5, 0, 9, 30, 35, 0, 0, 0]] * 6, ">i4")
    table[:, 2] = [9, 8, 9, 8, 9, 9]
    table[:, 3] = [30, 1, 31, 2, 40, 2]
    table[:, 0] = range(6)
    write_idx(folder, "qmnist-train-images-idx3-ubyte.gz", 0x803, pictures)
    write_idx(folder, "qmnist-train-labels-idx2-int.gz", 0xC02, table)
    data = load_dataset("mnist-writers", {"test_share": 0.25})
    assert data.y_train.tolist() == [0, 1, 2, 5] and data.y_test.tolist() == [3, 4]
    assert data.group_train is not None and data.group_train.tolist() == [9, 8, 9, 9]
    assert data.group_test is not None and data.group_test.tolist() == [8, 9]
    np.testing.assert_array_equal(data.x_test[1, :, :, 0], pictures[4] / np.float32(255))
    write_idx(folder, "qmnist-test-images-idx3-ubyte.gz", 0x803, pictures[:2])
    write_idx(folder, "qmnist-test-labels-idx2-int.gz", 0xC02, table[:2])
    official = load_dataset("mnist-writers", {"split": "official"})
    assert (len(official.y_train), official.y_test.tolist()) == (6, [0, 1])
    with pytest.raises(DataError, match="'own' or 'official'"):
        load_dataset("mnist-writers", {"split": "0.2"})
    write_idx(folder, "qmnist-train-labels-idx2-int.gz", 0xC02, table[:5])
    with pytest.raises(DataError, match="download the qmnist archives again"):
        load_dataset("mnist-writers")


def format_har_files(windows: np.ndarray, y: list[int], wearers: list[int], part: str) -> dict[str, str]:
    files = {f"y_{part}.txt": "\n".join(map(str, y)), f"subject_{part}.txt": "\n".join(map(str, wearers))}
    for i, channel in enumerate(CHANNELS):
        rows = ("  ".join(f"{value: .7e}" for value in row) for row in windows[:, :, i])
        files[f"Inertial Signals/{channel}_{part}.txt"] = "\n".join(rows)
    return {f"UCI HAR Dataset/{part}/{name}": content for name, content in files.items()}


def test_uci_har_zip_archive_is_read(folder: Path) -> None:
    signal = np.random.default_rng(0).normal(size=(64 * 9, 9)).round(4)
    windows = np.stack([signal[start : start + 128] for start in range(0, 64 * 8, 64)])
    other = np.random.default_rng(1).normal(size=(2, 128, 9)).round(4)
    files = format_har_files(windows, [1] * 8, [3] * 8, "train") | format_har_files(
        other, [6, 6], [2, 2], "test"
    )
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    for nested in (False, True):
        path = folder / "uci_har.zip"
        if nested:
            with zipfile.ZipFile(path, "w") as outer:
                outer.writestr("UCI HAR Dataset.zip", inner.getvalue())
        else:
            path.write_bytes(inner.getvalue())
        data = load_dataset("uci-har", {"standardise": False, "test_share": 0.25})
        # The recording of eight windows is cut before windows 4 and 6: 3 and 5 are in neither part. The two
        # windows of the other wearer are in time order.
        np.testing.assert_allclose(
            data.x_train, np.concatenate([windows[[0, 1, 2, 4]], other[:1]]).astype(np.float32)
        )
        np.testing.assert_allclose(
            data.x_test, np.concatenate([windows[[6, 7]], other[1:]]).astype(np.float32)
        )
        assert data.recording_train is not None
        assert len(set(data.recording_train[:3])) == 1 and len(set(data.recording_train)) == 3
        assert data.y_test.tolist() == [0, 0, 5]
        assert data.group_test is not None and data.group_test.tolist() == [3, 3, 2]
    by_wearer = load_dataset("uci-har", {"split": "wearer"})
    assert (len(by_wearer.y_train), len(by_wearer.y_test)) == (8, 2)
    path.write_bytes(inner.getvalue()[:-40])
    with pytest.raises(DataError, match="not the official UCI HAR archive"):
        load_dataset("uci-har")


def test_shuffled_uci_har_windows_are_sorted(folder: Path) -> None:
    signal = np.random.default_rng(1).normal(size=(64 * 21, 9)).astype(np.float16)
    windows = np.stack([signal[start : start + 128] for start in range(0, 64 * 20, 64)])
    order = np.random.default_rng(2).permutation(20)
    np.savez(
        folder / "uci_har.npz", x=windows[order], y=np.zeros(20, np.uint8), subject=np.full(20, 4, np.uint8)
    )
    data = load_dataset("uci-har", {"standardise": False})
    np.testing.assert_array_equal(
        np.sort(data.x_test[:, 0, 0]), np.sort(windows[15:, 0, 0].astype(np.float32))
    )
    assert len(data.x_train) == 13  # 9 and 14 overlap the cuts before windows 10 and 15
    halves = [
        {half.tobytes() for x in part for half in (x[:64], x[64:])} for part in (data.x_train, data.x_test)
    ]
    assert not halves[0] & halves[1]


def test_medmnist_file_is_read(folder: Path) -> None:
    rng = np.random.default_rng(0)
    parts = {}
    for part, count in (("train", 4), ("val", 2), ("test", 3)):
        parts[f"{part}_images"] = rng.integers(0, 256, (count, 28, 28, 3)).astype(np.uint8)
        parts[f"{part}_labels"] = np.arange(count, dtype=np.uint8)[:, None]
    np.savez(folder / "dermamnist.npz", **parts)
    data = load_dataset("dermamnist")
    assert data.y_train.tolist() == [0, 1, 2, 3, 0, 1] and data.y_test.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(data.x_train[5], parts["val_images"][1] / np.float32(255))
    assert load_dataset("dermamnist", {"size": 40}).x_test.shape == (3, 40, 40, 3)
    black = {
        name: np.zeros((len(part), 40, 40, 3), np.uint8) if part.ndim == 4 else part
        for name, part in parts.items()
    }
    np.savez(folder / "dermamnist_40.npz", **black)
    assert load_dataset("dermamnist", {"size": 40}).x_test.max() == 0
    np.savez(folder / "dermamnist.npz", x=parts["val_images"])
    with pytest.raises(DataError, match="no train_images and train_labels"):
        load_dataset("dermamnist")


def write_leaf(path: Path, people: dict[str, list[int]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {name: {"x": [[k / 255] * 784 for k in y], "y": y} for name, y in people.items()}
    path.write_text(
        json.dumps(
            {"users": list(people), "num_samples": [len(y) for y in people.values()], "user_data": data}
        )
    )


def test_leaf_files_are_read(folder: Path) -> None:
    write_leaf(folder / "femnist/train/all_data_0_niid_0_keep_0_train_9.json", {"f0": [3, 61], "f1": [5]})
    write_leaf(folder / "femnist/train/all_data_1_niid_0_keep_0_train_9.json", {"f2": [7]})
    write_leaf(folder / "femnist/test/all_data_0_niid_0_keep_0_test_9.json", {"f1": [6], "f0": [4]})
    data = load_dataset("femnist")
    assert (
        data.y_train.tolist() == [3, 61, 5, 7] and data.y_test.tolist() == [6, 4] and data.num_classes == 62
    )
    assert data.group_train is not None and data.group_train.tolist() == [0, 0, 1, 2]
    assert data.group_test is not None and data.group_test.tolist() == [1, 0]
    assert data.x_train.shape == (4, 28, 28, 1)
    np.testing.assert_allclose(data.x_train[:, 0, 0, 0], np.array([3, 61, 5, 7]) / 255, rtol=1e-6)
    assert load_dataset("femnist", {"writers": 1}).y_train.tolist() == [3, 61]


def test_unsplit_leaf_files_are_split_by_client(folder: Path) -> None:
    write_leaf(folder / "femnist/all_data/all_data_0.json", {"f0": [1, 2, 3, 4, 5], "f1": [6, 7]})
    data = load_dataset("femnist")
    assert data.y_train.tolist() == [1, 2, 3, 4, 6] and data.y_test.tolist() == [5, 7]
    (folder / "femnist/all_data/all_data_0.json").write_text(
        '{"users": ["f0"], "user_data": {"f0": {"x": [[2.5]], "y": [0]}}}'
    )
    with pytest.raises(DataError, match="is not a LEAF file"):
        load_dataset("femnist")


def write_wav(path: Path, values: list[int], rate: int = 8000) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.array(values, "<i2").tobytes())


def test_spoken_digits_are_read_from_the_published_folder(folder: Path) -> None:
    """A short sound gets zeros on both sides, a long one is cut on both sides, and take 10 is the last."""
    recordings = folder / "free-spoken-digit-dataset/recordings"
    for take in (0, 1, 2, 10):
        write_wav(recordings / f"7_anna_{take}.wav", [1024 * take, 16384])
    write_wav(recordings / "0_bert_0.wav", [1, 2, 3, 4, 5, 6])
    write_wav(recordings / "0_bert_1.wav", [8192])
    data = load_dataset("spoken-digits", {"window": 4, "test_share": 0.25})
    assert data.y_train.tolist() == [7, 7, 7, 0] and data.y_test.tolist() == [7, 0] and data.num_classes == 10
    assert data.group_train is not None and data.group_train.tolist() == [0, 0, 0, 1]
    assert data.group_test is not None and data.group_test.tolist() == [0, 1]
    assert data.x_train[..., 0].tolist()[2:] == [
        [0, 2048 / 2**15, 0.5, 0],
        [2 / 2**15, 3 / 2**15, 4 / 2**15, 5 / 2**15],
    ]
    assert data.x_test[..., 0].tolist() == [[0, 10240 / 2**15, 0.5, 0], [0, 0.25, 0, 0]]
    few = load_dataset("spoken-digits", {"window": 4, "test_share": 0.25, "takes": 2})
    assert few.y_train.tolist() == [7, 7, 0] and few.x_train[1, 1, 0] == 1024 / 2**15


def test_spoken_digits_of_another_rate_or_name_are_refused(folder: Path) -> None:
    recordings = folder / "free-spoken-digit-dataset/recordings"
    write_wav(recordings / "7_anna_0.wav", [1], rate=16000)
    with pytest.raises(
        DataError, match=r"7_anna_0\.wav is a WAV at 16000 Hz .*expected a WAV at 8000 Hz.*clone"
    ):
        load_dataset("spoken-digits")
    write_wav(recordings / "7.wav", [1])
    with pytest.raises(DataError, match=r"7\.wav is not named .*expected DIGIT_SPEAKER_TAKE\.wav; remove"):
        load_dataset("spoken-digits")
    with pytest.raises(DataError, match="window is 0 and takes is 0, expected 1 or more"):
        load_dataset("spoken-digits", {"window": 0})


def test_interrupted_clone_of_the_spoken_digits_is_refused(folder: Path) -> None:
    (folder / "free-spoken-digit-dataset/recordings").mkdir(parents=True)
    with pytest.raises(
        DataError, match=r"recordings has no recordings named DIGIT_SPEAKER_TAKE\.wav; .*git clone"
    ):
        load_dataset("spoken-digits")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"ends": np.array([2, 4])}, "end at row 4 of 5, expected increasing ends up to the last row"),
        ({"ends": np.array([2, 2])}, "end at row 2 of 5, expected increasing ends"),
        ({"ends": np.array([2.0, 5.0])}, "ends is float64.*expected integers; copy it again"),
        ({"take": np.array([0])}, r"2 recordings and an array of shape \(1,\), expected a value for each"),
    ],
)
def test_damaged_file_of_spoken_digits_is_refused(folder: Path, changed: dict, message: str) -> None:
    stored = {
        "audio": np.arange(5, dtype=np.int16),
        "ends": np.array([2, 5]),
        "y": np.array([3, 3]),
        "speaker": np.array([0, 0]),
        "take": np.array([0, 1]),
    }
    np.savez(folder / "spoken_digits.npz", **stored)
    data = load_dataset("spoken-digits", {"window": 3})
    assert data.x_train[0, :, 0].tolist() == [0, 1 / 2**15, 0] and data.y_test.tolist() == [3]
    np.savez(folder / "spoken_digits.npz", **{**stored, **changed})
    with pytest.raises(DataError, match=message):
        load_dataset("spoken-digits")


def make_watch_data() -> dict[str, Any]:
    """Return recordings of two people and exercises, whose first channel counts rows."""
    lengths = [40, 40, 40, 40, 40, 40, 40, 40]
    rows = [np.arange(6 * n, dtype=np.float64).reshape(n, 6) + 1000 * i for i, n in enumerate(lengths)]
    return {
        "X": rows,
        "y": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        "subject": np.array([3, 3, 3, 3, 5, 5, 5, 5]),
        "side": np.array([0, 1] * 4),
    }


def test_published_shoulder_exercises_are_read_after_a_check_of_the_digest(tmp_path: Path) -> None:
    """The file holds Python objects, which can run code, so no other file is opened."""
    path = tmp_path / "watch_dataset.npy"
    np.save(path, np.array(make_watch_data()), allow_pickle=True)
    stored = shoulder.read_published_file(path, hashlib.sha256(path.read_bytes()).hexdigest())
    assert stored.exercise.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    assert stored.person.tolist() == [3, 3, 3, 3, 5, 5, 5, 5]
    assert stored.rows[1][0].tolist() == [1000, 1001, 1002, 1003, 1004, 1005]
    with pytest.raises(
        DataError, match=r"watch_dataset\.npy has the SHA-256 \w+, expected eb122f.*pip download"
    ):
        shoulder.read_published_file(path)


def test_windows_of_shoulder_exercises_share_no_row_with_held_out_ones(folder: Path) -> None:
    watch = make_watch_data()
    np.savez(
        folder / "shoulder.npz",
        x=np.concatenate(watch["X"]),
        ends=np.arange(40, 321, 40),
        **{name: watch[name] for name in ("y", "subject")},
    )
    data = load_dataset("shoulder", {"window": 8, "step": 4, "test_share": 0.3})
    assert data.x_train.shape[1:] == (8, 6) and data.num_classes == 7
    train, test = (set(x[:, :, 0].ravel().tolist()) for x in (data.x_train, data.x_test))
    assert test and not train & test
    assert data.group_train is not None and set(data.group_train.tolist()) == {3, 5}
    assert data.group_test is not None and set(data.group_test.tolist()) == {3, 5}
    assert set(data.y_test.tolist()) == {0, 1}
    assert data.recording_train is not None
    for recording in np.unique(data.recording_train):
        rows = data.recording_train == recording
        assert len(set(data.y_train[rows])) == 1 and len(set(data.group_train[rows])) == 1
    with pytest.raises(
        DataError, match="window is 41, expected at most 40, the rows of the shortest recording"
    ):
        load_dataset("shoulder", {"window": 41})
    with pytest.raises(DataError, match="window is 8 and step is 0, expected 1 or more"):
        load_dataset("shoulder", {"window": 8, "step": 0})


@pytest.mark.parametrize(
    "name",
    [
        "cifar10",
        "cifar100",
        "mnist-writers",
        "uci-har",
        "dermamnist",
        "femnist",
        "spoken-digits",
        "shoulder",
    ],
)
def test_error_for_missing_files_explains_how_to_get_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    with pytest.raises(DataError, match=r"copy it to|preprocess\.sh|git clone|pip download"):
        load_dataset(name)


def test_all_data_sets_are_listed(folder: Path) -> None:
    rows = {row["name"]: row for row in list_datasets()}
    assert list(rows) == list(DATASETS)
    assert not rows["cifar10"]["here"] and rows["digits"]["here"]
    (folder / "cifar10.npz").write_bytes(b"")
    assert {row["name"]: row for row in list_datasets()}["cifar10"]["here"]
    assert rows["uci-har"]["options"] == {
        "split": "own",
        "test_share": 0.2,
        "standardise": True,
        "classes": (),
        "resize": (),
    }
    with pytest.raises(
        ConfigError, match=r"\[data\] uci-har has an unknown option 'tset_share'; did you mean 'test_share'"
    ):
        load_dataset("uci-har", {"tset_share": 0.1})
