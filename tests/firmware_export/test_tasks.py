"""Regressions and anomaly detectors from a federation to a verified export."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from devices.export import extract_export_metrics
from edgefl.base.config import MIXTURE_ONLY, FederationConfig, ModelConfig, PersonalizationConfig
from edgefl.base.errors import ExportError
from edgefl.base.tasks.config import TaskConfig
from edgefl.base.types import Mixture, Peer, Shard
from edgefl.data.npz import save_shard
from edgefl.data.task_form import to_task_form
from edgefl.learning.client.blend import predict_outputs, split_members
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.plan.spec import Plan
from firmware_export.certificate.budget import Budget
from firmware_export.certificate.bundle import write_bundle
from firmware_export.certificate.certificate import ExportRequest, make_certificate
from firmware_export.certificate.golden import choose_golden_samples, make_golden
from firmware_export.certificate.parity import check_scores
from firmware_export.certificate.verify import verify_bundle
from firmware_export.certificate.verify_report import verify_report
from firmware_export.codegen.c_source import generate_c
from firmware_export.commands.fleet import select_main_figure
from firmware_export.commands.infer import infer
from firmware_export.firmware.firmware import explain_not_runnable
from firmware_export.firmware.targets import TARGETS
from firmware_export.quantize.anomaly import load_detector, run_scores
from firmware_export.quantize.quantize import ExportReport, QuantizationOptions, export_mixture
from firmware_export.quantize.tune import Tuning
from firmware_export.tflite.interpreter import load_tflite, run_samples

VALUES = 6
RNG = np.random.default_rng(1)
DIRECTIONS = RNG.normal(size=(2, VALUES))


@dataclass(frozen=True)
class Exported:
    """A client's mixture with its export."""

    plan: Plan
    mixture: Mixture
    stored: Shard
    shard: Shard
    report: ExportReport
    out: Path


def draw_shard(task: TaskConfig) -> Shard:
    """Return samples on a plane. Anomalies lie off it. Their sum and difference are the values to predict."""
    x = (RNG.normal(size=(400, 2)) @ DIRECTIONS).astype(np.float32)
    y = np.zeros(400, np.int64)
    if task.kind == "anomaly":
        y[350:] = 2
        x[350:] += RNG.normal(size=(50, VALUES)).astype(np.float32)
        return Shard(x_train=x[:250], y_train=y[:250], x_test=x[250:], y_test=y[250:], num_classes=3)
    target = np.stack([x[:, 0] + x[:, 1], x[:, 0] - x[:, 1]], axis=1)[:, : task.outputs]
    return Shard(
        x_train=x[:250],
        y_train=y[:250],
        x_test=x[250:],
        y_test=y[250:],
        num_classes=1,
        target_train=target[:250],
        target_test=target[250:],
    )


def federate(
    task: TaskConfig, algorithm: str, out: Path, personalization: PersonalizationConfig = MIXTURE_ONLY
) -> Exported:
    pytest.importorskip("tensorflow")
    pytest.importorskip("ai_edge_quantizer")
    from edgefl.learning.algorithms.plans import build_plan
    from edgefl.simulation.simulate import simulate

    outputs = task.count_outputs((VALUES,), 0)
    options = {"hidden": 16, "code": 3, "depth": 1}
    config = FederationConfig(
        task=task,
        model=ModelConfig(name="autoencoder", input_shape=(VALUES,), num_classes=outputs, options=options),
        rounds=8,
        min_clients=2,
        algorithm=algorithm,
        personalization=personalization,
    )
    shards = {f"client-{number}": draw_shard(task) for number in range(2)}
    plan, initial = build_plan(config)
    mixture = simulate(plan, initial, shards, config).mixtures["client-0"]
    shard = to_task_form(shards["client-0"], task)
    report = export_mixture(plan, mixture, shard, out, client_id="client-0")
    return Exported(
        plan=plan, mixture=mixture, stored=shards["client-0"], shard=shard, report=report, out=out
    )


@pytest.fixture(scope="module")
def regression(tmp_path_factory) -> Exported:
    return federate(TaskConfig(kind="regression"), "pfl-mfe", tmp_path_factory.mktemp("regression"))


