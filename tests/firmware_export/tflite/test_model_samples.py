"""Samples for a model whose file states no unit."""

from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.errors import ExportError
from edgefl.data.unit import read_stored_values
from firmware_export.tflite.interpreter import LoadedModel
from firmware_export.tflite.model_samples import choose_unrecorded_scale

UNIT_MODEL = LoadedModel(
    invoke=lambda x: x, shape=(1, 8, 8, 1), dtype=np.int8, scale=1 / 255, zero_point=-128, runtime="a runtime"
)
CENTRED_MODEL = replace(UNIT_MODEL, scale=1 / 128, zero_point=0)
LEVEL_MODEL = replace(UNIT_MODEL, scale=1.0)
FLOAT_MODEL = replace(UNIT_MODEL, dtype=np.float32, scale=0.0, zero_point=0)


def make_pictures(highest: float, dtype: type = np.float32) -> np.ndarray:
    x = np.zeros((4, 8, 8, 1), dtype)
    x[1, 2, 3, 0] = highest
    return x


@pytest.mark.parametrize("highest", [2, 12, 16, 17, 255])
def test_whole_grey_levels_are_divided_for_an_input_up_to_1_however_dark_they_are(highest) -> None:
    values = read_stored_values({"x": make_pictures(highest)})
    assert values is not None
    scale, notes = choose_unrecorded_scale(values, UNIT_MODEL)
    assert scale == 255
    assert "are divided by 255, pass --scale" in notes[0]


@pytest.mark.parametrize(
    ("x", "model"),
    [
        (make_pictures(255, np.uint8), UNIT_MODEL),  # its type decides
        (make_pictures(0.5), UNIT_MODEL),
        (make_pictures(254.5), UNIT_MODEL),
        (make_pictures(0), UNIT_MODEL),
        (make_pictures(255), LEVEL_MODEL),
        (make_pictures(255), FLOAT_MODEL),
        (make_pictures(9)[:, :, 0, 0], UNIT_MODEL),
    ],
)
def test_other_samples_are_read_by_their_type(x, model) -> None:
    values = read_stored_values({"x": x})
    assert values is not None
    assert choose_unrecorded_scale(values, model)[0] == 0


@pytest.mark.parametrize(
    ("model", "scale", "note"),
    [
        (UNIT_MODEL, 0, None),
        (replace(UNIT_MODEL, dtype=np.uint8, zero_point=0), 0, None),
        (LEVEL_MODEL, 1, "its input goes up to 255; uint8 values are taken as they are"),
        (replace(LEVEL_MODEL, dtype=np.uint8, zero_point=0), 1, "its input goes up to 255"),
        (CENTRED_MODEL, 0, "its input goes from -1 to 0.992; the samples have no negative values"),
        (replace(UNIT_MODEL, scale=0.02), 0, "uint8 values are divided by 255, pass --scale"),
        (FLOAT_MODEL, 0, "uint8 values are divided by 255, pass --scale"),
    ],
)
def test_bytes_are_read_by_the_input_of_the_model(model, scale, note) -> None:
    values = read_stored_values({"x": make_pictures(255, np.uint8)})
    assert values is not None
    chosen, notes = choose_unrecorded_scale(values, model)
    assert chosen == scale
    assert not notes if note is None else note in notes[0]


def test_pictures_without_negative_values_for_an_input_around_0_are_named() -> None:
    values = read_stored_values({"x": make_pictures(0.5)})
    assert values is not None
    assert "no negative values" in choose_unrecorded_scale(values, CENTRED_MODEL)[1][0]
    centred = read_stored_values({"x": make_pictures(0.5) - 0.25})
    assert centred is not None
    assert choose_unrecorded_scale(centred, CENTRED_MODEL) == (0, ())


def test_pictures_of_0_and_1_are_ambiguous() -> None:
    values = read_stored_values({"x": make_pictures(1)})
    assert values is not None
    with pytest.raises(ExportError, match="pass --scale 255 if they are, or --scale 1"):
        choose_unrecorded_scale(values, UNIT_MODEL)
