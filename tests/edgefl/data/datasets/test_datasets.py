import gzip
from pathlib import Path

import numpy as np
import pytest

from edgefl.data import load_dataset
from edgefl.data.dataset import resize_bilinear
from edgefl.data.datasets.fashion_mnist import SYSTEM_FOLDER
from edgefl.data.datasets.idx import read_idx
from edgefl.errors import DataError


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