@pytest.fixture(scope="module")
def blend(tmp_path_factory) -> Exported:
    settings = PersonalizationConfig(epochs=3, least_steps=30)
    return federate(TaskConfig(kind="regression"), "fedavg", tmp_path_factory.mktemp("blend"), settings)


@pytest.fixture(scope="module")
def anomaly(tmp_path_factory) -> Exported:
    task = TaskConfig(kind="anomaly", false_alarm_rate=0.05)
    return federate(task, "fedavg", tmp_path_factory.mktemp("anomaly"))


def test_regression_keeps_its_figures_in_int8(regression) -> None:
    report = json.loads((regression.out / "report.json").read_text())
    assert report["task"]["within_limit"] and report["task"]["kind"] == "regression"
    assert report["task"]["r2_int8"] > report["task"]["r2_float"] - 0.05 > 0.5
    assert not {"accuracy_int8", "agreement", "within_one_point", "anomaly"} & report.keys()
    assert report["mixing"] == "outputs"
    assert extract_export_metrics(report)["r2_shipped_int8"] == report["task"]["r2_int8"]
    assert select_main_figure(regression.report)["r2_int8"] == report["task"]["r2_int8"]


def test_experts_with_one_output_keep_their_gate(regression) -> None:
    source = generate_c((regression.out / "model.tflite").read_bytes())
    assert source.parts == ("trunk", "gate", "expert0", "expert1", "mix")
    assert "#define MODEL_EXPERTS 2" in source.files["model.h"]


def test_blend_of_a_regression_adds_the_predictions(blend) -> None:
    learner = LiteRTLearner(blend.plan)
    members = split_members(blend.plan.spec, blend.mixture.weights)
    assert {member.name for member in members} == {"local", "fine_tuned", "federated"}
    x = blend.shard.x_test
    expected = sum(member.share * predict_outputs(learner, member.peer, x) for member in members)
    personal = Peer(blend.mixture.signature, blend.mixture.weights)
    np.testing.assert_allclose(predict_outputs(learner, personal, x), expected, atol=1e-5)
    float_model = load_tflite((blend.out / "model_float.tflite").read_bytes())
    np.testing.assert_allclose(run_samples(float_model, x)[0], expected, atol=1e-5)
    figures = blend.report.task
    assert figures is not None and figures["r2_int8"] > figures["r2_float"] - 0.05 > 0.5
    assert blend.report.members is not None and blend.report.members.keys() == {
        member.name for member in members
    }


def test_detector_finds_the_anomalies_in_int8(anomaly) -> None:
    report = anomaly.report
    assert report.task is not None and report.anomaly is not None
    assert report.task["auc_int8"] > report.task["auc_float"] - 0.02 > 0.6
    assert report.anomaly["calibrated_on"] == "held-out"
    assert report.anomaly["samples"] == 100 == sum(report.anomaly["bins"])
    assert report.anomaly["measured"]["false_alarm_rate"] <= 0.05
    assert extract_export_metrics(report.as_dict())["auc_shipped_int8"] == report.task["auc_int8"]
    assert "auc_int8" in select_main_figure(report)


def test_detector_of_the_file_gives_the_reported_false_alarms(anomaly) -> None:
    model = (anomaly.out / "model.tflite").read_bytes()
    loaded = load_tflite(model, reference=True)
    detector = load_detector(model, loaded)
    scores, _ = run_scores(loaded, detector.rule, anomaly.shard.x_test)
    assert detector.threshold == anomaly.report.anomaly["threshold"]
    alarms = detector.is_alarm(scores)
    is_anomaly = anomaly.shard.anomaly_test
    assert alarms[~is_anomaly].mean() == anomaly.report.anomaly["measured"]["false_alarm_rate"]
    assert alarms[is_anomaly].mean() == anomaly.report.anomaly["measured"]["recall"]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("regression", marks=pytest.mark.slow),
        pytest.param("blend", marks=pytest.mark.slow),
        "anomaly",
    ],
)
def test_export_is_certified_and_verified(request, name) -> None:
    pytest.importorskip("tflite_micro")
    made = request.getfixturevalue(name)
    if reason := explain_not_runnable(TARGETS["host"]):
        pytest.skip(reason)
    samples = choose_golden_samples(made.shard, 20, 1)
    certificate = write_bundle(made.out, *samples, ExportRequest(target="host", budget=Budget(0, 0)))
    assert certificate["task"]["kind"] == made.plan.spec.task["kind"]
    assert certificate["accuracy"]["accuracy_int8"] is None and not certificate["accuracy"]["by_class"]
    result = verify_bundle(made.out)
    assert any(line.startswith("R2: float") for line in result.checked)
    assert any("host" in line and "20 samples" in line for line in result.checked)
    page = (made.out / "report.html").read_text()
    assert "int8 R2" in page and ("alarm threshold" in page) == (name == "anomaly")
    program = (made.out / "firmware" / "main.c").read_text()
    assert ("model_is_anomaly" if name == "anomaly" else "print_outputs") in program
    example = (made.out / "c" / "examples" / "host" / "main.c").read_text()
    assert ("model_is_anomaly" if name == "anomaly" else "model_dequantize_output") in example
    (made.out / "certificate.json").unlink()


