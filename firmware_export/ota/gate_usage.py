"""The gate's use over the golden samples of an export, the reference for a firmware's drift counters."""

from pathlib import Path
from typing import Any

import numpy as np

from edgefl.base.errors import ExportError
from edgefl.program.plan.runtime import load_interpreter
from firmware_export.codegen.mixture_structure import find_parts
from firmware_export.ota.drift import GateUsage
from firmware_export.tflite.quantized_model import read_quantized_model


def measure_gate_usage(folder: Path) -> GateUsage:
    """Return the gate's use over the samples of golden.npz.

    Args:
        folder: an export with a target.

    Raises:
        ExportError: the golden samples cannot be read, or the model has no gate.
    """
    try:
        model = (folder / "model.tflite").read_bytes()
        with np.load(folder / "golden.npz", allow_pickle=False) as golden:
            inputs = golden["inputs"]
    except (OSError, KeyError, ValueError) as error:
        raise ExportError(
            f"cannot read the golden samples of {folder}: {error}; pass a folder that `edgefl export "
            "--target` wrote"
        ) from error
    return count_gate_usage(run_gate(model, inputs))


def run_gate(model: bytes, inputs: Any) -> Any:
    """Return the gate's values for each input, computed by the reference kernels.

    Args:
        model: an int8 .tflite.
        inputs: quantized samples, shape (n, ...), int8.

    Returns:
        Gate values, shape (n, experts), int8.

    Raises:
        ExportError: the model has no gate.
    """
    network = read_quantized_model(model)
    gate = find_parts(network).gate
    if not gate:
        raise ExportError("the model has no gate, so gate use cannot drift; export a mixture with a gate")
    interpreter = load_interpreter(model, reference=True, watch=True)
    interpreter.allocate_tensors()
    input_index = interpreter.get_input_details()[0]["index"]
    values = np.empty((len(inputs), len(gate)), np.int8)
    for row, sample in enumerate(inputs):
        interpreter.set_tensor(input_index, sample[None])
        interpreter.invoke()
        values[row] = [interpreter.get_tensor(index).item() for index in gate]
    return values


def count_gate_usage(gates: Any) -> GateUsage:
    """Return the counts that templates/drift/drift.c would make.

    Args:
        gates: gate values, shape (n, experts), int8.
    """
    p = (gates.astype(float) + 128) / 256
    surprise = -p * np.log2(np.where(p > 0, p, 1))
    ties = (gates == gates.max(axis=1, keepdims=True)).sum(axis=1) > 1
    chosen = np.bincount(gates.argmax(axis=1), minlength=gates.shape[1])
    return GateUsage(
        inferences=len(gates),
        chosen=tuple(map(int, chosen)),
        shares=tuple(map(float, p.mean(axis=0))),
        entropy_bits=float(surprise.sum(axis=1).mean()),
        ties=int(ties.sum()),
    )
