"""Reads samples in the unit and layout of a `.tflite`, which `edgefl export` records in its metadata."""

import numpy as np

from edgefl.base.errors import ExportError
from edgefl.base.tasks.samples import GREY_SCALE, SAMPLES_METADATA_NAME, decode_samples
from edgefl.data.npz import LoadedSamples, make_samples
from edgefl.data.sources import DataSource, read_source
from edgefl.data.unit import StoredValues, list_class_names, read_stored_values
from edgefl.program.plan.tflite import read_metadata
from firmware_export.tflite.interpreter import LoadedModel

MAX_UNIT_INPUT = 1.6
"""An integer input with a smaller largest value takes pictures from 0 to 1."""
MIN_LEVEL_INPUT = 127
"""An integer input with a greater largest value takes grey levels from 0 to 255."""


def load_model_samples(
    source: DataSource,
    content: bytes,
    loaded: LoadedModel,
    *,
    seed: int,
    num_classes: int | None = None,
    any_task: bool = False,
) -> LoadedSamples:
    """Read the samples of a source as the model was trained on them.

    Args:
        content: the bytes of the model.
        num_classes: number of classes, None if unknown.
        any_task: accept samples without labels, and labels that are no classes.

    Returns:
        The samples. A model without a record of its unit adds sentences on how they were read.

    Raises:
        DataError: the source cannot be read or does not fit the model.
        ExportError: the model has no record, and the unit of the samples is ambiguous.
    """
    samples = decode_samples(read_metadata(content, SAMPLES_METADATA_NAME) or b"")
    arrays = read_source(source, samples)
    scale = source.scale
    notes: tuple[str, ...] = ()
    if samples is None:
        if not scale and "scale" not in arrays and (values := read_stored_values(arrays)):
            scale, notes = choose_unrecorded_scale(values, loaded)
        if names := list_class_names(arrays):
            notes += (f"the model has no class names; those of the samples are {', '.join(names[:20])}",)
    made = make_samples(
        arrays,
        source.data,
        samples=samples,
        scale=scale,
        seed=seed,
        num_classes=num_classes,
        input_shape=loaded.shape[1:],
        any_task=any_task,
    )
    return LoadedSamples(made.shard, made.split, (*made.changes, *notes))


def choose_unrecorded_scale(values: StoredValues, loaded: LoadedModel) -> tuple[float, tuple[str, ...]]:
    """Return the scale of samples for a model without a record of its unit, and a sentence about it.

    The integer input of the model decides. If it ends near 1, float pictures of whole grey levels are divided
    by 255: such values do not fit into it otherwise. If it goes up to 255, uint8 values are taken as they
    are. Otherwise uint8 values are divided by 255, and floats are taken as they are.

    Args:
        values: what the stored samples say about their unit.

    Raises:
        ExportError: the pictures hold only 0 and 1, which both units allow.
    """
    smallest, largest = _find_input_range(loaded)
    if values.is_byte:
        return _choose_byte_scale(smallest, largest)
    if values.is_picture and values.low >= 0 and -2 * smallest > largest > 0:
        return 0.0, (_describe_centred(smallest, largest),)
    if not values.are_grey_levels or values.high == 0:
        return 0.0, ()
    if not 0 < largest <= MAX_UNIT_INPUT:
        return 0.0, (
            "the model has no record of its unit; floats are taken as they are, pass --scale to divide them",
        )
    if values.high <= 1:
        raise ExportError(
            f"the model has no record of its unit, and its input goes up to {largest:.3g}; the samples are "
            "floats that are 0 or 1, expected to know whether they are dark pictures of 0 to 255; pass "
            "--scale 255 if they are, or --scale 1"
        )
    return GREY_SCALE, (
        f"the model has no record of its unit, and its input goes up to {largest:.3g}; the whole grey levels "
        "of the samples are divided by 255, pass --scale to change this",
    )


def _find_input_range(loaded: LoadedModel) -> tuple[float, float]:
    """Return the smallest and the largest value of an integer input, or zeros for a float input."""
    if not np.any(loaded.scale):
        return 0.0, 0.0
    limits = np.iinfo(loaded.dtype)
    return (
        float(np.min((limits.min - loaded.zero_point) * loaded.scale)),
        float(np.max((limits.max - loaded.zero_point) * loaded.scale)),
    )


def _choose_byte_scale(smallest: float, largest: float) -> tuple[float, tuple[str, ...]]:
    if largest > MIN_LEVEL_INPUT:
        return 1.0, (
            f"the model has no record of its unit, and its input goes up to {largest:.3g}; uint8 values are "
            "taken as they are, pass --scale to change this",
        )
    if -2 * smallest > largest > 0:
        return 0.0, (_describe_centred(smallest, largest),)
    if 0 < largest <= MAX_UNIT_INPUT:
        return 0.0, ()
    return 0.0, (
        "the model has no record of its unit; uint8 values are divided by 255, pass --scale to change this",
    )


def _describe_centred(smallest: float, largest: float) -> str:
    return (
        f"the model has no record of its unit, and its input goes from {smallest:.3g} to {largest:.3g}; the "
        "samples have no negative values, so they may be in another unit: store them as the model expects"
    )
