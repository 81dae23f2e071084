"""Counts the instructions of OctoML's microTVM code in MLPerf Tiny v1.0, whose latencies are published.

`python -m tests.benchmarks.firmware.microtvm FOLDER CMSIS TARGET MODEL` prints one JSON line. FOLDER is the
code of one model in github.com/mlcommons/tiny_results_v1.0, such as
closed/OctoML/code/microtvm_cmsis_nn/NUCLEO_L4R5ZI/ic. CMSIS contains CMSIS-NN and the headers of the CMSIS
core, at any depth. MODEL is MLPerf Tiny's int8 .tflite, which checks the outputs. The code is compiled with
-O2, as the submission is.
"""

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.base.errors import EdgeflError, ExportError
from edgefl.program.plan.tflite import TfliteTensor
from firmware_export.certificate.tflm_runner import run_tflm
from firmware_export.firmware.firmware import BuiltFirmware, SectionSizes, run_firmware
from firmware_export.firmware.project import make_project_files
from firmware_export.firmware.targets import ARM, TARGETS, Target
from firmware_export.firmware.toolchain import run_tool
from firmware_export.tflite.quantized_model import read_quantized_model

FLAGS = ("-O2", "-w", "-ffunction-sections", "-fdata-sections", "-fno-tree-loop-distribute-patterns")
SAMPLES = 3
WORKSPACE_BYTES = 360_000
MODEL_H = """#ifndef MODEL_H
#define MODEL_H
#include <stdint.h>
#define MODEL_INPUT_BYTES {input_bytes}
#define MODEL_OUTPUT_BYTES {output_bytes}
int8_t *model_input(void);
int8_t *model_output(void);
void model_invoke(const int8_t *input, int8_t *output);
#endif
"""
MODEL_C = """#include <stddef.h>
#include "model.h"
#include "tvmgen_default.h"
static int8_t memory_in[MODEL_INPUT_BYTES] __attribute__((aligned(16)));
static int8_t memory_out[MODEL_OUTPUT_BYTES] __attribute__((aligned(16)));
static uint8_t workspace[{workspace_bytes}] __attribute__((aligned(16)));
static size_t used;
int8_t *model_input(void) {{ return memory_in; }}
int8_t *model_output(void) {{ return memory_out; }}
void *TVMBackendAllocWorkspace(int type, int id, uint64_t bytes, int code, int bits)
{{
    uint8_t *block = workspace + used;
    used += ((size_t)bytes + 15) & ~(size_t)15;
    return used <= sizeof workspace ? block : NULL;
}}
int TVMBackendFreeWorkspace(int type, int id, void *block)
{{
    used = (size_t)((uint8_t *)block - workspace);
    return 0;
}}
void model_invoke(const int8_t *input, int8_t *output)
{{
    struct tvmgen_default_inputs inputs = {{(void *)input}};
    struct tvmgen_default_outputs outputs = {{output}};
    if (tvmgen_default_run(&inputs, &outputs) != 0) {{
        for (;;) {{
        }}
    }}
}}
"""


def measure(folder: Path, cmsis: Path, target: Target, model: bytes) -> dict[str, Any]:
    """Count the instructions of an inference and compare the outputs with tflite-micro's.

    Args:
        folder: code of one model of the submission.
        cmsis: folder with CMSIS-NN and the headers of the CMSIS core.
        target: the core.
        model: the int8 .tflite of the submission.

    Returns:
        The instructions, and the largest difference of an output byte from tflite-micro's.

    Raises:
        ExportError: a folder lacks files, or the program cannot be built or run.
    """
    network = read_quantized_model(model)
    source, result = (network.get_tensor(indices[0]) for indices in (network.inputs, network.outputs))
    inputs = np.random.default_rng(0).integers(-128, 128, (SAMPLES, *source.shape[1:]), np.int8)
    expected = run_tflm(model, inputs)
    samples = _dequantize(inputs, source) if _takes_floats(folder) else inputs
    item = samples.itemsize
    with tempfile.TemporaryDirectory(prefix="edgefl-microtvm-") as name:
        work = Path(name)
        sizes = (source.size * item, result.size * item)
        built = _build(folder.resolve(), cmsis.resolve(), target, work, sizes)
        ran = run_firmware(built, samples.view(np.int8), work)
    outputs = ran.outputs.view(samples.dtype)
    if item > 1:
        outputs = np.rint(outputs / result.scale[0]) + result.zero_point
    return {
        "instructions": round(float(ran.ticks.mean()) * float(target.tick)),
        "largest_difference": int(np.abs(outputs.astype(int) - expected).max()),
    }


def _takes_floats(folder: Path) -> bool:
    """Return whether the code of a model takes and returns floats, as the submission's autoencoder does."""
    sources = sorted((folder / "model" / "codegen" / "host" / "src").glob("*.c"))
    return any(re.search(r"tvmgen_default___tvm_main__\(float\*", path.read_text()) for path in sources)


def _dequantize(values: Any, tensor: TfliteTensor) -> Any:
    return ((values.astype(np.int32) - tensor.zero_point) * tensor.scale[0]).astype(np.float32)


def _build(folder: Path, cmsis: Path, target: Target, work: Path, sizes: tuple[int, int]) -> BuiltFirmware:
    code = folder / "model" / "codegen" / "host"
    nn_header = _find_file(cmsis, "arm_nnfunctions.h")
    core_header = _find_file(cmsis, "cmsis_compiler.h")
    model_h = MODEL_H.format(input_bytes=sizes[0], output_bytes=sizes[1])
    model_c = MODEL_C.format(workspace_bytes=WORKSPACE_BYTES)
    for path, text in make_project_files({"model.h": model_h, "model.c": model_c}, target).items():
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        (work / path).write_text(text)
    sources = [work / name for name in ("main.c", "semihosting.c", "startup.c", "model/model.c")]
    sources += sorted((code / "src").glob("*.c"))
    kernels = sorted(nn_header.parents[1].rglob("Source/*/*.c"))
    sources += [path for path in kernels if not re.search("HWC|_u8|q15_basic|_u16", path.name)]
    include = [
        nn_header.parent,
        core_header.parent,
        folder / "crt" / "include",
        code / "include",
        folder / "crt_config",
    ]
    options = [f"-I{path}" for path in include]
    run_tool([ARM.gcc, *target.flags, *FLAGS, *options, "-Imodel", "-c", *map(str, sources)], work)
    objects = [f"{path.stem}.o" for path in sources]
    link = ["-nostdlib", "-Wl,--gc-sections", "-T", "link.ld"]
    run_tool([ARM.gcc, *target.flags, *link, *objects, "-lm", "-lc", "-lgcc", "-o", "firmware.elf"], work)
    empty = SectionSizes(0, 0, 0)
    return BuiltFirmware(
        target=target, program=work / "firmware.elf", model=empty, image=empty, output_bytes=sizes[1]
    )


def _find_file(folder: Path, name: str) -> Path:
    path = next(iter(sorted(folder.rglob(name))), None)
    if path is None:
        raise ExportError(f"{folder} contains no {name}, expected CMSIS-NN and the headers of the CMSIS core")
    return path


if __name__ == "__main__":
    try:
        measured = measure(
            Path(sys.argv[1]), Path(sys.argv[2]), TARGETS[sys.argv[3]], Path(sys.argv[4]).read_bytes()
        )
        print(json.dumps(measured))
    except (EdgeflError, OSError) as error:
        sys.exit(str(error))
