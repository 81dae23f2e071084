"""A gate's use over the golden samples of an export: what the firmware's drift counters are compared with."""

from pathlib import Path
from typing import Any

import numpy as np

from edgefl.errors import ExportError
from edgefl.plan.runtime import load_interpreter
from firmware_export.codegen.mixture_structure import find_parts
from firmware_export.ota.drift import Usage
from firmware_export.tflite.quantized_model import read_quantized_model


def gate_use(folder: Path) -> Usage:
    """Return the use over golden.npz.

    Raises ExportError where there are no such samples, or the model has no gate.
    """
    try:
        model = (folder / "model.tflite").read_bytes()
        with np.load(folder / "golden.npz", allow_pickle=False) as golden:
            inputs = golden["inputs"]
    except (OSError, KeyError, ValueError) as error:
        raise ExportError(
            f"cannot read the golden samples of {folder}: {error}; give what `edgefl export --target` wrote"
        ) from error
    return usage_of(gate_values(model, inputs))


def gate_values(model: bytes, inputs: Any) -> Any:
    """Return the gate's values int8[n, experts] for inputs int8[n, *shape], by the reference kernels."""
    network = read_quantized_model(model)
    gate = find_parts(network).gate
    if not gate:
        raise ExportError("the model has no gate, so its use cannot drift; export a mixture")
    interpreter = load_interpreter(model, reference=True, watch=True)
    interpreter.allocate_tensors()
    place = interpreter.get_input_details()[0]["index"]
    found = np.empty((len(inputs), len(gate)), np.int8)
    for row, sample in enumerate(inputs):
        interpreter.set_tensor(place, sample[None])
        interpreter.invoke()
        found[row] = [interpreter.get_tensor(index).item() for index in gate]
    return found


def usage_of(gates: Any) -> Usage:
    """Return what templates/drift/drift.c counts over gate values int8[n, experts]."""
    p = (gates.astype(float) + 128) / 256
    surprise = -p * np.log2(np.where(p > 0, p, 1))
    ties = (gates == gates.max(axis=1, keepdims=True)).sum(axis=1) > 1
    chosen = np.bincount(gates.argmax(axis=1), minlength=gates.shape[1])
    return Usage(
        len(gates),
        tuple(map(int, chosen)),
        tuple(map(float, p.mean(axis=0))),
        float(surprise.sum(axis=1).mean()),
        int(ties.sum()),
    )
