"""Conversion of stored samples and labels to the form that training uses."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as arrays_of

from devices.local_dataset import LocalDataset
from edgefl.base.config import DataConfig, SamplesConfig
from edgefl.base.errors import DataError
from edgefl.data import load_data
from edgefl.data.forms import describe_shape_change, guess_input_shape, to_input_shape, to_training_form
from edgefl.data.npz import make_shard
from edgefl.data.sources import make_source
from edgefl.program.plan.spec import PlanSpec

SAMPLES = np.arange(2 * 3 * 8 * 9, dtype=np.float32).reshape(2, 3, 8, 9)


def test_one_hot_labels_become_class_numbers() -> None:
    converted, changes = to_training_form(
        {"y": np.array([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0]], np.float32)}
    )
    assert converted["y"].tolist() == [1, 0, 2]
    assert converted["y"].dtype == np.int64
    assert int(converted["num_classes"]) == 4  # although class 3 has no samples
    assert changes == ("y is one-hot; the class is the column of the 1, out of 4 classes",)


def test_stored_number_of_classes_is_unchanged() -> None:
    converted, _ = to_training_form({"y": np.eye(3), "num_classes": np.asarray(7)})
    assert int(converted["num_classes"]) == 7


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        (np.array([2.0, 0.0, 1.0]), [2, 0, 1]),
        (np.array([[2], [0], [1]]), [2, 0, 1]),
        (np.array([[2.0], [0.0]]), [2, 0]),
        (np.array([True, False]), [1, 0]),
    ],
)
def test_whole_number_labels_of_other_types_become_integers(y, expected) -> None:
    converted, changes = to_training_form({"y": y})
    assert converted["y"].tolist() == expected
    assert changes == (f"y is {y.dtype}{list(y.shape)}; it is read as {len(expected)} whole numbers",)


@pytest.mark.parametrize(
    "y",
    [
        np.array([0.5, 1.0]),
        np.array([np.nan, 1.0]),
        np.array([1e300, 1.0]),
        np.array([[0.2, 0.8], [1.0, 0.0]]),
        np.array([[1, 1], [1, 0]]),
        np.array(["a", "b"]),
        np.array([3, 1], np.uint8),
        np.zeros((2, 2, 2)),
        np.asarray(3),
    ],
)
def test_ambiguous_and_invalid_labels_are_unchanged(y) -> None:
    converted, changes = to_training_form({"y": y})
    assert converted["y"] is y
    assert changes == ()


@pytest.mark.parametrize(
    ("dtype", "stated", "divisor"),
    [
        (np.uint8, 0, 255),
        (np.uint8, 255, 255),
        (np.uint8, 1, 1),
        (np.uint8, 16, 16),
        (np.float32, 0, 1),
        (np.float64, 0, 1),
        (np.float32, 255, 255),
        (np.float64, 255, 255),
        (np.float16, 4, 4),
    ],
)
@pytest.mark.parametrize("highest", [0, 1, 12, 16, 17, 255])
def test_the_scale_depends_on_the_type_and_the_federation_and_never_on_the_values(
    dtype, stated, divisor, highest
) -> None:
    x = np.zeros((2, 8, 8, 1), dtype)
    x[0, 0, 0, 0] = highest
    samples = SamplesConfig(scale=stated)
    converted, changes = to_training_form({"x": x, "x_test": x[1:]}, samples)
    expected = (x.astype(np.float32) / np.float32(divisor)).astype(np.float32)
    assert np.array_equal(converted["x"].astype(np.float32), expected)
    assert np.array_equal(converted["x_test"].astype(np.float32), expected[1:])
    usual = divisor == (255 if np.dtype(dtype) == np.uint8 else 1)
    assert len(changes) == (not usual)


def test_the_owner_states_a_scale_before_the_file_and_the_file_before_the_federation() -> None:
    arrays = {"x": np.full((1, 4), 8.0, np.float32), "scale": np.asarray(4)}
    assert to_training_form(arrays, SamplesConfig(scale=2), 8)[0]["x"][0, 0] == 1
    assert to_training_form(arrays, SamplesConfig(scale=2))[0]["x"][0, 0] == 2
    del arrays["scale"]
    assert to_training_form(arrays, SamplesConfig(scale=2))[0]["x"][0, 0] == 4
    assert to_training_form(arrays)[0]["x"] is arrays["x"]


@pytest.mark.parametrize(
    ("stored", "expected_shape"),
    [
        ((28, 28), (28, 28, 1)),
        ((1, 28, 28), (28, 28, 1)),
        ((3, 32, 48), (32, 48, 3)),
        ((28, 28, 1), (28, 28, 1)),
        ((7, 7), (7, 7)),
        ((128, 9), (128, 9)),
        ((3, 32, 4), (3, 32, 4)),
        ((2, 32, 32), (2, 32, 32)),
        ((40,), (40,)),
    ],
)
def test_input_shape_is_guessed_from_stored_shape(stored, expected_shape) -> None:
    assert guess_input_shape(stored) == expected_shape
    assert bool(describe_shape_change(stored, expected_shape)) == (stored != expected_shape)


def test_channels_move_to_the_end() -> None:
    moved = to_input_shape(SAMPLES, (8, 9, 3))
    assert moved.shape == (2, 8, 9, 3)
    for row, channel, i, j in ((0, 0, 0, 0), (1, 2, 7, 8), (0, 1, 3, 5)):
        assert moved[row, i, j, channel] == SAMPLES[row, channel, i, j]
    assert to_input_shape(SAMPLES, (3, 9, 8)) is SAMPLES


@given(
    arrays_of.arrays(np.float32, arrays_of.array_shapes(min_dims=2, max_dims=5, max_side=10)),
    arrays_of.array_shapes(max_dims=4, max_side=10),
)
@settings(max_examples=200, deadline=None)
def test_shape_change_preserves_sample_values(x, shape) -> None:
    """The values of each sample stay equal, and a sentence describes the change of shape."""
    converted = to_input_shape(x, shape)
    assert np.array_equal(
        np.sort(converted.reshape(len(x), -1), axis=1), np.sort(x.reshape(len(x), -1), axis=1), equal_nan=True
    )
    assert (converted.shape != x.shape) == bool(describe_shape_change(x.shape[1:], shape))


def test_shard_has_the_input_shape_of_the_model() -> None:
    arrays = {"x": SAMPLES[:, :1].repeat(5, axis=0), "y": np.arange(10) % 2}
    assert make_shard(arrays, "a").x_train.shape[1:] == (1, 8, 9)
    shard = make_shard(arrays, "a", input_shape=(8, 9, 1))
    assert shard.x_train.shape[1:] == shard.x_test.shape[1:] == (8, 9, 1)


def test_device_trains_on_converted_samples(tmp_path) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (20, 28, 28))
    np.savez(tmp_path / "good.npz", x=x[..., None].astype(np.uint8), y=np.arange(20) % 4)
    np.savez(tmp_path / "odd.npz", x=x.astype(float), y=np.eye(4)[np.arange(20) % 4])
    usual, unconverted = (LocalDataset(make_source(str(tmp_path / name))) for name in ("good.npz", "odd.npz"))
    samples = SamplesConfig(scale=255, max_value=1)
    spec = PlanSpec(
        model="mlp",
        algorithm="fedavg",
        options={},
        input_shape=(28, 28, 1),
        num_classes=4,
        weights=(),
        signatures=(),
        samples=samples.as_plan_entry(),
    )
    expected, converted = (dataset.load_shard(spec, 3) for dataset in (usual, unconverted))
    assert usual.changes == ()
    assert len(unconverted.changes) == 2
    for name in ("x_train", "y_train", "x_test", "y_test"):
        assert np.array_equal(getattr(expected, name), getattr(converted, name)), name
    assert unconverted.describe_shape_change((28, 28, 1)) == "samples of 28x28 get a channel axis: 28x28x1"
    assert usual.describe_shape_change((28, 28, 1)) == ""


def test_simulation_reads_converted_samples(tmp_path) -> None:
    np.savez(tmp_path / "a.npz", x=np.full((20, 3, 8, 9), 204.0), y=np.eye(2)[np.arange(20) % 2])
    dataset = load_data(
        DataConfig(name=f"npz:{tmp_path / 'a.npz'}"),
        1,
        input_shape=(8, 9, 3),
        samples=SamplesConfig(scale=255),
    )
    assert dataset.x_train.shape[1:] == dataset.x_test.shape[1:] == (8, 9, 3)
    assert set(dataset.x_train.ravel().tolist()) == {float(np.float32(0.8))}
    assert dataset.num_classes == 2


def test_converted_labels_are_checked_like_other_labels() -> None:
    with pytest.raises(DataError, match="10 samples and y has 9 labels"):
        make_shard({"x": np.zeros((10, 4)), "y": np.eye(3)[np.arange(9) % 3]}, "a")
