"""The int8 export is as accurate as TensorFlow's converter, and reports a loss of accuracy.

Unusable calibration data give a clear error.
"""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.errors import ExportError, PlanError
from edgefl.base.types import Mixture, Shard
from edgefl.program.plan.fill import fill_template
from firmware_export.quantize.device_route import dedupe_recipes
from firmware_export.quantize.quantize import RECIPES, Recipe, export_mixture, quantize
from firmware_export.quantize.ranges import choose_ranges, record_extremes
from firmware_export.tflite.interpreter import load_tflite, measure_accuracy, run_samples


@pytest.mark.parametrize("name", ["fashion", "digits"])
def test_int8_accuracy_is_within_one_point_of_float(request, name, tmp_path) -> None:
    trained = request.getfixturevalue(name)
    report = export_mixture(trained.plan, trained.mixture, trained.shard, tmp_path, seed=7, client_id="pi-1")
    assert report.within_one_point
    assert report.accuracy_float - report.accuracy_int8 <= 0.01
    assert report.accuracy_float > 0.6
    assert report.agreement > 0.97
    assert report.tflite_bytes == (tmp_path / "model.tflite").stat().st_size < report.float_bytes / 3
    assert json.loads((tmp_path / "report.json").read_text()) == json.loads(json.dumps(report.as_dict()))
    assert (report.seed, report.client_id, report.measured_on) == (7, "pi-1", "held-out")


def test_the_same_mixture_gives_the_same_bytes(digits, tmp_path) -> None:
    first, second = (
        export_mixture(digits.plan, digits.mixture, digits.shard, tmp_path / name).sha256 for name in "ab"
    )
    assert first == second


def test_float_model_gives_the_outputs_of_the_plan(digits, tmp_path) -> None:
    from edgefl.program.learner.litert import LiteRTLearner

    expected = LiteRTLearner(digits.plan).predict(
        "predict_mixture", digits.mixture.weights, {"x": digits.shard.x_test}
    )
    model = fill_template(digits.plan.template, digits.plan.spec.bindings, digits.mixture.weights)
    np.testing.assert_allclose(
        run_samples(load_tflite(model), digits.shard.x_test)[0], expected, rtol=1e-4, atol=1e-4
    )


def test_int8_accuracy_is_close_to_that_of_the_converter(fashion) -> None:
    tf = pytest.importorskip("tensorflow")
    from edgefl.base.config import FederationConfig
    from edgefl.learning.algorithms.registry import build_objectives
    from edgefl.program.compiler.build import make_network

    network = make_network(FederationConfig(algorithm="pfl-mfe"))
    mixture = next(o for o in build_objectives("pfl-mfe", network, {}) if o.name == "predict_mixture")
    weights = {name: tf.constant(value) for name, value in fashion.mixture.weights.items()}
    serve = tf.function(lambda x: mixture.out(weights, {"x": x})).get_concrete_function(
        tf.TensorSpec((1, 28, 28, 1), tf.float32)
    )
    converter = tf.lite.TFLiteConverter.from_concrete_functions([serve], tf.Module())
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([sample[None]] for sample in fashion.shard.x_train[:256])
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tf.int8
    converted = converter.convert()

    model = fill_template(fashion.plan.template, fashion.plan.spec.bindings, fashion.mixture.weights)
    quantized = quantize(model, record_extremes(model, fashion.shard.x_train), RECIPES[0])
    x = fashion.shard.x_test
    y = fashion.shard.y_test
    reached = [
        measure_accuracy(run_samples(load_tflite(model, reference=True), x)[0], y)
        for model in (quantized, converted)
    ]
    assert reached[0] >= reached[1] - 0.01


