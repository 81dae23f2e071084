"""A model file with very many operators, or with very long names, is refused before it is read."""

import pytest

from edgefl.base.errors import ModelFileError
from firmware_export.tflite.quantized_model import MAX_NAME_BYTES, MAX_OPERATORS, read_quantized_model
from tests.firmware_export.graphs import Op, T, make_tflite


def make_chain(operators: int, tensors: int = 0, name: str = "") -> bytes:
    made = [T(shape=(1, 4), name=name if index == 0 else "") for index in range(max(operators + 1, tensors))]
    return make_tflite(
        made,
        [Op(name="RELU", inputs=(i,), outputs=(i + 1,)) for i in range(operators)],
        outputs=(min(operators, 1),),
    )


def test_too_many_operators_are_refused() -> None:
    with pytest.raises(ModelFileError, match="has 4097 operators, expected at most 4096"):
        read_quantized_model(make_chain(MAX_OPERATORS + 1))


def test_too_many_tensors_are_refused() -> None:
    with pytest.raises(ModelFileError, match="has 16385 tensors, expected at most 16384"):
        read_quantized_model(make_chain(1, tensors=4 * MAX_OPERATORS + 1))


def test_too_long_name_is_refused() -> None:
    assert len(read_quantized_model(make_chain(1, name="n" * MAX_NAME_BYTES)).operators) == 1
    with pytest.raises(ModelFileError, match="name has 65537 bytes, expected at most 65536"):
        read_quantized_model(make_chain(1, name="n" * (MAX_NAME_BYTES + 1)))


def test_truncated_model_is_refused() -> None:
    content = make_chain(3)
    for size in range(8, len(content) - 1, 50):
        with pytest.raises(ModelFileError):
            read_quantized_model(content[:size])
