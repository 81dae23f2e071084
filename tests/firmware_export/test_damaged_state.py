"""A damaged state file gives one clear error that names the file. It is never exported silently."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save

from devices.store import DeviceStore
from edgefl.base.types import Mixture, Shard
from edgefl.data.npz import save_shard
from edgefl.learning.checkpoint import decode_stored_mixture
from edgefl.program.plan.spec import Binding, Plan, PlanSpec, load_plan

ROOT = Path(__file__).parents[2]
INPUTS = 12
UNITS = 16
CLASSES = 4
FILES = ("mixture.safetensors", "plan/plan.json", "plan/plan.tflite", "plan/template.tflite", "device.json")


def run_edgefl(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edgefl", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **env}, timeout=600, check=False
    )


def make_plan_and_weights(graphs, rng) -> tuple[Plan, dict[str, np.ndarray]]:
    """Return a plan of two dense layers, and the mixture's kernels for them."""
    t = graphs.T
    op = graphs.Op
    first, second = (
        rng.normal(size=shape).astype(np.float32) / 4 for shape in ((UNITS, INPUTS), (CLASSES, UNITS))
    )
    weights = {"first": first, "second": second}
    tensors = [
        t((1, INPUTS), kind="FLOAT32", name="x"),
        t((UNITS, INPUTS), data=weights["first"] * 0, name="first"),
        t((UNITS,), data=np.zeros(UNITS, np.float32), name="b1"),
        t((1, UNITS), kind="FLOAT32", name="hidden"),
        t((CLASSES, UNITS), data=weights["second"] * 0, name="second"),
        t((CLASSES,), data=np.zeros(CLASSES, np.float32), name="b2"),
        t((1, CLASSES), kind="FLOAT32", name="logits"),
        t((1, CLASSES), kind="FLOAT32", name="shares"),
    ]
    operators = [
        op("FULLY_CONNECTED", (0, 1, 2), (3,), {"fusedActivationFunction": 1}, "FullyConnected"),
        op("FULLY_CONNECTED", (3, 4, 5), (6,), {}, "FullyConnected"),
        op("SOFTMAX", (6,), (7,), {"beta": 1.0}, "Softmax"),
    ]
    bindings = (
        Binding(weight="first", tensor=1, permutation=(0, 1), shape=(UNITS, INPUTS)),
        Binding(weight="second", tensor=4, permutation=(0, 1), shape=(CLASSES, UNITS)),
    )
    spec = PlanSpec(
        model="dense",
        algorithm="fedavg",
        options={},
        input_shape=(INPUTS,),
        num_classes=CLASSES,
        weights=(),
        signatures=(),
        bindings=bindings,
    )
    return Plan(spec=spec, program=bytes(4000), template=graphs.make_tflite(tensors, operators)), weights


@pytest.fixture
def state(graphs, tmp_path) -> Path:
    """The device service's state after a finished federation."""
    rng = np.random.default_rng(4)
    plan, weights = make_plan_and_weights(graphs, rng)
    x = rng.normal(size=(300, INPUTS)).astype(np.float32)
    y = (np.maximum(x @ weights["first"].T, 0) @ weights["second"].T).argmax(axis=1).astype(np.int64)
    save_shard(
        tmp_path / "shard.npz",
        Shard(x_train=x[:200], y_train=y[:200], x_test=x[200:], y_test=y[200:], num_classes=CLASSES),
    )
    store = DeviceStore(tmp_path / "state", "pi-1")
    store.save_personal(plan, Mixture(weights=weights))
    store.save_note({"data": str(tmp_path / "shard.npz"), "id": "pi-1", "federation": "f", "seed": 1})
    store.close()
    return tmp_path / "state"


def assert_refused(done: subprocess.CompletedProcess[str], name: str) -> None:
    assert "Traceback" not in done.stderr
    assert done.returncode == 1, (done.returncode, done.stderr)
    assert name in done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("name", FILES)
