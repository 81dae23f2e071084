"""Augmentation: crops, mirrors and rotations by hand, their properties, and what a learner trains on."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgefl.base.config import AugmentationConfig
from edgefl.base.errors import PlanError
from edgefl.base.rng import derive_rng
from edgefl.program.learner.augmentation import augment_images, crop_images, read_augmentation
from edgefl.program.learner.image_rotation import rotate, rotate_by_angles
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.plan.spec import Plan

PICTURE = np.arange(1, 7, dtype=np.float32).reshape(1, 2, 3, 1)
"""1 2 3 above 4 5 6."""
ALL = AugmentationConfig(crop=1, flip=True, rotate=30.0)

images = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 5), st.integers(2, 7), st.integers(2, 7), st.integers(1, 3)),
    elements=st.floats(1, 2, width=32),
)


def crop(top, left, *, mirrored=False):
    offsets = np.array([[top], [left]])
    return crop_images(PICTURE, 1, offsets, np.array([mirrored]))[0, :, :, 0].tolist()


def test_crop_by_hand():
    """Offset 1 is the picture. A smaller offset moves the content down or right."""
    assert crop(1, 1) == [[1, 2, 3], [4, 5, 6]]
    assert crop(0, 1) == [[0, 0, 0], [1, 2, 3]]
    assert crop(2, 0) == [[0, 4, 5], [0, 0, 0]]
    assert crop(1, 2) == [[2, 3, 0], [5, 6, 0]]


def test_flip_by_hand():
    assert crop(1, 1, mirrored=True) == [[3, 2, 1], [6, 5, 4]]
    assert crop(0, 2, mirrored=True) == [[0, 0, 0], [0, 3, 2]]  # the crop comes first
    both = crop_images(np.repeat(PICTURE, 2, axis=0), 0, np.zeros((2, 2), int), np.array([True, False]))
    assert both[..., 0].tolist() == [[[3, 2, 1], [6, 5, 4]], [[1, 2, 3], [4, 5, 6]]]


def test_rotation_by_hand():
    """By 45 degrees, a corner of 3x3 pixels comes from a point 1.414 from the centre, on an axis.

    Its share of the pixel at distance 1 is .586, and the rest is outside.
    """
    square = np.zeros((2, 3, 3, 1), np.float32)
    square[:, 0, 1] = 1  # the pixel above the centre
    quarter, eighth = rotate_by_angles(square, np.array([90.0, 45.0]))[..., 0]
    np.testing.assert_allclose(quarter, [[0, 0, 0], [1, 0, 0], [0, 0, 0]], atol=1e-6)
    share = 2 - np.sqrt(2)
    assert eighth[0, 0] == pytest.approx(share, abs=1e-6)
    assert eighth[2, 2] == eighth[2, 1] == 0


@given(images, st.integers(0, 99))
def test_each_picture_is_rotated_like_alone(pictures, seed):
    degrees = np.random.default_rng(seed).uniform(-180, 180, len(pictures))
    turned = rotate_by_angles(pictures, degrees)
    assert turned.dtype == np.float32 and turned.shape == pictures.shape
    for picture, angle, result in zip(pictures, degrees, turned, strict=True):
        np.testing.assert_allclose(result, rotate(picture[None], float(angle))[0], atol=1e-4)


@given(images)
def test_rotation_by_zero_is_the_picture(pictures):
    np.testing.assert_array_equal(rotate_by_angles(pictures, np.zeros(len(pictures))), pictures)


@given(images, st.integers(0, 3), st.booleans(), st.integers(0, 99))
def test_crops_and_flips_have_only_values_of_the_picture_or_zero(pictures, padding, flip, seed):
    rng = np.random.default_rng(seed)
    before = pictures.copy()
    changed = augment_images(pictures, AugmentationConfig(padding, flip), rng)
    assert changed.dtype == np.float32 and changed.shape == pictures.shape
    for old, new in zip(pictures, changed, strict=True):
        assert set(new.ravel()) <= {0, *old.ravel()}
        if not padding:
            assert np.array_equal(new, old) or np.array_equal(new, old[:, ::-1])
    np.testing.assert_array_equal(pictures, before)


@given(images, st.integers(0, 99))
def test_equal_generators_give_equal_pictures(pictures, seed):
    first, second = (augment_images(pictures, ALL, np.random.default_rng(seed)) for _ in range(2))
    assert first.tobytes() == second.tobytes()
    assert first.max() <= pictures.max() + 1e-4 and first.min() >= 0


def test_every_offset_and_half_of_the_mirrors_occur():
    pictures = np.repeat(PICTURE, 2000, axis=0)
    crops = augment_images(pictures, AugmentationConfig(crop=1), np.random.default_rng(1))
    assert len(np.unique(crops, axis=0)) == 9
    flips = augment_images(pictures, AugmentationConfig(flip=True), np.random.default_rng(1))
    assert 0.45 < np.mean(flips[:, 0, 0, 0] == 3) < 0.55


def test_without_a_change_nothing_is_drawn():
    rng = np.random.default_rng(1)
    assert augment_images(PICTURE, AugmentationConfig(), rng) is PICTURE
    assert rng.random() == np.random.default_rng(1).random()


def augment(plan, entry):
    return Plan(
        spec=replace(plan.spec, augmentation=entry),
        program=plan.program,
        template=plan.template,
        single=plan.single,
    )


def fit(learner, weights, x, y, **options):
    trained, loss = learner.fit("train", weights, {"x": x}, y, epochs=2, rng=derive_rng(1, 1), **options)
    return {name: array.tobytes() for name, array in trained.items()}, loss


def test_training_sees_changed_pictures_and_prediction_does_not(tiny, digits):
    """A learner of a plan with augmentation takes the steps that a plain one takes on augmented batches."""
    plan, weights = tiny
    x, y = digits[0][:16], digits[1][:16]
    plain, augmented = LiteRTLearner(plan), LiteRTLearner(augment(plan, ALL.as_plan_entry()))
    seen = []
    step = augmented.step
    augmented.step = lambda name, arguments: seen.append(arguments["d_x"]) or step(name, arguments)
    changed, _ = augmented.fit("train", weights, {"x": x}, y, epochs=1, rng=derive_rng(1, 1))

    rng = derive_rng(1, 1)
    order = rng.permutation(16)
    batches = []
    for rows in (order[:8], order[8:]):
        batches.append(augment_images(x[rows], ALL, rng))
        rng.random(augmented.spec.find_signature("train").noise[0].shape, np.float32)
    assert [batch.tobytes() for batch in seen] == [batch.tobytes() for batch in batches]
    assert fit(augmented, weights, x, y) != fit(plain, weights, x, y)
    assert fit(augmented, weights, x, y, augment=False) == fit(plain, weights, x, y)
    full = {**weights, **changed}
    np.testing.assert_array_equal(*(each.predict("predict", full, {"x": x}) for each in (plain, augmented)))


def test_litert_and_keras_train_alike_on_augmented_pictures(tiny, digits):
    from edgefl.learning.algorithms.plans import make_keras_learner

    plan, weights = tiny
    x, y = digits[0][:60], digits[1][:60]
    plan = augment(plan, ALL.as_plan_entry())
    device, reference = (
        learner.fit("train", weights, {"x": x}, y, epochs=2, rng=derive_rng(1, 1))
        for learner in (LiteRTLearner(plan), make_keras_learner(plan.spec))
    )
    assert device[1] == pytest.approx(reference[1], abs=1e-4)
    for name, array in device[0].items():
        np.testing.assert_allclose(array, reference[0][name], atol=1e-4)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"crop": 1, "shear": 2}, r"augmentation does not fit: .*'shear'.*update edgefl"),
        ({"crop": 8}, r"crop is 8, expected below 8"),
        ({"crop": 1.5}, r"crop is 1.5, expected a whole number"),
        ({"flip": "no"}, r"flip is 'no', expected true or false"),
        ({"rotate": True}, r"rotate is True, expected degrees"),
        ({"rotate": "9"}, r"augmentation does not fit"),
    ],
)
def test_augmentation_of_a_plan_is_checked(tiny, entry, message):
    with pytest.raises(PlanError, match=message):
        read_augmentation(augment(tiny[0], entry).spec)
    windows = replace(tiny[0].spec, input_shape=(128, 3), augmentation={"flip": True})
    with pytest.raises(PlanError, match=r"expected pictures \[rows, columns, channels\]"):
        read_augmentation(windows)
