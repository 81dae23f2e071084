"""Findings of an inspection: an example of each mistake, and arbitrary samples, which raise no error."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from edgefl.data.inspection.inspect import inspect_samples, name_devices
from edgefl.data.inspection.records import CHANGE, ERROR, SEVERITIES, WARNING
from edgefl.watch.report.samples_page import render_samples_page
from edgefl.watch.report.samples_text import format_inspection, format_short_inspection
from tests.support.sample_files import windows_of

RNG = np.random.default_rng(0)


CHANNELS = {"channels": np.array(["ax", "az"]), "columns": np.array(["ax", "az"])}


def make_samples(count=60, shape=(8, 8, 1), classes=4, seed=0):
    x = np.random.default_rng(seed).random((count, *shape)).astype(np.float32)
    return {"x": x, "y": np.arange(count) % classes}


def find_kinds(*devices):
    """Return the set of (kind, severity) of the findings about pi-1, pi-2, ..."""
    return {(each.kind, each.severity) for each in inspect_devices(*devices).findings}


def inspect_devices(*devices):
    return inspect_samples({f"pi-{number}": arrays for number, arrays in enumerate(devices, 1)})


def get_finding_text(kind, *devices):
    (finding,) = [each for each in inspect_devices(*devices).findings if each.kind == kind]
    return finding.text


def test_usual_samples_have_no_findings() -> None:
    assert find_kinds(make_samples(), make_samples(seed=1)) == set()
    windows = {"x": RNG.normal(size=(60, 128, 9)), "y": np.arange(60) % 4}
    assert find_kinds(windows) == set()
    assert find_kinds({"x": (255 * make_samples()["x"]).astype(np.uint8), "y": np.arange(60) % 4}) == set()


def test_figures_of_a_device_match_hand_calculation() -> None:
    x = np.zeros((4, 2, 2), np.float32)
    x[1] = [[1, -2], [3, 5]]
    x[3] = x[1]
    (device,) = inspect_devices(
        {"x": x, "y": np.array([5, 2, 2, 5]), "x_test": x[:1], "y_test": np.array([2])}
    ).devices
    assert (device.stored, device.shape) == ("float32[4, 2, 2]", (2, 2))
    assert (device.num_samples, device.num_test) == (4, 1)
    assert device.class_counts == ((2, 3), (5, 2))
    assert device.values is not None
    # two samples of 1, -2, 3, 5 and three of zeros: mean 14 / 20, mean of squares 78 / 20
    assert (device.values.low, device.values.high) == (-2, 5)
    assert device.values.mean == pytest.approx(0.7)
    assert device.values.spread == pytest.approx((3.9 - 0.49) ** 0.5)
    assert [(each.low, each.high) for each in device.channels] == [(0, 3), (-2, 5)]
    assert device.num_copies == 3  # one of the second sample, two of the first
    assert device.num_blank == 3
    assert [(each.row, each.label) for each in device.examples] == [(1, 2), (0, 5)]


def add_nan(arrays):
    x = arrays["x"].copy()
    x[3] = np.nan
    return arrays | {"x": x}


@pytest.mark.parametrize(
    ("kind", "severity", "change", "message"),
    [
        ("channels-first", CHANGE, {"x": RNG.random((60, 3, 32, 32))}, "32x32x3"),
        ("channels-first", WARNING, {"x": RNG.random((60, 2, 32, 32))}, "x.transpose(0, 2, 3, 1)"),
        ("channels-first", WARNING, {"x": RNG.random((60, 9, 128))}, "128 readings of 9 channels"),
        ("channel-axis", CHANGE, {"x": RNG.random((60, 28, 28))}, "28x28x1"),
        ("channel-axis", WARNING, {"x": RNG.integers(0, 256, (60, 24, 32), np.uint8)}, "x[..., None]"),
        ("channel-axis", WARNING, {"x": RNG.integers(0, 256, (60, 24, 32)) / 255}, "x[..., None]"),
        ("channel-axis", WARNING, {"x": RNG.integers(0, 256, (60, 24, 32)).astype("f4")}, "x[..., None]"),
        ("channel-axis", WARNING, {"x": (RNG.integers(0, 256, (60, 24, 32)) / 255).astype("f2")}, "pictures"),
        ("one-hot", CHANGE, {"y": np.eye(4)[np.arange(60) % 4]}, "out of 4 classes"),
        ("label-type", CHANGE, {"y": (np.arange(60) % 4).astype(float)}, "float64[60]"),
        ("unscaled", CHANGE, {"x": RNG.integers(0, 256, (60, 8, 8, 1)).astype(float)}, "divided by 255"),
        ("unscaled", WARNING, {"x": 255 * RNG.random((60, 8, 8, 1))}, "x / 255"),
        (
            "unscaled-targets",
            WARNING,
            {"y": 100 + 140 * RNG.random(60)},
            "scale them by the same numbers on every device",
        ),
        ("unscaled", WARNING, {"x": 4096 * RNG.normal(size=(60, 128, 3))}, "expected about 1"),
        ("unscaled", WARNING, {"x": 1e-5 * RNG.normal(size=(60, 128, 3))}, "expected about 1"),
        ("first-label", WARNING, {"y": 7 + np.arange(60) % 4}, "y - 7"),
        ("empty-classes", WARNING, {"y": 2 * (np.arange(60) % 3)}, "class 1, 3"),
        ("empty-classes", WARNING, {"num_classes": np.asarray(6)}, "class 4, 5"),
        ("many-classes", WARNING, {"y": np.arange(60)}, "60 different labels"),
        ("numbers", CHANGE, {"y": np.arange(60) / 2}, "such as 0.5; they are read as values to predict"),
        ("numbers", WARNING, {"y": np.arange(60) % 4 - 1}, "such as -1; they are read as values to predict"),
        ("unusable", ERROR, {"y": np.r_[np.arange(59) / 2, np.nan]}, "NaN or infinite values in 1 of 60"),
        ("unusable", ERROR, {"y": np.arange(59) % 4}, "60 samples and y has 59 labels"),
        ("unusable", ERROR, {"y": np.array(["a"] * 60)}, "number the classes from 0"),
        ("unusable", ERROR, {"x": np.array(["a"] * 60)}, "expected uint8 pictures or floats"),
        ("unusable", ERROR, add_nan(make_samples()), "NaN or infinite values in 1 of 60 samples, first at 3"),
        ("one-class", WARNING, {"y": np.full(60, 2)}, "all 60 samples are of class 2"),
        ("few-samples", WARNING, make_samples(12), "12 samples, expected 20"),
        ("few-of-a-class", WARNING, {"y": np.r_[np.arange(57) % 3, 3, 3, 3]}, "class 3 (3)"),
        ("constant-channel", WARNING, {"x": RNG.normal(size=(60, 16, 3)) * [1, 0, 1]}, "channel 1 of 3"),
    ],
)
def test_each_mistake_is_found(kind, severity, change, message) -> None:
    arrays = make_samples() | change
    assert (kind, severity) in find_kinds(arrays)
    assert message in get_finding_text(kind, arrays)
    assert (kind, severity) not in find_kinds(make_samples())


@pytest.mark.parametrize(
    "x",
    [
        RNG.random((60, 24, 32)),
        RNG.integers(0, 2, (60, 24, 32)).astype(float),
        RNG.integers(0, 17, (60, 24, 32)) - 8.0,
        RNG.integers(0, 4096, (60, 24, 32)).astype(float),
        RNG.integers(0, 2048, (60, 24, 32)).astype("f2") / 8,
        RNG.integers(0, 256, (60, 128, 9)) / 255,
    ],
    ids=["any values", "marks", "signed", "12 bits", "eighths", "9 channels"],
)
def test_windows_of_many_channels_are_not_reported_as_pictures(x) -> None:
    assert "channel-axis" not in {kind for kind, _ in find_kinds({"x": x, "y": np.arange(60) % 4})}


def test_copies_and_contradicting_labels_are_found() -> None:
    arrays = make_samples()
    arrays["x"][10] = arrays["x"][2]  # both of class 2
    arrays["x"][11] = arrays["x"][2]  # class 3
    assert get_finding_text("copies", arrays).startswith("2 of 60 samples")
    assert get_finding_text("contradictions", arrays).startswith("1 samples occur more than once")
    few_values = {"x": np.zeros((60, 3), np.float32), "y": np.arange(60) % 4}
    assert not {kind for kind, _ in find_kinds(few_values)} & {"copies", "contradictions"}


def test_samples_shared_by_two_devices_are_found() -> None:
    first = make_samples()
    second = make_samples(seed=1)
    assert {kind for kind, _ in find_kinds(first, second)} == set()
    assert "pi-1 and pi-2" in get_finding_text("same-samples", first, first | {"x": first["x"][::-1]})
    second["x"][:7] = first["x"][:7]
    assert "7 in pi-1 and pi-2" in get_finding_text("shared-samples", first, second)
    inspection = inspect_devices(first, second, make_samples(seed=2))
    assert [device.num_shared for device in inspection.devices] == [7, 7, 0]
    assert inspection.findings[0].devices == ("pi-1", "pi-2")


def test_test_samples_in_the_training_part_are_found() -> None:
    arrays = make_samples()
    leaking = arrays | {"x_test": arrays["x"][:5], "y_test": arrays["y"][:5]}
    assert get_finding_text("test-in-training", leaking).startswith("5 of 5 samples of x_test")
    without_overlap = arrays | {"x_test": make_samples(5, seed=9)["x"], "y_test": arrays["y"][:5]}
    assert "test-in-training" not in {kind for kind, _ in find_kinds(without_overlap)}


def test_test_windows_that_overlap_training_windows_are_found() -> None:
    """Windows have 16 rows. The windows of `x` begin at rows 0, 16, ..., 944 of a recording of 976 rows."""
    signal = RNG.normal(size=(976, 3))
    x = np.stack([signal[row : row + 16] for row in range(0, 960, 16)])
    new = RNG.normal(size=(2, 16, 3))
    x_test = np.stack([new[0], signal[8:24], x[5], signal[952:968], new[1], signal[960:]])
    arrays = {"x": x, "y": np.arange(60) % 4, "x_test": x_test, "y_test": np.arange(6) % 4}
    text = get_finding_text("test-overlaps-training", arrays)
    assert text.startswith("2 of 6 windows of x_test overlap windows of x: rows 1, 3 of x_test; ")
    assert get_finding_text("test-in-training", arrays).startswith("1 of 6 samples of x_test")
    without_overlap = arrays | {"x_test": x_test[[0, 4, 5]], "y_test": np.arange(3)}
    assert find_kinds(without_overlap) == set()
    broken = arrays | {"y": np.arange(59) % 4}
    assert "test-overlaps-training" not in {kind for kind, _ in find_kinds(broken)}


@pytest.mark.parametrize("has_test_part", [False, True])
def test_groups_with_overlapping_windows_are_found(has_test_part) -> None:
    """There are five windows in each of twelve groups. The first six groups are one recording."""
    x = np.concatenate([windows_of(30, 8, 1), windows_of(30, 16, 2)])
    arrays = {"x": x, "y": np.arange(60) % 4, "group": np.arange(60) // 5}
    if has_test_part:
        arrays |= {"x_test": windows_of(8, 16, 3), "y_test": np.arange(8) % 4}
    assert "12 groups count as 7" in get_finding_text("joined-groups", arrays)
    joined = np.r_[np.zeros(30, int), np.arange(30, 60) // 5]
    assert "joined-groups" not in {kind for kind, _ in find_kinds(arrays | {"group": joined})}


def test_devices_with_incompatible_samples_are_found() -> None:
    assert ("shapes", ERROR) in find_kinds(make_samples(), make_samples(shape=(9, 9, 1)))
    names = [make_samples() | {"class_names": np.array(each)} for each in (["a", "b"], ["b", "a"])]
    assert "pi-1, pi-2" in get_finding_text("class-names", *names)
    assert ("class-names", ERROR) not in find_kinds(names[0], names[0])
    metres = {"x": RNG.normal(size=(60, 128, 3)), "y": np.arange(60) % 4}
    thousandths = {"x": metres["x"][::-1] * 9.81, "y": metres["y"]}
    assert "values of pi-2 vary 9.81 times as much as those of pi-1" in get_finding_text(
        "scales", metres, thousandths
    )


def test_targets_in_other_units_are_found() -> None:
    x = RNG.normal(size=(60, 128, 3))
    watts = {"x": x, "y": RNG.normal(size=60)}
    kilowatts = {"x": x[::-1] + 1, "y": watts["y"] / 1000}
    assert "numbers to predict of pi-1 vary 1e+03 times" in get_finding_text("scales", watts, kilowatts)


@pytest.mark.parametrize(
    ("arrays", "names"),
    [({"channels": np.array(["ax", "seq"]), "window_number": np.arange(60)}, "seq"), ({}, "1")],
)
def test_channel_that_grows_like_a_counter_is_found(arrays, names) -> None:
    counter = np.arange(60 * 16).reshape(60, 16) % 500
    x = np.stack([RNG.normal(size=(60, 16)), counter], axis=2).astype(np.float32)
    ring = {"x": x, "y": np.arange(60) % 4, "recording": np.arange(60), "first_row": np.zeros(60, int)}
    if not arrays:
        ring = {"x": x, "y": ring["y"]}
    assert f"channel {names} grows like" in get_finding_text("growing-channel", ring | arrays)
    assert "growing-channel" not in {kind for kind, _ in find_kinds(ring | arrays | {"x": x[..., :1]})}


def test_outliers_are_relative_to_the_variance_of_their_class() -> None:
    windows = RNG.normal(size=(200, 64, 3))
    labels = np.zeros(200, int)
    labels[:20] = 1
    windows[:20] *= 3  # a class with a large variance
    assert "outliers" not in {kind for kind, _ in find_kinds({"x": windows, "y": labels})}
    windows[150] *= 50
    windows[33, :, 1] += 40
    inspection = inspect_devices({"x": windows, "y": labels})
    assert inspection.devices[0].outliers == (33, 150)
    shown = [(each.row, each.is_outlier) for each in inspection.devices[0].examples]
    assert shown == [(20, False), (0, False), (33, True), (150, True)]
    assert inspection.devices[0].usual is not None and inspection.devices[0].usual.high < 20


def test_sparse_features_are_not_outliers() -> None:
    x = np.zeros((200, 10), np.float32)
    x[::40, 3] = 1
    assert "outliers" not in {kind for kind, _ in find_kinds({"x": x, "y": np.arange(200) % 4})}


def test_outlier_rows_are_numbered_as_in_the_file() -> None:
    windows = RNG.normal(size=(60, 64, 3))
    windows[5] = np.inf
    windows[20] *= 100
    (device,) = inspect_devices({"x": windows, "y": np.zeros(60, int)}).devices
    assert device.outliers == (20,)
    assert device.num_samples == 60 and sum(count for _, count in device.class_counts) == 59


def test_findings_begin_with_errors_and_name_all_devices() -> None:
    one_hot = make_samples() | {"y": np.eye(4)[np.arange(60) % 4]}
    inspection = inspect_devices(
        one_hot, one_hot | {"x": make_samples(seed=1)["x"]}, add_nan(make_samples(seed=2))
    )
    severities = [SEVERITIES.index(each.severity) for each in inspection.findings]
    assert severities == sorted(severities) and severities[0] == 0
    assert [each.devices for each in inspection.findings if each.kind == "one-hot"] == [("pi-1", "pi-2")]


def test_mean_and_std_of_all_devices_have_the_form_of_the_configuration() -> None:
    devices = [make_samples(30 + 40 * k, (6, 2), seed=k) for k in range(3)]
    for device in devices:
        device["x"] = device["x"] * np.float32((1, 20)) + np.float32((0, 7))
    every = np.concatenate([device["x"] for device in devices]).reshape(-1, 2).astype(np.float64)
    mean, std = (", ".join(f"{value:.4g}" for value in v) for v in (every.mean(axis=0), every.std(axis=0)))
    line = f"normalization in [model]: mean = [{mean}], std = [{std}]"
    assert line in format_inspection(inspect_devices(*devices)).splitlines()
    devices[0]["x"][..., 1] = 3
    assert line not in format_inspection(inspect_devices(*devices))
    for device in devices:
        device["x"][..., 1] = 3
    assert "normalization" not in format_inspection(inspect_devices(*devices))


def test_short_format_limits_devices_and_findings() -> None:
    one_class = [
        make_samples(30 + number, seed=number) | {"y": np.zeros(30 + number, int)} for number in range(20)
    ]
    lines = format_short_inspection(inspect_devices(*one_class)).splitlines()
    assert sum(line.startswith("pi-") for line in lines) == 8
    assert "and 12 more devices" in lines
    assert sum(line.startswith("warning") for line in lines) == 12
    assert lines[-1] == "and 8 more findings; `edgefl data show` prints all"


def test_devices_are_named_after_their_files() -> None:
    assert name_devices(["a/pi-1.npz", "a/pi-2.npz"]) == ["pi-1", "pi-2"]
    assert name_devices(["a/x.npz", "b/x.npz"]) == ["a/x.npz", "b/x.npz"]
    assert name_devices(["x.npz", "x.npz"]) == ["x.npz", "x.npz (2)"]


DTYPES = st.sampled_from(["f2", "f4", "f8", "i1", "i8", "u1", "u8", "?", "U3", "S2", "c8", "M8[s]", "m8[s]"])
SHAPES = arrays_of.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=9)
ANY = DTYPES.flatmap(lambda dtype: arrays_of.arrays(dtype, SHAPES))
NAMES = ("x", "y", "x_test", "y_test", "num_classes", "class_names", "window_number", "group")
ARRAYS = st.dictionaries(st.sampled_from(NAMES), ANY)
FITTING = st.integers(0, 6).flatmap(
    lambda count: st.fixed_dictionaries(
        {
            "x": arrays_of.arrays(
                st.sampled_from(["f4", "f8", "u1", "f2"]),
                arrays_of.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=9).map(
                    lambda shape: (count, *shape)
                ),
            ),
            "y": arrays_of.arrays(st.sampled_from(["i8", "i1", "u8", "f4"]), (count,)),
        }
    )
)


@given(st.lists(ARRAYS | FITTING, min_size=1, max_size=3))
@settings(max_examples=300, deadline=None)
def test_inspection_of_arbitrary_arrays_never_fails(devices) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inspection = inspect_devices(*devices)
        assert format_inspection(inspection) and format_short_inspection(inspection)
        assert render_samples_page(inspection).endswith("</html>\n")
    assert len(inspection.devices) == len(devices)
    assert all(
        set(each.devices) <= {device.name for device in inspection.devices} for each in inspection.findings
    )


CLASS_FINDINGS = {"one-class", "many-classes", "first-label", "empty-classes", "few-of-a-class"}


def test_samples_without_labels_have_no_findings_about_classes() -> None:
    windows = {"x": RNG.normal(size=(60, 128, 3)).astype(np.float32)}
    inspection = inspect_devices(windows, {"x": windows["x"] + 1})
    assert inspection.findings == ()
    assert (inspection.classes, inspection.num_classes) == ((), 0)
    for device in inspection.devices:
        assert (device.has_labels, device.class_counts, device.targets) == (False, (), ())
        assert device.split is not None
    text = format_inspection(inspection)
    assert "2 devices, 120 samples of 128x3, no labels" in text
    assert "class" not in text
    page = render_samples_page(inspection)
    assert "The samples have no labels." in page and "The first samples, and" in page


def test_outliers_without_labels_are_far_from_all_samples() -> None:
    x = RNG.normal(size=(60, 128, 3)).astype(np.float32)
    x[7] += 100
    assert inspect_devices({"x": x}).devices[0].outliers == (7,)
    assert "far from the others: row 7" in get_finding_text("outliers", {"x": x})


def test_numbers_to_predict_have_ranges_and_no_classes() -> None:
    arrays = make_samples() | {"y": np.linspace(-2, 7.5, 60)}
    inspection = inspect_devices(arrays)
    (device,) = inspection.devices
    assert device.has_labels and device.class_counts == ()
    assert [(each.low, each.high) for each in device.targets] == [(-2, 7.5)]
    assert {finding.kind for finding in inspection.findings} == {"numbers"}
    text = format_inspection(inspection)
    assert "1 number to predict" in text and "-2 to 7.5" in text and "class 0" not in text
    assert device.examples[0].target == (-2,)
    assert "target -2, row 0" in render_samples_page(inspection)


def test_each_number_to_predict_of_a_source_has_a_range() -> None:
    target = np.stack([np.arange(60) / 8, np.arange(60) / 10 - 1], axis=1).astype(np.float32)
    arrays = {"x": make_samples()["x"], "target": target}
    inspection = inspect_devices(arrays)
    assert [(each.low, each.high) for each in inspection.devices[0].targets] == [
        (0, 7.375),
        (-1, pytest.approx(4.9)),
    ]
    assert inspection.findings == ()
    assert "2 numbers to predict" in format_inspection(inspection)
    assert "target 1" in format_short_inspection(inspection)


def test_devices_with_other_forms_of_labels_are_found() -> None:
    classes, numbers = make_samples(), make_samples(seed=1) | {"y": np.arange(60) / 8}
    unlabelled = {"x": make_samples(seed=2)["x"]}
    assert "whole numbers on pi-1" in get_finding_text("label-forms", classes, numbers)
    pairs = {"x": numbers["x"], "y": np.stack([np.arange(60) / 8] * 2, axis=1)}
    assert ("label-forms", ERROR) in find_kinds(numbers, pairs | {"x": make_samples(seed=3)["x"]})
    findings = [each for each in inspect_devices(classes, unlabelled).findings if each.kind == "no-labels"]
    assert [each.devices for each in findings] == [("pi-2",)]
    assert not CLASS_FINDINGS & {kind for kind, _ in find_kinds(classes, unlabelled)}


@pytest.mark.parametrize(
    ("kind", "severity", "changes"),
    [
        ("class-names", ERROR, [{"class_names": np.array(["a", "b", "c", "d"])}, {}]),
        (
            "class-names",
            ERROR,
            [{"class_names": np.array(list("abcd"))}, {"class_names": np.array(list("abdc"))}],
        ),
        (
            "class-names",
            ERROR,
            [{"class_names": np.array(list("abcd"))}, {"class_names": np.array(list("abcde"))}],
        ),
        ("num-classes", ERROR, [{"num_classes": np.asarray(4)}, {"num_classes": np.asarray(5)}]),
        ("num-classes", ERROR, [{"y": np.eye(4)[np.arange(60) % 4]}, {"y": np.arange(60) % 6}]),
        ("num-classes", None, [{"num_classes": np.asarray(4)}, {}]),
        ("num-classes", None, [{"y": np.eye(4)[np.arange(60) % 4]}, {"y": np.arange(60) % 3}]),
        ("class-names", None, [{"y": np.arange(60.0) % 4}, {}]),
        ("class-names", WARNING, [{"class_names": np.array(["Walk", "run", "sit", "walk"])}]),
        ("class-names", WARNING, [{"class_names": np.array(["stand up", "run", "stand_up", "walk"])}]),
        ("class-names", WARNING, [{"class_names": np.array(["None", "run", "sit", "walk"])}]),
        ("class-names", WARNING, [{"class_names": np.array(["0", "1", "2", "?"])}]),
        ("class-names", WARNING, [{"class_names": np.array(["0.0", "1.0", "2.0", "background"])}]),
        ("class-names", None, [{"class_names": np.array(["-3", "+3", "4", "5"])}]),
        ("units", ERROR, [{"x": 255 * np.ones((60, 8, 8, 1))}, {}]),
        ("units", None, [{"x": RNG.integers(0, 256, (60, 8, 8, 1), np.uint8)}, {}]),
        ("channel-names", ERROR, [CHANNELS, {**CHANNELS, "channels": np.array(["ax", "gx"])}]),
        ("channel-names", WARNING, [CHANNELS, {**CHANNELS, "columns": np.array(["az", "ax"])}]),
        ("channel-names", None, [CHANNELS, CHANNELS]),
        ("channel-names", WARNING, [CHANNELS, {}]),
        ("rates", WARNING, [{"interval": np.asarray(0.02)}, {"interval": np.asarray(0.04)}]),
        ("rates", None, [{"interval": np.asarray(0.02)}, {"interval": np.asarray(0.025)}, {}]),
    ],
)
def test_what_a_class_a_channel_and_a_value_mean_is_compared(kind, severity, changes) -> None:
    devices = [make_samples(seed=seed) | change for seed, change in enumerate(changes)]
    severities = {found for name, found in find_kinds(*devices) if name == kind}
    assert severities == ({severity} if severity else set())
