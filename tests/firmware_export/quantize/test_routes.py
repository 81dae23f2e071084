"""The quantization routes.

The clone computes the same as the mixture. The converter agrees with the device's route. Tuning and 16-bit
activations preserve the accuracy.
"""

import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from edgefl.base.config import MIXTURE_ONLY, PersonalizationConfig
from edgefl.base.errors import ExportError
from edgefl.program.plan.tflite import read_float_constants, read_subgraph, with_constants
from firmware_export.quantize.quantize import (
    RECIPES,
    QuantizationOptions,
    detect_mixing,
    export_mixture,
    quantize,
)
from firmware_export.quantize.ranges import record_extremes
from firmware_export.quantize.routes import CONTROL_NAME
from firmware_export.quantize.tune import TUNING_LEARNING_RATE, Tuning, train_control, tune_int8
from firmware_export.tflite.graph import read_graph
from firmware_export.tflite.interpreter import MICRO_RUNTIME, load_tflite, measure_accuracy, run_samples

KINDS = ("aem", "fedmix", "pfl-mf", "pfl-mfe", "single", "blend", "blend-of-mixture")
MIXES = {
    "aem": "probabilities",
    "fedmix": "probabilities",
    "pfl-mf": "logits",
    "pfl-mfe": "logits",
    "single": "none",
    "blend": "probabilities",
    "blend-of-mixture": "probabilities",
}
ROOT = Path(__file__).parents[3]


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:]]


@pytest.fixture(scope="module", params=[KINDS[0], *SLOW])
def made(request, mixture_of):
    pytest.importorskip("tf_keras")
    return mixture_of(request.param, "uci-har")


def test_the_clone_computes_the_same_as_the_mixture(made) -> None:
    from firmware_export.quantize.keras_clone import clone, read_tuned_weights

    flat = clone(made.model_float)
    x = made.shard.x_test[:40]
    expected, _ = run_samples(load_tflite(made.model_float), x)
    np.testing.assert_allclose(flat.model.predict(x, verbose=0), expected, rtol=1e-5, atol=1e-5)
    assert (
        with_constants(
            made.model_float, read_tuned_weights(flat, flat.model, read_float_constants(made.model_float))
        )
        == made.model_float
    )


def test_device_and_converter_routes_agree(made) -> None:
    """Both routes use the extremes of the same 256 samples."""
    from edgefl.base.rng import derive_rng
    from firmware_export.quantize.convert import convert_float

    x = made.shard.x_test
    y = made.shard.y_test
    order = derive_rng(1, 0, "calibration").permutation(len(made.shard.x_train))
    converted, _ = run_samples(
        load_tflite(convert_float(made.model_float, made.shard.x_train[order][:256]), reference=True), x
    )
    exported, _ = run_samples(load_tflite(made.model, reference=True), x)
    expected, _ = run_samples(load_tflite(made.model_float), x)
    assert abs(measure_accuracy(exported, y) - measure_accuracy(converted, y)) <= 0.01
    assert (exported.argmax(axis=1) == converted.argmax(axis=1)).mean() > 0.95
    assert (converted.argmax(axis=1) == expected.argmax(axis=1)).mean() > 0.95


def test_the_kind_of_mixing_is_detected(made) -> None:
    assert detect_mixing(read_graph(made.model_float)) == made.report.mixing == MIXES[made.kind]


@pytest.mark.parametrize("route", ["device", pytest.param("tensorflow", marks=pytest.mark.slow)])
def test_sixteen_bit_activations_are_closer_to_float(mixture_of, route, tmp_path) -> None:
    made = mixture_of("aem", "uci-har")
    report = export_mixture(
        made.plan, made.mixture, made.shard, tmp_path, options=QuantizationOptions(route=route, bits=16)
    )
    assert (report.activation_bits, report.route) == (16, route)
    assert report.agreement >= max(0.995, made.report.agreement)
    model = (tmp_path / "model.tflite").read_bytes()
    assert {tensor.dtype for tensor in read_graph(model).tensors if not tensor.constant} == {"INT16"}
    if route == "device":
        pytest.importorskip("tflite_micro")
    micro, _ = run_samples(load_tflite(model, MICRO_RUNTIME), made.shard.x_test[:200])
    expected, _ = run_samples(load_tflite(made.model_float), made.shard.x_test[:200])
    assert micro.dtype == np.int16
    assert (micro.argmax(axis=1) == expected.argmax(axis=1)).mean() >= 0.99


