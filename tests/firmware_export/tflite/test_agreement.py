"""tflite-micro and tflite-runtime's reference kernels give the same bits for one exported model."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from firmware_export.quantize.quantize import export_mixture
from firmware_export.tflite.interpreter import load_tflite, quantize_input, run_samples

FOREIGN = Path(__file__).parents[1] / "foreign.py"
STEPS_OF_REFERENCE = 2  # measured: ai-edge-litert 2.3's reference kernels round 0.7% of logits differently
SAME_LOGITS = 0.98
STEPS_OF_XNNPACK = 4  # measured on x86-64: 2 on these mixtures, 4 on others


def run_foreign(
    python: str,
    runtime: str,
    model: bytes,
    samples: np.ndarray,
    work: Path,
    env: dict[str, str] | None = None,
) -> np.ndarray:
    (work / "model.tflite").write_bytes(model)
    np.save(work / "samples.npy", samples)
    paths = [str(work / name) for name in ("model.tflite", "samples.npy", "out.npy")]
    done = subprocess.run(
        [python, str(FOREIGN), runtime, *paths], capture_output=True, text=True, env=env, check=False
    )
    assert done.returncode == 0, done.stderr
    return np.load(work / "out.npy")


@pytest.fixture(scope="session", params=["fashion", "digits"])
def exported(request, tmp_path_factory):
    trained = request.getfixturevalue(request.param)
    out = tmp_path_factory.mktemp("model")
    export_mixture(trained.plan, trained.mixture, trained.shard, out)
    return (
        (out / "model.tflite").read_bytes(),
        (out / "model_float.tflite").read_bytes(),
        trained.shard.x_test,
    )


def measure_largest_step(first: np.ndarray, second: np.ndarray) -> int:
    return int(np.abs(first.astype(int) - second.astype(int)).max())


def test_tflite_micro_and_reference_kernels_give_the_same_bits(
    exported, other_python, micro_environment, tmp_path
) -> None:
    model, _, x = exported
    raw = quantize_input(load_tflite(model), x)
    reference = run_foreign(other_python, "reference", model, raw, tmp_path)
    micro = run_foreign(sys.executable, "tflite-micro", model, raw, tmp_path, micro_environment)
    np.testing.assert_array_equal(micro, reference)


def test_default_kernels_agree_within_rounding_steps(exported, other_python, tmp_path) -> None:
    model, _, x = exported
    raw = quantize_input(load_tflite(model), x)
    reference = run_foreign(other_python, "reference", model, raw, tmp_path)
    fast_elsewhere = run_foreign(other_python, "default", model, raw, tmp_path)
    received, _ = run_samples(load_tflite(model, reference=True), x)
    fast, _ = run_samples(load_tflite(model), x)
    assert measure_largest_step(received, reference) <= STEPS_OF_REFERENCE
    assert (received == reference).mean() >= SAME_LOGITS
    assert measure_largest_step(fast, reference) <= STEPS_OF_XNNPACK
    assert measure_largest_step(fast_elsewhere, reference) <= STEPS_OF_XNNPACK
    assert (fast.argmax(axis=1) == reference.argmax(axis=1)).mean() >= 0.98


def test_float_model_agrees_across_runtimes(exported, other_python, tmp_path) -> None:
    _, model, x = exported
    received, _ = run_samples(load_tflite(model, reference=True), x[:100])
    np.testing.assert_allclose(
        run_foreign(other_python, "default", model, x[:100], tmp_path), received, rtol=1e-4, atol=1e-4
    )


def test_exported_model_has_int8_input_and_output(exported) -> None:
    model, _, _ = exported
    loaded = load_tflite(model)
    assert loaded.dtype == np.int8
    assert loaded.invoke(np.zeros(loaded.shape, np.int8)).dtype == np.int8
    assert loaded.shape[0] == 1
