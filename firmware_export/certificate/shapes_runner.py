"""Runs a .tflite once with an input of zeros, in a separate process, because a damaged model may abort it.

`python -m firmware_export.certificate.shapes_runner MODEL OUT.npz` writes the array `shape{i}` for each
tensor, and `value{i}` for each tensor that does not depend on the input.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.base.errors import PlanError
from edgefl.program.plan.runtime import load_interpreter
from edgefl.program.plan.tflite import read_subgraph
from firmware_export.certificate.simplify import find_constants


def _write_arrays(model: Path, out: Path) -> None:
    content = model.read_bytes()
    try:
        interpreter = load_interpreter(content, reference=True, watch=True)
    except PlanError:  # the reference kernels lack an operator
        interpreter = load_interpreter(content, watch=True)
    interpreter.allocate_tensors()
    interpreter.invoke()
    details = {detail["index"]: detail for detail in interpreter.get_tensor_details()}
    arrays: dict[str, Any] = {
        f"shape{index}": np.asarray(detail["shape"]) for index, detail in details.items()
    }
    for index in find_constants(read_subgraph(content)):
        arrays[f"value{index}"] = np.asarray(interpreter.get_tensor(index))
    np.savez(out, **arrays)


if __name__ == "__main__":
    _write_arrays(Path(sys.argv[1]), Path(sys.argv[2]))
