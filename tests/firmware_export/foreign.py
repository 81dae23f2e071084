"""Runs a model in another environment, with numpy and one runtime alone.

Usage: `foreign.py RUNTIME MODEL SAMPLES.npy OUT.npy`. Samples are raw inputs.
"""

import sys

import numpy as np


def main(runtime: str, model: str, samples: str, out: str) -> None:
    with open(model, "rb") as file:
        content = file.read()
    rows = []
    if runtime == "tflite-micro":
        from tflite_micro.python.tflite_micro import runtime as micro

        interpreter = micro.Interpreter.from_bytes(content)
        for sample in np.load(samples):
            interpreter.set_input(sample[None], 0)
            interpreter.invoke()
            rows.append(interpreter.get_output(0)[0].copy())
    else:
        from tflite_runtime.interpreter import Interpreter, OpResolverType

        kind = OpResolverType.BUILTIN_REF if runtime == "reference" else OpResolverType.AUTO
        interpreter = Interpreter(model_content=content, experimental_op_resolver_type=kind)
        interpreter.allocate_tensors()
        for sample in np.load(samples):
            interpreter.set_tensor(interpreter.get_input_details()[0]["index"], sample[None])
            interpreter.invoke()
            rows.append(interpreter.get_tensor(interpreter.get_output_details()[0]["index"])[0])
    np.save(out, np.stack(rows))


main(*sys.argv[1:])
