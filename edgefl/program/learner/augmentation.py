"""Augmentation: random changes of the pictures of a training batch.

The training loop changes the data tensor `x` of each batch with the generator of the client. The simulator
and a device therefore train on the same pictures. A prediction never changes its samples.
"""

import numpy as np

from edgefl.base.config import AugmentationConfig
from edgefl.base.errors import ConfigError, PlanError
from edgefl.base.types import Array, Labels
from edgefl.program.learner.image_rotation import rotate_by_angles
from edgefl.program.plan.spec import PlanSpec, read_task


def read_augmentation(spec: PlanSpec) -> AugmentationConfig:
    """Return the augmentation of a plan. Without any, samples are trained on as they are.

    Raises:
        PlanError: this version of edgefl does not know a setting of the plan, or the plan's samples are not
            pictures.
    """
    if not spec.augmentation:
        return AugmentationConfig()
    try:
        augmentation = AugmentationConfig(**spec.augmentation)
        augmentation.check_samples(spec.input_shape, read_task(spec).kind)
    except (TypeError, ConfigError) as error:
        raise PlanError(
            f"the plan's augmentation does not fit: {error}; update edgefl on this device, or build the plan "
            "again"
        ) from error
    return augmentation


def augment_images(images: Array, augmentation: AugmentationConfig, rng: np.random.Generator) -> Array:
    """Return the pictures of a batch after a random crop, flip and rotation of each, in this order.

    A change that is off draws nothing.

    Args:
        images: pictures, shape (n, rows, columns, channels), float32.
        augmentation: the changes.
        rng: draws the changes of each picture.

    Returns:
        The pictures, shape (n, rows, columns, channels), float32.
    """
    count = len(images)
    crop = augmentation.crop
    if crop or augmentation.flip:
        offsets = rng.integers(2 * crop + 1, size=(2, count)) if crop else np.zeros((2, count), np.int64)
        flips = rng.random(count) < 0.5 if augmentation.flip else np.zeros(count, np.bool_)
        images = crop_images(images, crop, offsets, flips)
    if augmentation.rotate:
        images = rotate_by_angles(images, rng.uniform(-augmentation.rotate, augmentation.rotate, count))
    return images


def crop_images(images: Array, padding: int, offsets: Labels, flips: np.ndarray) -> Array:
    """Pad pictures with zeros, crop each to its old size, and mirror some of them.

    Args:
        images: pictures, shape (n, rows, columns, channels), float32.
        padding: pixels of zeros on each side.
        offsets: first row and first column of each crop in the padded picture, shape (2, n), int64, from 0 to
            2 * padding.
        flips: whether to exchange left and right of each picture, shape (n,), bool.

    Returns:
        The pictures, shape (n, rows, columns, channels), float32.
    """
    _, height, width, _ = images.shape
    padded = np.pad(images, ((0, 0), (padding, padding), (padding, padding), (0, 0))) if padding else images
    cropped = np.empty_like(images)
    for picture, source, (top, left), is_mirrored in zip(
        cropped, padded, offsets.T.tolist(), flips, strict=True
    ):
        part = source[top : top + height, left : left + width]
        picture[:] = part[:, ::-1] if is_mirrored else part
    return cropped