def test_flipped_bit_in_any_state_file_is_refused(name, state, tmp_path) -> None:
    path = state / name
    blob = bytearray(path.read_bytes())
    digit = blob.find(b'"seed": 1') + len(b'"seed": ')  # another split, and a readable file
    blob[digit if name == "device.json" else len(blob) * 3 // 4] ^= 2
    path.write_bytes(blob)
    assert_refused(
        run_edgefl("export", "--state", state, "-o", tmp_path / "out"),
        "plan" if name.startswith("plan") else name,
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", FILES)
def test_truncated_state_file_gives_one_clear_error(name, state, tmp_path) -> None:
    path = state / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    done = run_edgefl("export", "--state", state, "-o", tmp_path / "out")
    assert_refused(done, "plan" if name.startswith("plan") else name)


def test_invalid_utf_8_in_plan_json_gives_one_clear_error(state, tmp_path) -> None:
    path = state / "plan" / "plan.json"
    path.write_bytes(path.read_bytes().replace(b"dense", b"den\xffe"))
    assert_refused(run_edgefl("export", "--state", state, "-o", tmp_path / "out"), "plan.json")


@pytest.mark.parametrize("bit", [30, 29])
def test_a_flipped_exponent_does_not_abort_the_process(bit, state, tmp_path) -> None:
    path = state / "mixture.safetensors"
    tensors = load(path.read_bytes())
    first = tensors["weights:first"].copy()
    offset = int(np.abs(first).argmax())  # a weight below 1, so that the high bits of its exponent are 01
    first.view(np.uint32).ravel()[offset] ^= 1 << bit
    tensors["weights:first"] = first
    path.write_bytes(save(tensors))
    assert_refused(run_edgefl("export", "--state", state, "-o", tmp_path / "out"), "damaged")


def test_infer_refuses_a_damaged_model_beside_its_report(state, tmp_path) -> None:
    out = tmp_path / "out"
    assert run_edgefl("export", "--state", state, "-o", out).returncode == 0
    model = out / "model.tflite"
    data = tmp_path / "shard.npz"
    done = run_edgefl("infer", model, "--data", data)
    assert done.returncode == 0 and "not checked" not in done.stdout
    blob = bytearray(model.read_bytes())
    kernel = max(
        range(len(blob) - 64), key=lambda offset: len(set(blob[offset : offset + 64]))
    )  # an offset among the weights
    blob[kernel + 30] ^= 64
    model.write_bytes(blob)
    assert_refused(run_edgefl("infer", model, "--data", data), "report.json")
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "model.tflite").write_bytes(blob)
    done = run_edgefl("infer", tmp_path / "alone" / "model.tflite", "--data", data)
    assert done.returncode == 0 and "not checked" in done.stdout


@pytest.mark.parametrize("kind", ["few", "one class"])
def test_certificate_with_weak_evidence_has_a_warning(kind, state, tmp_path) -> None:
    pytest.importorskip("tflite_micro")
    if kind == "one class":
        weights = decode_stored_mixture((state / "mixture.safetensors").read_bytes()).mixture.weights
        only = np.full((CLASSES, UNITS), -0.5, np.float32)
        only[0] = 0.5
        store = DeviceStore(state, "pi-1")
        store.save_personal(load_plan(state / "plan"), Mixture(weights={**weights, "second": only}))
        store.close()
    samples = 4 if kind == "few" else 40
    # No compiler
    done = run_edgefl(
        "export",
        "--state",
        state,
        "-o",
        tmp_path / "out",
        "--target",
        "host",
        "--samples",
        samples,
        PATH=str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    certificate = json.loads((tmp_path / "out" / "certificate.json").read_text())
    expected = "4 samples prove little, expected 30 or more" if kind == "few" else "answers class 0 for all"
    assert [expected in warning for warning in certificate.get("warnings", [])] == [True]
    assert expected in done.stdout and expected in (tmp_path / "out" / "report.html").read_text()
