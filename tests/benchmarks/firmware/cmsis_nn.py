"""The peer of the firmware benchmark: Arm's CMSIS-NN kernels on the same graph, called one after the other
without an interpreter.

`python -m tests.benchmarks.firmware.cmsis_nn MODEL DIRECTORY TARGET` prints one JSON line. DIRECTORY contains
CMSIS-NN (arm_nnfunctions.h and its sources) and the headers of the CMSIS core, at any depth. Only
convolutions, poolings, dense layers and sums of two activations of one shape run. Other operators are left
out, so a whole inference with these kernels needs more instructions than the figure says. The number of
instructions does not depend on the values, which are all zero.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.base.errors import EdgeflError, ExportError
from edgefl.program.plan.tflite import Operator
from firmware_export.firmware.firmware import BuiltFirmware, SectionSizes, run_firmware
from firmware_export.firmware.project import make_project_files
from firmware_export.firmware.targets import ARM, TARGETS, Target
from firmware_export.firmware.toolchain import run_tool
from firmware_export.tflite.quantized_model import QuantizedModel, read_quantized_model

FLAGS = ("-std=c99", "-O3", "-w", "-ffunction-sections", "-fdata-sections")
SOURCES = ("BasicMath", "Convolution", "FullyConnected", "Pooling", "NNSupport", "Transpose")
SAME = 0


def measure(model: bytes, directory: Path, target: Target) -> dict[str, Any]:
    """Return instructions of an inference, bytes of code and constants, and the operators left out.

    Raises:
        ExportError: the directory has no CMSIS-NN.
    """
    network = read_quantized_model(model)
    calls = list(_generate_calls(network))
    left_out = sorted({op.name for op in network.operators if not _has_kernel(network, op)} - {"RESHAPE"})
    with tempfile.TemporaryDirectory(prefix="edgefl-cmsis-nn-") as name:
        work = Path(name)
        built = _build(network, calls, directory.resolve(), target, work)
        size = int(np.prod(network.get_tensor(network.inputs[0]).shape))
        ran = run_firmware(built, np.zeros((3, size), np.int8), work)
    return {
        "instructions": round(float(ran.ticks.mean()) * float(target.tick)),
        "flash_bytes": built.model.flash,
        "left_out": left_out,
    }


def _build(
    network: QuantizedModel, calls: Sequence[str], directory: Path, target: Target, work: Path
) -> BuiltFirmware:
    header = next(iter(sorted(directory.rglob("arm_nnfunctions.h"))), None)
    compiler = next(iter(sorted(directory.rglob("cmsis_compiler.h"))), None)
    if header is None or compiler is None:
        lacking = "arm_nnfunctions.h" if header is None else "cmsis_compiler.h"
        raise ExportError(
            f"{directory} holds no {lacking}, expected CMSIS-NN with the CMSIS core's headers; give another "
            "--cmsis-nn"
        )
    size_in, size_out = (network.get_tensor(i).size for i in (network.inputs[0], network.outputs[0]))
    defines = (
        f"#define MODEL_INPUT_BYTES {size_in}\n#define MODEL_OUTPUT_BYTES {size_out}\n"
        "int8_t *model_input(void);\nint8_t *model_output(void);\n"
    )
    model_h = (
        f"#ifndef MODEL_H\n#define MODEL_H\n#include <stdint.h>\n{defines}void model_invoke(const int8_t "
        "*input, int8_t *output);\n#endif\n"
    )
    for path, text in make_project_files(
        {"model.h": model_h, "model.c": _render_source(network, calls)}, target
    ).items():
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        (work / path).write_text(text)
    sources = [
        each
        for each in sorted(header.parents[1].rglob("*_s8*.c"))
        if any(kind in each.parent.name for kind in SOURCES)
    ]
    sources += sorted(header.parents[1].rglob("arm_q7_to_q15_with_offset.c"))
    include = [f"-I{header.parent}", f"-I{compiler.parent}", "-Imodel"]
    project_sources = [
        work / "main.c",
        work / "semihosting.c",
        work / "startup.c",
        work / "model" / "model.c",
    ]
    run_tool(
        [
            ARM.gcc,
            *target.flags,
            *FLAGS,
            "-fno-tree-loop-distribute-patterns",
            *include,
            "-c",
            *map(str, [*project_sources, *sources]),
        ],
        work,
    )
    objects = [f"{each.stem}.o" for each in [*project_sources, *sources]]
    run_tool(
        [
            ARM.gcc,
            *target.flags,
            "-nostdlib",
            "-Wl,--gc-sections",
            "-T",
            "link.ld",
            *objects,
            "-lgcc",
            "-o",
            "firmware.elf",
        ],
        work,
    )
    sizes = run_tool([ARM.size, "firmware.elf"], work).splitlines()[1].split()
    image = SectionSizes(int(sizes[0]), int(sizes[1]), int(sizes[2]))
    return BuiltFirmware(
        target=target, program=work / "firmware.elf", model=image, image=image, output_bytes=size_out
    )


def _render_source(network: QuantizedModel, calls: Sequence[str]) -> str:
    buffers = {
        i
        for op in network.operators
        for i in (*op.inputs, *op.outputs)
        if i >= 0 and network.get_tensor(i).data is None
    }
    lines = [
        f"static int8_t t{i}[{network.get_tensor(i).size}] __attribute__((aligned(4)));"
        for i in sorted(buffers)
    ]
    constants = {
        i for op in network.operators for i in op.inputs if i >= 0 and network.get_tensor(i).data is not None
    }
    for i in sorted(constants):
        tensor = network.get_tensor(i)
        kind = "int32_t" if tensor.dtype == "INT32" else "int8_t"
        values = ",".join(map(str, np.asarray(tensor.data).ravel().tolist()))
        lines.append(f"static const {kind} c{i}[{tensor.size}] __attribute__((aligned(4))) = {{{values}}};")
    result = network.outputs[0]
    return (
        '#include "model.h"\n#include "arm_nnfunctions.h"\nstatic int32_t scratch[16384];\n'
        "static int8_t memory[MODEL_INPUT_BYTES + MODEL_OUTPUT_BYTES];\n"
        "int8_t *model_input(void) { return memory; }\n"
        "int8_t *model_output(void) { return memory + MODEL_INPUT_BYTES; }\n"
        + "\n".join(lines)
        + "\nvoid model_invoke(const int8_t *input, int8_t *output)\n{\n    (void)input;\n"
        + "    cmsis_nn_context context = {scratch, sizeof scratch};\n"
        + "".join(f"    {{ {call} }}\n" for call in calls)
        + f"    for (int i = 0; i < MODEL_OUTPUT_BYTES; i++) {{\n        output[i] = t{result}[i];\n    "
        "}\n}\n"
    )


def _generate_calls(network: QuantizedModel) -> Iterator[str]:
    for operator in network.operators:
        if _has_kernel(network, operator):
            yield KERNELS[operator.name](network, operator)


def _has_kernel(network: QuantizedModel, operator: Operator) -> bool:
    if operator.name == "ADD":
        operands = [network.get_tensor(i) for i in operator.inputs]
        return operands[0].shape == operands[1].shape and all(tensor.data is None for tensor in operands)
    return operator.name in KERNELS


def _dims(shape: Sequence[int]) -> str:
    return "{" + ", ".join(map(str, shape)) + "}"


def _padding(operator: Operator, inputs: Sequence[int], outputs: Sequence[int], kernel: Sequence[int]) -> str:
    """Return the padding before the input, {w, h}. Shapes are n, h, w, c. The kernel is h, w."""
    if operator.options["padding"] != SAME:
        return "{0, 0}"
    strides = (operator.options["strideH"], operator.options["strideW"])
    before = [max((outputs[1 + i] - 1) * strides[i] + kernel[i] - inputs[1 + i], 0) // 2 for i in (0, 1)]
    return f"{{{before[1]}, {before[0]}}}"


def _render_convolution(network: QuantizedModel, operator: Operator) -> str:
    deep = operator.name == "CONV_2D"
    source = network.get_tensor(operator.inputs[0])
    kernel = network.get_tensor(operator.inputs[1])
    out = network.get_tensor(operator.outputs[0])
    channels = out.shape[3]
    constants = (
        f"static int32_t multiplier[{channels}], shift[{channels}]; cmsis_nn_per_channel_quant_params "
        "quantized = {multiplier, shift};"
    )
    stride = f"{{{operator.options['strideW']}, {operator.options['strideH']}}}"
    pad = _padding(operator, source.shape, out.shape, kernel.shape[1:3])
    multiple = "" if deep else f"{channels // source.shape[3]}, "
    kind, name = ("conv", "arm_convolve_wrapper_s8") if deep else ("dw_conv", "arm_depthwise_conv_wrapper_s8")
    return (
        f"{constants} cmsis_nn_{kind}_params params = {{128, 0, {multiple}{stride}, {pad}, {{1, 1}}, {{-128, "
        f"127}}}}; cmsis_nn_dims in = {_dims(source.shape)}, filter = {_dims(kernel.shape)}, bias = {{1, 1, "
        f"1, {channels}}}; cmsis_nn_dims out = {_dims(out.shape)}; {name}(&context, &params, &quantized, "
        f"&in, t{source.index}, &filter, c{kernel.index}, &bias, {_bias(operator)}, &out, t{out.index});"
    )


def _render_dense(network: QuantizedModel, operator: Operator) -> str:
    source = network.get_tensor(operator.inputs[0])
    kernel = network.get_tensor(operator.inputs[1])
    out = network.get_tensor(operator.outputs[0])
    rows, columns = kernel.shape
    return (
        "cmsis_nn_per_tensor_quant_params quantized = {1 << 30, 0}; cmsis_nn_fc_params params = {128, 0, "
        f"0, {{-128, 127}}}}; cmsis_nn_dims in = {{1, 1, 1, {columns}}}, filter = {{{columns}, 1, 1, "
        f"{rows}}}, out = {{1, 1, 1, {rows}}}, bias = out; arm_fully_connected_s8(&context, &params, "
        f"&quantized, &in, t{source.index}, &filter, c{kernel.index}, &bias, {_bias(operator)}, &out, "
        f"t{out.index});"
    )


def _render_pooling(network: QuantizedModel, operator: Operator) -> str:
    source = network.get_tensor(operator.inputs[0])
    out = network.get_tensor(operator.outputs[0])
    height = operator.options["filterHeight"]
    width = operator.options["filterWidth"]
    stride = f"{{{operator.options['strideW']}, {operator.options['strideH']}}}"
    name = "arm_max_pool_s8" if operator.name == "MAX_POOL_2D" else "arm_avgpool_s8"
    return (
        f"cmsis_nn_pool_params params = {{{stride}, "
        f"{_padding(operator, source.shape, out.shape, (height, width))}, {{-128, 127}}}}; cmsis_nn_dims in "
        f"= {_dims(source.shape)}, filter = {{1, {height}, {width}, 1}}, out = {_dims(out.shape)}; "
        f"{name}(&context, &params, &in, t{source.index}, &filter, &out, t{out.index});"
    )


def _render_add(network: QuantizedModel, operator: Operator) -> str:
    first, second, out = (network.get_tensor(i) for i in (*operator.inputs[:2], operator.outputs[0]))
    return (
        f"arm_elementwise_add_s8(t{first.index}, t{second.index}, 128, 1 << 30, -1, 128, 1 << 30, -1, 20, "
        f"t{out.index}, -128, 1 << 30, -18, -128, 127, {out.size});"
    )


def _bias(operator: Operator) -> str:
    return f"c{operator.inputs[2]}" if len(operator.inputs) > 2 and operator.inputs[2] >= 0 else "0"


KERNELS = {
    "ADD": _render_add,
    "CONV_2D": _render_convolution,
    "DEPTHWISE_CONV_2D": _render_convolution,
    "FULLY_CONNECTED": _render_dense,
    "MAX_POOL_2D": _render_pooling,
    "AVERAGE_POOL_2D": _render_pooling,
}


if __name__ == "__main__":
    try:
        print(json.dumps(measure(Path(sys.argv[1]).read_bytes(), Path(sys.argv[2]), TARGETS[sys.argv[3]])))
    except (EdgeflError, OSError) as error:
        sys.exit(str(error))
