"""The unit of samples: what a federation states, and which samples it refuses."""

import numpy as np
import pytest

from edgefl.base.errors import ConfigError, DataError
from edgefl.base.tasks.config import TaskConfig
from edgefl.base.tasks.samples import SamplesConfig, decode_samples, encode_samples
from edgefl.data.npz import make_samples
from edgefl.data.unit import (
    check_unit,
    describe_unit_conflict,
    suggest_samples,
    suggest_unit,
    to_federation_classes,
)

RNG = np.random.default_rng(5)
BYTES = {"x": RNG.integers(0, 256, (20, 8, 8, 1)).astype(np.uint8)}
LEVELS = {"x": RNG.integers(0, 256, (20, 8, 8, 1)).astype(np.float32)}
NIGHT = {"x": RNG.integers(0, 13, (20, 8, 8, 1)).astype(np.float32)}
BLACK = {"x": np.zeros((20, 8, 8, 1), np.float32)}
DIVIDED = {"x": RNG.random((20, 8, 8, 1)).astype(np.float32)}
SIGNED = {"x": 2 * DIVIDED["x"] - 1}
READINGS = {"x": RNG.normal(size=(20, 128, 3)).astype(np.float32)}
PICTURES = SamplesConfig(scale=255, max_value=1)
CENTRED = SamplesConfig(max_value=1, min_value=-1)


