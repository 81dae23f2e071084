import gzip
from pathlib import Path

import numpy as np
import pytest

from edgefl.base.config import DataConfig
from edgefl.base.errors import DataError
from edgefl.data import load_data, load_dataset
from edgefl.data.dataset import resize_bilinear, resize_pictures
from edgefl.data.datasets.fashion_mnist import SYSTEM_FOLDER
from edgefl.data.datasets.idx import read_idx


def test_bilinear_resize_interpolates_between_pixels() -> None:
    row = np.float32([[[0, 4]]])
    np.testing.assert_array_equal(resize_bilinear(row, 1, 4), np.float32([[[0, 1, 3, 4]]]))
    one = np.float32([[[7]]])
    np.testing.assert_array_equal(resize_bilinear(one, 3, 2), np.full((1, 3, 2), 7, np.float32))
    same = np.arange(12, dtype=np.float32).reshape(1, 3, 4)
    np.testing.assert_array_equal(resize_bilinear(same, 3, 4), same)


def test_bilinear_resize_matches_tensorflow() -> None:
    tf = pytest.importorskip("tensorflow")
    images = np.random.default_rng(0).random((3, 8, 8)).astype(np.float32)
    expected = tf.image.resize(images[..., None], (28, 28)).numpy()[..., 0]
    np.testing.assert_allclose(resize_bilinear(images, 28, 28), expected, atol=1e-6)


def test_pictures_keep_type_and_range_when_resized() -> None:
    small = np.array([[0, 255], [255, 0]], np.uint8).reshape(1, 2, 2, 1)
    large = resize_pictures(small, 2, 4)
    assert large.dtype == np.uint8
    assert large[0, :, :, 0].tolist() == [[0, 64, 191, 255], [255, 191, 64, 0]]  # 63.75 and 191.25
    pictures = np.random.default_rng(0).random((300, 5, 6, 3)).astype(np.float32)
    resized = resize_pictures(pictures, 8, 7)
    assert (resized.dtype, resized.shape) == (np.float32, (300, 8, 7, 3))
    assert resized.min() >= 0 and resized.max() <= 1
    np.testing.assert_array_equal(resized[260, ..., 2], resize_bilinear(pictures[260:261, ..., 2], 8, 7)[0])
    assert resize_pictures(pictures, 5, 6) is pictures


def test_every_data_set_can_be_resized(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    digits = load_dataset("digits", {"resize": [32, 30], "classes": [3, 8]})
    assert digits.x_train.shape[1:] == (32, 30, 1)
    assert (digits.x_test.dtype, digits.num_classes) == (np.float32, 2)
    rng = np.random.default_rng(0)
    own = tmp_path / "own.npz"
    np.savez(own, x=rng.integers(0, 256, (20, 4, 4, 3), np.uint8), y=np.arange(20) % 2)
    resized = load_data(DataConfig(name=f"npz:{own}", options={"resize": [6, 6]}), 1, scale=False)
    assert resized.x_train.shape[1:] == (6, 6, 3)
    assert 0 <= resized.x_train.min() < 0.5 < resized.x_train.max() <= 1
    np.savez(own, x=rng.random((20, 4, 3)), y=np.arange(20) % 2)
    with pytest.raises(DataError, match=r"samples of shape \[4, 3\], expected pictures"):
        load_dataset(f"npz:{own}", {"resize": [6, 6]})
    for resize, message in (([32], r"resize is \[32\], expected rows and columns"), ([0, 8], "at least 1")):
        with pytest.raises(DataError, match=message):
            load_dataset("digits", {"resize": resize})


def test_digits_have_published_sizes() -> None:
    pytest.importorskip("sklearn")
    digits = load_dataset("digits")
    assert digits.x_train.shape == (1438, 28, 28, 1)
    assert digits.x_test.shape == (359, 28, 28, 1)
    assert digits.x_train.dtype == np.float32
    assert (digits.x_train.min(), digits.x_train.max()) == (0, 1)
    assert np.bincount(np.concatenate([digits.y_train, digits.y_test])).tolist() == [
        178,
        182,
        177,
        183,
        181,
        182,
        181,
        179,
        174,
        180,
    ]


@pytest.mark.skipif(not SYSTEM_FOLDER.exists(), reason="Debian's dataset-fashion-mnist is not installed")
def test_fashion_mnist_has_published_sizes() -> None:
    fashion = load_dataset("fashion-mnist")
    assert fashion.x_train.shape == (60000, 28, 28, 1)
    assert fashion.x_test.shape == (10000, 28, 28, 1)
    assert np.bincount(fashion.y_train).tolist() == [6000] * 10
    assert (fashion.x_train.min(), fashion.x_train.max()) == (0, 1)


def test_edgefl_data_folder_has_priority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEFL_DATA", str(tmp_path))
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    for part, count in (("train", 3), ("t10k", 2)):
        images = np.array([0x803, count, 28, 28], ">u4").tobytes() + bytes(count * 784)
        labels = np.array([0x801, count], ">u4").tobytes() + bytes(range(count))
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    dataset = load_dataset("fashion-mnist")
    assert dataset.y_train.tolist() == [0, 1, 2]
    assert dataset.x_test.shape == (2, 28, 28, 1)


def test_damaged_idx_archives_are_refused(tmp_path: Path) -> None:
    good = np.array([0x801, 2], ">u4").tobytes() + bytes(2)
    for content in (
        b"no gzip",
        gzip.compress(b"ab"),
        gzip.compress(good[:-1]),
        gzip.compress(bytes(20)),
        gzip.compress(good)[:-9],
    ):
        (tmp_path / "a.gz").write_bytes(content)
        with pytest.raises(DataError, match="not an idx archive"):
            read_idx(tmp_path / "a.gz", 1)


def test_missing_and_unknown_data_sets_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgefl.data.datasets.fashion_mnist.SYSTEM_FOLDER", tmp_path / "nowhere")
    monkeypatch.delenv("EDGEFL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    with pytest.raises(DataError, match="apt-get install dataset-fashion-mnist"):
        load_dataset("fashion-mnist")
    with pytest.raises(DataError, match="did you mean 'digits'"):
        load_dataset("digit")