def test_report_without_certificate_is_verified_up_to_its_samples(anomaly) -> None:
    result = verify_report(anomaly.out)
    assert "integers only" in result.checked[0]
    assert "accuracy and parity" in result.unchecked[0]


@pytest.mark.parametrize("name", ["regression", "anomaly"])
def test_infer_measures_the_task(request, name, tmp_path) -> None:
    made = request.getfixturevalue(name)
    shard = tmp_path / "shard.npz"
    save_shard(shard, made.stored)
    arguments = [str(made.out / "model.tflite"), "--data", str(shard), "--reference"]
    ran = CliRunner().invoke(infer, [*arguments, "--json", "--split", "test"])
    assert ran.exit_code == 0, ran.output
    figures = json.loads(ran.output)
    assert figures["task"] == name and "accuracy" not in figures
    assert figures["samples"] == 400  # the model has no record of its split
    ran = CliRunner().invoke(infer, arguments)
    assert "R2 " in ran.output and ("alarms above the threshold" in ran.output) == (name == "anomaly")


def test_infer_makes_up_no_labels(regression, anomaly, tmp_path) -> None:
    def run(made: Exported, *options: str, **arrays: Any):
        np.savez(tmp_path / "shard.npz", **arrays)
        arguments = [str(made.out / "model.tflite"), "--data", str(tmp_path / "shard.npz"), *options]
        return CliRunner().invoke(infer, arguments)

    x = np.concatenate([anomaly.stored.x_train, anomaly.stored.x_test])
    y = np.concatenate([anomaly.stored.y_train, anomaly.stored.y_test])
    figures = json.loads(run(anomaly, "--json", x=x).stdout)
    assert figures["alarms"] > 0
    assert not figures.keys() & {"auc", "precision", "recall", "f1", "false_alarm_rate"}
    assert "precision" not in run(anomaly, x=x).output
    refused = run(anomaly, x=x, y=np.where(y, -1, 1))
    assert "the labels y hold -1, expected 0 for a normal sample" in str(refused.exception)
    refused = run(regression, x=regression.stored.x_train)
    assert "no labels y, expected numbers to predict; add y, or for CSV" in str(refused.exception)


def test_scores_that_differ_name_the_sample() -> None:
    check_scores("host", np.array([1, 2]), np.array([1, 2]))
    with pytest.raises(
        ExportError, match="anomaly scores in 1 of 2 samples, first in sample 1: expected 2, received 3"
    ):
        check_scores("host", np.array([1, 2]), np.array([1, 3]))
    with pytest.raises(ExportError, match="first in sample 0: expected 1, received -1"):
        check_scores("host", np.array([1, 2]), None)


def test_tuning_and_skipping_are_for_classes(anomaly, tmp_path) -> None:
    options = QuantizationOptions(route="tensorflow", tuning=Tuning(qat=True))
    with pytest.raises(ExportError, match="task is anomaly; leave out --qat"):
        export_mixture(anomaly.plan, anomaly.mixture, anomaly.shard, tmp_path, options=options)
    pytest.importorskip("tflite_micro")
    model = (anomaly.out / "model.tflite").read_bytes()
    golden = make_golden(model, *choose_golden_samples(anomaly.shard, 3, 1))
    with pytest.raises(ExportError, match="no classifier; leave out --threshold"):
        make_certificate(
            model,
            None,
            generate_c(model),
            golden,
            ExportRequest(target="host", budget=Budget(0, 0), threshold=0.1),
        )