TUNINGS = [
    pytest.param(Tuning(cluster=16, epochs=1), marks=pytest.mark.slow),
    pytest.param(Tuning(qat=True, epochs=1), marks=pytest.mark.slow),
    pytest.param(Tuning(prune=0.5, epochs=1), marks=pytest.mark.slow),
    pytest.param(Tuning(prune=0.5, qat=True, epochs=1), marks=pytest.mark.slow),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("tuning", TUNINGS, ids=lambda tuning: tuning.name)
def test_tuning_preserves_accuracy(mixture_of, tuning, tmp_path) -> None:
    pytest.importorskip("tensorflow_model_optimization")
    made = mixture_of("aem" if tuning.qat else "pfl-mfe", "uci-har")
    report = export_mixture(
        made.plan,
        made.mixture,
        made.shard,
        tmp_path,
        options=QuantizationOptions(route="tensorflow", bits=8, tuning=tuning),
    )
    assert [attempt.recipe for attempt in report.tried[:2]] == [tuning.name, CONTROL_NAME]
    assert report.within_one_point
    model = (tmp_path / "model.tflite").read_bytes()
    if report.recipe != tuning.name:
        return
    if tuning.prune:
        assert report.deflated_bytes < made.report.deflated_bytes
    if tuning.cluster:
        assert find_largest_value_count(model) <= 16 + 1
    assert run_samples(load_tflite(model, MICRO_RUNTIME), made.shard.x_test[:3])[0].dtype == np.int8


def test_first_step_of_a_control_matches_the_gradient(mixture_of) -> None:
    """The first step of Adam moves a weight by the learning rate, against the sign of its gradient.

    The gradient of an output's bias is the mean of its probability less one for samples of its class.
    """
    pytest.importorskip("tf_keras")
    made = mixture_of("single", "uci-har")
    x, y = made.shard.x_train[:32], made.shard.y_train[:32]
    logits, _ = run_samples(load_tflite(made.model_float), x)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    gradient = (powers / powers.sum(axis=1, keepdims=True) - np.eye(6)[y]).mean(axis=0)
    bias = [op for op in read_subgraph(made.model_float).operators if op.name == "FULLY_CONNECTED"][
        -1
    ].inputs[2]
    trained = train_control(made.model_float, x, y, epochs=1)
    before, after = (read_float_constants(model)[bias] for model in (made.model_float, trained))
    assert np.abs(gradient).min() > 1e-4
    np.testing.assert_allclose(after - before, -TUNING_LEARNING_RATE * np.sign(gradient), atol=2e-6)


def test_a_control_trains_for_the_epochs_of_all_steps() -> None:
    assert Tuning(qat=True, epochs=2).total_epochs == 2
    assert Tuning(prune=0.5, cluster=16, epochs=5).total_epochs == 10
    assert Tuning().total_epochs == 0


@pytest.mark.parametrize("settings", [MIXTURE_ONLY, PersonalizationConfig()], ids=["mixture", "default"])
def test_tuning_excludes_the_samples_that_compare_recipes(digits, tmp_path, monkeypatch, settings) -> None:
    shard = digits.shard
    tuned_on, compared_on = [], []

    def tune(model, x, y, calibration, tuning, bits) -> bytes:
        tuned_on.append((x, y))
        return quantize(model, record_extremes(model, calibration), RECIPES[0])

    def run_recorded(loaded, x):
        compared_on.append(x)
        return run_samples(loaded, x)

    def train(model, x, y, epochs) -> bytes:
        assert epochs == 3
        tuned_on.append((x, y))
        return model

    def convert(model, calibration, bits) -> bytes:
        return quantize(model, record_extremes(model, calibration), RECIPES[0])

    monkeypatch.setattr("firmware_export.quantize.tune.tune_int8", tune)
    monkeypatch.setattr("firmware_export.quantize.tune.train_control", train)
    monkeypatch.setattr("firmware_export.quantize.convert.convert_float", convert)
    monkeypatch.setattr("firmware_export.quantize.quantize.run_samples", run_recorded)
    plan = replace(digits.plan, spec=replace(digits.plan.spec, personalization=asdict(settings)))
    options = QuantizationOptions(route="tensorflow", bits=8, tuning=Tuning(prune=0.5))
    report = export_mixture(plan, digits.mixture, shard, tmp_path, client_id="pi-1", options=options)
    assert report.recipe == options.tuning.name
    (x, y), (x_control, y_control) = tuned_on
    assert np.array_equal(x, x_control) and np.array_equal(y, y_control)
    samples = {sample.tobytes(): label for sample, label in zip(shard.x_train, shard.y_train, strict=True)}
    compared = {sample.tobytes() for sample in compared_on[0]}
    assert compared and compared.isdisjoint(sample.tobytes() for sample in x)
    assert compared | {sample.tobytes() for sample in x} == samples.keys()
    assert [samples[sample.tobytes()] for sample in x] == y.tolist()


def find_largest_value_count(model: bytes) -> int:
    """Return the largest number of different int8 values in a row of a dense kernel.

    Each row has a scale.
    """
    graph = read_subgraph(model)
    kernels = [graph.tensors[op.inputs[1]].data for op in graph.operators if op.name == "FULLY_CONNECTED"]
    return max(len(np.unique(row)) for kernel in kernels for row in kernel)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_tuning_that_loses_accuracy_is_discarded(mixture_of, tmp_path) -> None:
    pytest.importorskip("tensorflow_model_optimization")
    made = mixture_of("pfl-mfe", "uci-har")
    options = QuantizationOptions(route="tensorflow", bits=8, tuning=Tuning(prune=0.99, epochs=1))
    report = export_mixture(made.plan, made.mixture, made.shard, tmp_path, options=options)
    assert report.tried[0].accuracy_int8 < report.accuracy_float - 0.01
    assert report.tried[1].recipe == CONTROL_NAME
    assert report.recipe in {attempt.recipe for attempt in report.tried[1:]} and report.within_one_point


def test_incompatible_quantization_options_are_refused() -> None:
    for make, message in (
        (lambda: Tuning(prune=1.0), "prune is 1.0"),
        (lambda: Tuning(cluster=1), "cluster_weights is 1"),
        (lambda: Tuning(cluster=16, qat=True), "use one of the two"),
        (lambda: Tuning(epochs=0), "0 epochs"),
        (lambda: QuantizationOptions(route="device", bits=8, tuning=Tuning(qat=True)), "--route tensorflow"),
        (lambda: QuantizationOptions(route="tensorflow", bits=16, tuning=Tuning(qat=True)), "16"),
        (lambda: QuantizationOptions(route="vendor"), "'vendor'"),
    ):
        with pytest.raises(ExportError, match=message):
            make()


def test_tensorflow_route_without_tensorflow_gives_an_error(digits, tmp_path, monkeypatch) -> None:
    from firmware_export.quantize import keras_clone

    monkeypatch.setitem(sys.modules, "tf_keras", None)
    keras_clone.define_layers.cache_clear()
    with pytest.raises(ExportError, match="aggregator"):
        export_mixture(
            digits.plan,
            digits.mixture,
            digits.shard,
            tmp_path,
            options=QuantizationOptions(route="tensorflow"),
        )


def test_tuning_on_one_class_is_refused() -> None:
    x = np.zeros((4, 2), np.float32)
    y = np.full(4, 3, np.int64)
    for train in (
        lambda: tune_int8(b"", x, y, x, Tuning(prune=0.5)),
        lambda: train_control(b"", x, y, epochs=1),
    ):
        with pytest.raises(ExportError, match="all 4 training labels are 3"):
            train()


def test_export_command_refuses_incompatible_options(tmp_path) -> None:
    command = [
        sys.executable,
        "-m",
        "edgefl",
        "export",
        "--state",
        str(tmp_path),
        "-o",
        str(tmp_path),
        "--qat",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1
    assert "--route tensorflow" in done.stderr and "Traceback" not in done.stderr


def test_the_device_route_imports_no_tensorflow() -> None:
    code = (
        "import sys, firmware_export.commands, firmware_export.quantize.tune, "
        "firmware_export.quantize.convert; assert 'tensorflow' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
