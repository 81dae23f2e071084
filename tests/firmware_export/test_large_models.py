"""Export of a model with 300,000 weights.

The quantizer stores them behind the flatbuffer, where tflite-micro would read zeros.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgefl.base.types import Mixture, Shard
from edgefl.data.npz import save_shard
from edgefl.learning.checkpoint import encode_mixture
from edgefl.program.plan.spec import Plan, PlanSpec, save_plan

ROOT = Path(__file__).parents[2]
FOREIGN = Path(__file__).with_name("foreign.py")
INPUTS = 1200
UNITS = 248
CLASSES = 10
WEIGHTS = INPUTS * UNITS + UNITS * CLASSES


def run_edgefl(*arguments: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edgefl", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=env, timeout=600, check=False
    )


@pytest.fixture(scope="module")
def state(graphs, tmp_path_factory) -> Path:
    """A device's state with two handwritten dense layers, and samples that they distinguish."""
    assert WEIGHTS > 300_000
    rng = np.random.default_rng(1)
    centres = rng.normal(size=(CLASSES, INPUTS)).astype(np.float32)
    first = (rng.normal(size=(UNITS, INPUTS)) / np.sqrt(INPUTS)).astype(np.float32)
    hidden = np.maximum(centres @ first.T, 0)
    second = (hidden / np.linalg.norm(hidden, axis=1, keepdims=True)).astype(np.float32)
    t = graphs.T
    op = graphs.Op
    tensors = [
        t((1, INPUTS), kind="FLOAT32", name="x"),
        t(first.shape, data=first, name="first"),
        t((UNITS,), data=np.zeros(UNITS, np.float32), name="b1"),
        t((1, UNITS), kind="FLOAT32", name="hidden"),
        t(second.shape, data=second, name="second"),
        t((CLASSES,), data=np.zeros(CLASSES, np.float32), name="b2"),
        t((1, CLASSES), kind="FLOAT32", name="logits"),
        t((1, CLASSES), kind="FLOAT32", name="shares"),
    ]
    dense = "FullyConnected"
    operators = [
        op("FULLY_CONNECTED", (0, 1, 2), (3,), {"fusedActivationFunction": 1}, dense),
        op("FULLY_CONNECTED", (3, 4, 5), (6,), {}, dense),
        op("SOFTMAX", (6,), (7,), {"beta": 1.0}, "Softmax"),
    ]
    template = graphs.make_tflite(tensors, operators)
    labels = rng.integers(0, CLASSES, 140)
    x = (centres[labels] + rng.normal(size=(140, INPUTS))).astype(np.float32)
    home = tmp_path_factory.mktemp("large")
    save_plan(
        Plan(
            spec=PlanSpec(
                model="dense",
                algorithm="fedavg",
                options={},
                input_shape=(INPUTS,),
                num_classes=CLASSES,
                weights=(),
                signatures=(),
            ),
            program=b"no program",
            template=template,
        ),
        home / "plan",
    )
    (home / "mixture.safetensors").write_bytes(encode_mixture(Mixture(weights={})))
    save_shard(
        home / "shard.npz",
        Shard(
            x_train=x[:100],
            y_train=labels[:100].astype(np.int64),
            x_test=x[100:],
            y_test=labels[100:].astype(np.int64),
            num_classes=CLASSES,
        ),
    )
    (home / "device.json").write_text(
        json.dumps({"data": str(home / "shard.npz"), "id": "pi-1", "federation": "f", "seed": 1})
    )
    return home


@pytest.fixture(scope="module")
def exported(state, tmp_path_factory) -> Path:
    """The export that a device makes, without target and compiler."""
    out = tmp_path_factory.mktemp("device")
    done = run_edgefl("export", "--state", state, "-o", out)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.slow
def test_every_runtime_gives_the_same_outputs_for_a_large_export(
    exported, state, micro_environment, other_python, tmp_path
) -> None:
    report = json.loads((exported / "report.json").read_text())
    assert report["accuracy_int8"] > 0.9
    done = run_edgefl(
        "infer",
        exported / "model.tflite",
        "--data",
        state / "shard.npz",
        "--runtime",
        "tflite-micro",
        "--json",
        env=micro_environment,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["accuracy"] == report["accuracy_int8"]
    samples = np.random.default_rng(2).integers(-128, 128, (20, INPUTS)).astype(np.int8)
    np.save(tmp_path / "samples.npy", samples)
    rows = {}
    for python, runtime, env in (
        (sys.executable, "tflite-micro", micro_environment),
        (other_python, "reference", None),
    ):
        command = [
            python,
            FOREIGN,
            runtime,
            exported / "model.tflite",
            tmp_path / "samples.npy",
            tmp_path / "out.npy",
        ]
        subprocess.run(list(map(str, command)), check=True, env=env, timeout=300)
        rows[runtime] = np.load(tmp_path / "out.npy")
    np.testing.assert_array_equal(rows["tflite-micro"], rows["reference"])


@pytest.mark.slow
def test_c_and_tflite_micro_give_the_same_bytes_in_the_certificate(state, tmp_path) -> None:
    pytest.importorskip("tflite_micro")
    done = run_edgefl(
        "export", "--state", state, "-o", tmp_path, "--target", "host", "--samples", 12, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    rows = {row["place"]: row for row in json.loads((tmp_path / "certificate.json").read_text())["parity"]}
    ran = {name for name, row in rows.items() if row["status"] == "equal"}
    assert {"tflite-micro", "host"} <= ran
    assert len({rows[name]["outputs_sha256"] for name in ran if rows[name]["samples"] == 12}) == 1