@pytest.mark.parametrize(
    ("devices", "scale", "bounds", "sentence"),
    [
        ([BYTES], 255, 1, ""),
        ([BYTES, LEVELS], 255, 1, "grey levels up to 255; they are divided by 255"),
        ([LEVELS, NIGHT, BLACK], 255, 1, "grey levels up to 255; they are divided by 255"),
        ([BYTES, NIGHT], 255, 1, "grey levels up to 12; they are divided by 255"),
        ([BYTES, DIVIDED], 0, 1, ""),
        ([DIVIDED, BLACK], 0, 1, ""),
        ([NIGHT], 0, 0, "numbers up to 12, which are taken as they are; if they are grey levels"),
        ([READINGS], 0, 0, ""),
        ([LEVELS, DIVIDED], 0, 0, ""),
        ([SIGNED], 0, (-1, 1), ""),
        ([SIGNED, {"x": 5 * SIGNED["x"]}], 0, (-10, 10), ""),
        ([SIGNED, DIVIDED], 0, 0, ""),
        ([{"x": 1.05 * DIVIDED["x"] - 0.03}, BYTES], 0, 1, ""),
        ([{"x": 246.5 * DIVIDED["x"]}], 0, 1000, ""),
        ([{"x": 5 * DIVIDED["x"]}, DIVIDED], 0, 10, ""),
        ([{"x": BYTES["x"][:, 0, :, 0]}], 255, 1, ""),
        ([{"x": BYTES["x"] // 16}], 255, 1, "uint8 samples hold no value above 15"),
        ([{"x": LEVELS["x"][:, :, 0]}], 0, 0, ""),
        ([{**LEVELS, "scale": np.asarray(1)}], 0, 0, ""),
        ([{}], 0, 0, ""),
    ],
)
def test_the_unit_that_a_new_federation_states(devices, scale, bounds, sentence) -> None:
    samples, sentences = suggest_unit({f"pi-{i}": arrays for i, arrays in enumerate(devices)})
    low, high = bounds if isinstance(bounds, tuple) else (0, bounds)
    assert (samples.scale, samples.min_value, samples.max_value) == (scale, low, high)
    assert sentence in "".join(sentences)
    assert bool(sentences) == bool(sentence)


@pytest.mark.parametrize(
    ("arrays", "samples", "scale", "error"),
    [
        (
            DIVIDED,
            PICTURES,
            0.0,
            "as if they had been divided before; the samples of the federation go up to 1",
        ),
        (
            LEVELS,
            SamplesConfig(max_value=1),
            0.0,
            "taken as they are; the samples of the federation go up to 1",
        ),
        (DIVIDED, SamplesConfig(scale=1, max_value=255), 0.0, "as if they had been divided before"),
        ({"x": 257 * LEVELS["x"]}, PICTURES, 0.0, "which are divided by 255; the samples of the federation"),
        ({**DIVIDED, "scale": np.asarray(1)}, SamplesConfig(scale=1, max_value=255), 0.0, "divided before"),
        (DIVIDED, PICTURES, 1.0, None),
        (LEVELS, SamplesConfig(max_value=1), 255.0, None),
        (NIGHT, PICTURES, 0.0, None),
        (BLACK, PICTURES, 0.0, None),
        (BLACK, SamplesConfig(scale=1, max_value=255), 0.0, None),
        (BYTES, PICTURES, 0.0, None),
        (BYTES, SamplesConfig(max_value=1), 0.0, None),
        (BYTES, SamplesConfig(scale=1, max_value=255), 0.0, None),
        (LEVELS, SamplesConfig(scale=255), 0.0, None),
        ({"x": np.full((1, 8, 8, 1), np.nan)}, PICTURES, 0.0, None),
        (SIGNED, PICTURES, 0.0, "floats from -0.99.*go up to 1 after"),
        ({"x": 1.05 * DIVIDED["x"] - 0.03}, SamplesConfig(max_value=1), 0.0, None),
        (SIGNED, CENTRED, 0.0, None),
        (
            DIVIDED,
            CENTRED,
            0.0,
            "floats from .* taken as they are; the samples of the federation go from -1 to 1",
        ),
        (DIVIDED, CENTRED, 1.0, None),
        (BYTES, CENTRED, 0.0, "uint8 from .* divided by 255; the samples of the federation go from -1 to 1"),
        (LEVELS, CENTRED, 0.0, "the samples of the federation go from -1 to 1"),
        (BLACK, CENTRED, 0.0, None),
        (BYTES, SamplesConfig(max_value=1000), 0.0, "uint8 .* as if they had been divided before"),
        (
            {**DIVIDED, "x_test": LEVELS["x"]},
            SamplesConfig(max_value=1),
            0.0,
            "x_test holds floats from 0 to 255",
        ),
        ({**DIVIDED, "x_test": BYTES["x"]}, SamplesConfig(max_value=1), 0.0, None),
        ({"x": SIGNED["x"][:, :, 0]}, SamplesConfig(max_value=1), 0.0, None),
    ],
)
def test_samples_in_another_unit_are_refused(arrays, samples, scale, error) -> None:
    if error is None:
        check_unit(arrays, samples, scale)
        return
    with pytest.raises(DataError, match=error):
        check_unit(arrays, samples, scale)


def test_two_units_among_devices_are_named() -> None:
    assert describe_unit_conflict({"a": LEVELS, "b": DIVIDED}).startswith(
        "pictures of b hold fractions from 0.00"
    )
    assert ", those of a hold whole numbers from 0 to 255: two units" in describe_unit_conflict(
        {"a": LEVELS, "b": DIVIDED}
    )
    for other in (DIVIDED, LEVELS, BYTES):
        assert "b hold negative numbers from -0.99" in describe_unit_conflict({"a": other, "b": SIGNED})
    assert "a (x_test) hold whole numbers" in describe_unit_conflict(
        {"a": {**DIVIDED, "x_test": LEVELS["x"]}}
    )
    assert "hold larger numbers from 0.24" in describe_unit_conflict(
        {"a": BYTES, "b": {"x": 246.5 * DIVIDED["x"]}}
    )
    assert not describe_unit_conflict({"a": DIVIDED, "b": {"x": 5 * DIVIDED["x"]}, "c": BLACK})
    assert not describe_unit_conflict({"a": SIGNED, "b": {"x": 3 * SIGNED["x"]}, "c": BLACK})
    assert not describe_unit_conflict({"a": LEVELS, "b": NIGHT, "c": BYTES})
    assert not describe_unit_conflict({"a": DIVIDED, "b": BYTES, "c": BLACK})
    assert not describe_unit_conflict({"a": READINGS, "b": DIVIDED})


def test_class_names_are_proposed_only_if_all_devices_agree() -> None:
    named = {**READINGS, "class_names": np.array(["run", "sit"])}
    assert suggest_samples({"a": named, "b": named})[0].classes == ("run", "sit")
    assert suggest_samples({"a": named, "b": READINGS})[0].classes == ()
    with pytest.raises(DataError, match="'run' twice"):
        suggest_samples({"a": {**READINGS, "class_names": np.array(["run", "run"])}})


def test_labels_are_numbered_by_the_names_of_the_federation() -> None:
    arrays = {"y": np.array([0, 1, 1]), "y_test": np.array([1]), "class_names": np.array(["run", "sit"])}
    formed = to_federation_classes(arrays, SamplesConfig(classes=("sit", "walk", "run")))
    assert formed["y"].tolist() == [2, 0, 0]
    assert formed["y_test"].tolist() == [0]
    assert formed["class_names"].tolist() == ["sit", "walk", "run"]
    assert int(formed["num_classes"]) == 3


@pytest.mark.parametrize(
    ("names", "classes", "error"),
    [
        (
            ["run", "sit"],
            (),
            r"have names \('run', 'sit'\), the federation has numbers; store numbers",
        ),
        ([], ("run", "sit"), r"have numbers, the federation has names \(run, sit\)"),
        (["run", "fly"], ("run", "sit"), "'fly' of these samples is unknown, the federation has run, sit"),
        (["run"], ("run", "sit"), r"the label 1 has no name, expected at most 0 \('run'\)"),
    ],
)
def test_other_class_names_are_refused(names, classes, error) -> None:
    arrays = {"x": np.zeros((4, 3)), "y": np.arange(4) % 2} | (
        {"class_names": np.array(names)} if names else {}
    )
    with pytest.raises(DataError, match=f"pi-1: .*{error}"):
        make_samples(arrays, "pi-1", samples=SamplesConfig(classes=classes))


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"scale": 1}', b'{"scale": "a"}', b"\xff"])
def test_damaged_record_of_a_model_is_ignored(content) -> None:
    assert decode_samples(content) is None


def test_record_of_a_model_is_read_back() -> None:
    samples = SamplesConfig(scale=255, max_value=1, channels=("ax", "ay"), classes=("run", "sit"))
    assert decode_samples(encode_samples(samples)) == samples


@pytest.mark.parametrize(
    ("task", "error"),
    [
        (TaskConfig(), "targets names 2, expected none"),
        (TaskConfig(kind="regression", outputs=3), "targets names 2, expected 3, as outputs of .task."),
    ],
)
def test_names_of_targets_fit_the_task(task, error) -> None:
    samples = SamplesConfig(targets=("watt", "volt"))
    samples.check_model((16, 1), 2, TaskConfig(kind="regression", outputs=2))
    with pytest.raises(ConfigError, match=error):
        samples.check_model((16, 1), 2, task)
    assert decode_samples(encode_samples(samples)) == samples
    assert b"targets" not in encode_samples(SamplesConfig(scale=255))