def test_extremes_of_every_sample_are_recorded(fashion) -> None:
    """The gate's logit is one value per sample.

    An average of minima and maxima over samples would give a range without width.
    """
    model = fill_template(fashion.plan.template, fashion.plan.spec.bindings, fashion.mixture.weights)
    observed = record_extremes(model, fashion.shard.x_train[:100])
    scalars = [
        extremes for extremes in observed.extremes.values() if (extremes[:, 0] == extremes[:, 1]).all()
    ]
    assert scalars, "the gate gives one value a sample"
    for name, limits in choose_ranges(observed, 100, 100.0, 0.0).items():
        low = observed.extremes[name][:, 0].min()
        high = observed.extremes[name][:, 1].max()
        assert float(limits["min"].item()) <= low and float(limits["max"].item()) >= high


def test_ranges_match_hand_computed_values() -> None:
    from firmware_export.quantize.ranges import RecordedExtremes

    observed = RecordedExtremes(
        extremes={"t": np.array([[1, 2], [-3, 4], [0, 8]], np.float32)}, ranks={"t": 2}
    )
    assert [choose_ranges(observed, 3, 100.0, 0.0)["t"][k].tolist() for k in ("min", "max")] == [
        [[-3.0]],
        [[8.0]],
    ]
    assert [choose_ranges(observed, 1, 100.0, 0.0)["t"][k].item() for k in ("min", "max")] == [0.0, 2.0]
    assert [choose_ranges(observed, 3, 50.0, 0.0)["t"][k].item() for k in ("min", "max")] == [0.0, 4.0]
    assert [choose_ranges(observed, 3, 100.0, 0.5)["t"][k].item() for k in ("min", "max")] == [-5.75, 10.75]


def test_recipes_are_tried_and_the_best_is_chosen(digits, tmp_path, monkeypatch) -> None:
    """The first recipe makes the ranges a thousand times too wide. The second one gives a good model."""
    bad = Recipe(name="far too wide", margin=1000.0)
    report = export_mixture(digits.plan, digits.mixture, digits.shard, tmp_path, recipes=(bad, RECIPES[0]))
    assert [a.recipe for a in report.tried] == ["far too wide", RECIPES[0].name]
    assert report.recipe == RECIPES[0].name and report.within_one_point
    assert report.tried[0].accuracy_int8 < report.accuracy_float - 0.01

    report = export_mixture(digits.plan, digits.mixture, digits.shard, tmp_path, recipes=(bad,))
    assert not report.within_one_point
    assert (tmp_path / "model.tflite").stat().st_size == report.tflite_bytes
    assert not json.loads((tmp_path / "report.json").read_text())["within_one_point"]


def test_test_labels_do_not_choose_the_recipe(digits, tmp_path) -> None:
    """Replace the test labels by the answers of the bad recipe.

    If the test samples chose the recipe, they would choose the bad one.
    """
    bad = Recipe(name="far too wide", margin=1000.0)
    model = fill_template(digits.plan.template, digits.plan.spec.bindings, digits.mixture.weights)
    answers = run_samples(
        load_tflite(quantize(model, record_extremes(model, digits.shard.x_train), bad), reference=True),
        digits.shard.x_test,
    )[0]
    other = replace(digits.shard, y_test=answers.argmax(axis=1).astype(np.int64))
    shards = {"true": digits.shard, "answers of the bad recipe": other}
    reports = {
        name: export_mixture(
            digits.plan, digits.mixture, shard, tmp_path / name, recipes=(bad, RECIPES[0]), client_id="pi-1"
        )
        for name, shard in shards.items()
    }
    one, two = reports.values()
    assert one.recipe == two.recipe == RECIPES[0].name
    assert one.tried == two.tried and one.sha256 == two.sha256
    assert one.measured_on == two.measured_on == "held-out"
    assert one.accuracy_int8 > 0.6 > two.accuracy_int8  # the labels for the measurement have changed


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: r.name)
def test_every_recipe_makes_an_accurate_model(digits, recipe) -> None:
    model = fill_template(digits.plan.template, digits.plan.spec.bindings, digits.mixture.weights)
    made = quantize(model, record_extremes(model, digits.shard.x_train[:50]), recipe)
    assert (
        measure_accuracy(
            run_samples(load_tflite(made, reference=True), digits.shard.x_test)[0], digits.shard.y_test
        )
        > 0.6
    )


