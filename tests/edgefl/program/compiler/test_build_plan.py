"""`edgefl plan build` and `inspect`: the same configuration gives the same plan, and errors are readable."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

from edgefl.base.config import AugmentationConfig, FederationConfig, ModelConfig
from edgefl.base.errors import PlanError
from edgefl.cli.commands.plan import plan as plan_command
from edgefl.cli.main import run_command
from edgefl.learning.algorithms.plans import build_plan, make_keras_learner
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.plan import spec as plan_spec
from edgefl.program.plan.inspect import inspect_plan, render_plan
from edgefl.program.plan.spec import (
    decode_plan,
    encode_plan,
    load_plan,
    parse_spec,
    save_plan,
    serialize_spec,
)

MODEL_OPTIONS = ["--model", "softmax", "--input-shape", "6,6,1", "--num-classes", "3"]


@pytest.fixture(scope="module")
def plan_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("plan")
    result = CliRunner().invoke(
        plan_command, ["build", *MODEL_OPTIONS, "--algorithm", "pfl-mf", "-o", str(directory)]
    )
    assert result.exit_code == 0, result.output
    return directory


def test_written_plan_equals_the_built_plan(plan_directory):
    config = FederationConfig(
        algorithm="pfl-mf", model=ModelConfig(name="softmax", input_shape=(6, 6, 1), num_classes=3)
    )
    plan, weights = build_plan(config)
    assert load_plan(plan_directory).id == plan.id
    written = load_file(plan_directory / "initial.safetensors")
    assert set(written) == {spec.name for spec in plan.spec.weights}
    assert all((written[name] == weights[name]).all() for name in written)
    assert plan.template and plan.spec.bindings
    assert 60 < plan.spec.process_mb < 70  # a softmax takes little more than Python and the runtime
    assert "train_gate" in {s.name for s in plan.spec.signatures}
    assert plan.spec.options["gate_epochs"] > 0


def test_inspect_needs_no_tensorflow(plan_directory):
    code = (
        "import sys; sys.modules['tensorflow'] = None; from edgefl.cli.main import run_command; "
        "sys.exit(run_command(sys.argv[1:]))"
    )
    completed = subprocess.run(
        [sys.executable, "-c", code, "plan", "inspect", str(plan_directory), "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    report = json.loads(completed.stdout)
    assert report["num_weights"] == 111
    assert report["signatures"]["predict"]["ops"]["RESHAPE"] == 1
    assert report["signatures"]["train"]["data"] == {
        "x": [report["signatures"]["train"]["batch_size"], 6, 6, 1]
    }


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--input-shape", "28;28"], "commas"),
        (["--model", "lenet"], "lenet5"),
        (["--algorithm", "pfl-mef"], "did you mean 'pfl-mf"),
        (["--config", "nowhere.toml"], "nowhere.toml"),
    ],
)
def test_build_errors_are_readable(args, message, tmp_path, capsys):
    assert run_command(["plan", "build", "-o", str(tmp_path / "p"), *args]) == 1
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error


def test_inspection_names_memory_and_the_parts_of_a_batch(tmp_path, capsys):
    (tmp_path / "federation.toml").write_text(
        '[model]\nname = "softmax"\ninput_shape = [6, 6, 1]\nnum_classes = 3\n'
        "[algorithm]\nbatch_size = 10\n[training]\nmicro_batch = 4\n"
    )
    build = ["plan", "build", "-o", str(tmp_path / "plan"), "--config", str(tmp_path / "federation.toml")]
    assert run_command(build) == 0
    assert run_command(["plan", "inspect", str(tmp_path / "plan")]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^a device needs about 6\d MB of memory to train$", text, re.MULTILINE)
    assert re.search(r"^train: train, x\(4, 6, 6, 1\) .*, batches of 10 in parts of 4$", text, re.MULTILINE)
    plan = load_plan(tmp_path / "plan")
    text = render_plan(inspect_plan(replace(plan, spec=replace(plan.spec, process_mb=0))))
    assert "of memory" not in text


def test_inspect_without_a_plan_names_the_build_command(tmp_path, capsys):
    assert run_command(["plan", "inspect", str(tmp_path)]) == 1
    assert "edgefl plan build" in capsys.readouterr().err
    (tmp_path / "plan.tflite").write_bytes(b"junk")


def test_truncated_program_is_refused_with_a_readable_error(plan_directory, tmp_path, capsys):
    save_plan(load_plan(plan_directory), tmp_path)
    (tmp_path / "plan.tflite").write_bytes((plan_directory / "plan.tflite").read_bytes()[:200])
    assert run_command(["plan", "inspect", str(tmp_path)]) == 1
    assert "plan.tflite" in capsys.readouterr().err


def test_litert_and_keras_train_the_gate_alike(plan_directory):
    """The device's learner and TensorFlow train the gate of PFL-MF to the same weights."""
    from edgefl.base.rng import derive_rng

    plan = load_plan(plan_directory)
    device = LiteRTLearner(plan)
    reference = make_keras_learner(plan.spec)
    rng = np.random.default_rng(0)
    data = {
        "gate_input": rng.random((70, 36), dtype=np.float32),
        "logits": rng.normal(size=(70, 2, 3)).astype(np.float32),
    }
    gate = {"gate/kernel": np.zeros((36, 1), np.float32), "gate/bias": np.zeros(1, np.float32)}
    y = rng.integers(0, 3, 70)
    trained = [
        learner.fit("train_gate", gate, data, y, epochs=3, rng=derive_rng(1, 1))[0]
        for learner in (device, reference)
    ]
    for name in gate:
        np.testing.assert_allclose(trained[0][name], trained[1][name], atol=1e-5)
        assert np.abs(trained[0][name]).max() > 1e-4


def test_plan_with_augmentation_has_a_format_that_older_versions_refuse(monkeypatch):
    config = FederationConfig(
        model=ModelConfig(name="softmax", input_shape=(6, 6, 1), num_classes=3),
        augmentation=AugmentationConfig(crop=2, rotate=15.0),
    )
    built, weights = build_plan(config)
    assert built.spec.format == 4
    again = decode_plan(encode_plan(built))
    assert again.id == built.id
    assert again.spec.augmentation == {"crop": 2, "flip": False, "rotate": 15.0}
    plain, plain_weights = build_plan(replace(config, augmentation=AugmentationConfig()))
    stored = json.loads(serialize_spec(plain.spec))
    assert stored["format"] == 2 and "augmentation" not in stored
    assert (built.program, built.template) == (plain.program, plain.template)
    assert all((weights[name] == array).all() for name, array in plain_weights.items())
    monkeypatch.setattr(plan_spec, "PLAN_FORMATS", (1, 2, 3))
    with pytest.raises(PlanError, match="plan format 4, expected at most 3; update edgefl on this device"):
        parse_spec(serialize_spec(built.spec))