def test_duplicate_recipes_are_left_out() -> None:
    assert [r.name for r in dedupe_recipes(RECIPES[:3], 100)] == [RECIPES[0].name, RECIPES[2].name]
    assert len(dedupe_recipes(RECIPES, 1000)) == len(RECIPES)


def replace_training_samples(shard: Shard, x: np.ndarray) -> Shard:
    return replace(shard, x_train=x.astype(np.float32), y_train=shard.y_train[: len(x)])


def test_unusable_calibration_data_are_refused(digits, tmp_path) -> None:
    x = digits.shard.x_train
    spoiled = x.copy()
    spoiled[3, 2, 1, 0] = np.nan
    for data, message in (
        (x[:0], "no calibration samples"),
        (np.full_like(x, 0.5), "all calibration values are 0.5"),
        (spoiled, "NaN"),
        (x[:, :14], r"are \(14, 28, 1\), expected \(28, 28, 1\)"),
    ):
        with pytest.raises(ExportError, match=message):
            export_mixture(
                digits.plan, digits.mixture, replace_training_samples(digits.shard, data), tmp_path
            )
    strange = replace(digits.shard, y_test=digits.shard.y_test + 5)
    with pytest.raises(ExportError, match="a label is 14, the mixture has 10 classes"):
        export_mixture(digits.plan, digits.mixture, strange, tmp_path)
    unmeasurable = replace(digits.shard, x_test=np.full_like(digits.shard.x_test, np.inf))
    with pytest.raises(ExportError, match="held-out samples contain NaN"):
        export_mixture(digits.plan, digits.mixture, unmeasurable, tmp_path)
    assert not (tmp_path / "model.tflite").exists()


def test_shard_with_one_class_is_exported(digits, tmp_path) -> None:
    """A client with samples of one class is exported like any other.

    Calibration does not use the labels.
    """
    one = digits.shard.y_train == 3
    shard = replace(digits.shard, x_train=digits.shard.x_train[one], y_train=digits.shard.y_train[one])
    report = export_mixture(digits.plan, digits.mixture, shard, tmp_path)
    assert report.calibration_samples == one.sum()
    assert report.within_one_point == (report.accuracy_float - report.accuracy_int8 <= 0.01 + 1e-9)


def test_report_states_that_no_samples_were_held_out(digits, tmp_path) -> None:
    bare = replace(digits.shard, x_test=digits.shard.x_test[:0], y_test=digits.shard.y_test[:0])
    report = export_mixture(digits.plan, digits.mixture, bare, tmp_path)
    assert (report.measured_on, report.num_test) == ("training", len(bare.y_train))


def test_mixture_with_missing_or_huge_weights_is_refused(digits, tmp_path) -> None:
    weights = dict(digits.mixture.weights)
    name = sorted(weights)[0]
    lacking = {key: value for key, value in weights.items() if key != name}
    with pytest.raises(PlanError, match=f"lacks {name}"):
        export_mixture(digits.plan, Mixture(weights=lacking), digits.shard, tmp_path)
    large = {key: value * np.float32(1e15) for key, value in weights.items()}
    with pytest.raises(ExportError, match="NaN or infinite"):
        export_mixture(digits.plan, Mixture(weights=large), digits.shard, tmp_path)
    huge = {key: value * np.float32(1e30) for key, value in weights.items()}
    with pytest.raises(PlanError, match=r"expected at most 1e\+20"):
        export_mixture(digits.plan, Mixture(weights=huge), digits.shard, tmp_path)


def test_error_for_a_missing_quantizer_has_a_remedy(digits, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ai_edge_quantizer", None)
    with pytest.raises(ExportError, match="64-bit system"):
        export_mixture(digits.plan, digits.mixture, digits.shard, tmp_path)
