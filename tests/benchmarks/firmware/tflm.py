"""Counts the instructions of TensorFlow Lite Micro in Renesas's submission to MLPerf Tiny v0.7.

`python -m tests.benchmarks.firmware.tflm FOLDER TARGET LEVEL MODEL` prints one JSON line. FOLDER is
closed/renesas/code/EK_RA6M4 in github.com/mlcommons/tiny_results_v0.7: its TensorFlow Lite Micro and CMSIS-NN
are compiled, and none of Renesas's own files. LEVEL is -O2 (the submission's configuration Release) or -O3
(Debug). MODEL is MLPerf Tiny's int8 .tflite.
"""

import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.base.errors import EdgeflError
from firmware_export.certificate.tflm_runner import run_tflm
from firmware_export.firmware.firmware import BuiltFirmware, SectionSizes, run_firmware
from firmware_export.firmware.project import make_project_files
from firmware_export.firmware.targets import ARM, TARGETS, Target
from firmware_export.firmware.toolchain import run_tool
from firmware_export.tflite.quantized_model import read_quantized_model
from tests.benchmarks.firmware.microtvm import MODEL_H, SAMPLES

CMSIS = "tensorflow/lite/micro/tools/make/downloads/cmsis"
COMPILE_DEADLINE_S = 600
FLAGS = ("-w", "-ffunction-sections", "-fdata-sections", "-fno-tree-loop-distribute-patterns")
CXX_FLAGS = ("-std=c++11", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-fno-use-cxa-atexit")
LEFT_OUT = re.compile(
    r"/examples/|/tools/|test_helpers|debug_log|kernel_runner|recording|all_ops|micro_time\.cc|ethosu"
)
MAIN = """#include "tensorflow/lite/micro/micro_error_reporter.h"
#include "tensorflow/lite/micro/micro_interpreter.h"
#include "tensorflow/lite/micro/micro_mutable_op_resolver.h"
#include "tensorflow/lite/schema/schema_generated.h"
extern "C" {
#include "model.h"
void board_print(const char *);
void DebugLog(const char *text) { board_print(text); }
void abort() { for (;;) {} }
void _exit(int) { for (;;) {} }
void *_sbrk(int) { return (void *)-1; }
int _write(int, const void *, int) { return 0; }
int _read(int, void *, int) { return 0; }
int _close(int) { return 0; }
int _lseek(int, int, int) { return 0; }
int _fstat(int, void *) { return 0; }
int _isatty(int) { return 0; }
int _kill(int, int) { return 0; }
int _getpid() { return 0; }
}
void operator delete(void *) noexcept {}
void operator delete(void *, unsigned int) noexcept {}
alignas(16) static const unsigned char model_data[] = {MODEL};
alignas(16) static uint8_t arena[150 * 1024];
static tflite::MicroInterpreter *interpreter;
static int8_t result[MODEL_OUTPUT_BYTES];
static void set_up()
{
    static tflite::MicroErrorReporter reporter;
    static tflite::MicroMutableOpResolver<9> resolver;
    resolver.AddAdd();
    resolver.AddAveragePool2D();
    resolver.AddConv2D();
    resolver.AddDepthwiseConv2D();
    resolver.AddFullyConnected();
    resolver.AddRelu();
    resolver.AddRelu6();
    resolver.AddReshape();
    resolver.AddSoftmax();
    const tflite::Model *model = tflite::GetModel(model_data);
    static tflite::MicroInterpreter made(model, resolver, arena, sizeof arena, &reporter);
    interpreter = &made;
    if (made.AllocateTensors() != kTfLiteOk) abort();
}
extern "C" int8_t *model_input(void)
{
    if (!interpreter) set_up();
    return interpreter->input(0)->data.int8;
}
extern "C" int8_t *model_output(void) { return result; }
extern "C" void model_invoke(const int8_t *, int8_t *output)
{
    if (interpreter->Invoke() != kTfLiteOk) abort();
    const int8_t *source = interpreter->output(0)->data.int8;
    for (int i = 0; i < MODEL_OUTPUT_BYTES; i++) output[i] = source[i];
}
"""


def measure(folder: Path, target: Target, level: str, model: bytes) -> dict[str, Any]:
    """Count the instructions of an inference and compare the outputs with those of tflite-micro's wheel.

    Args:
        folder: the submission's folder EK_RA6M4.
        target: the core.
        level: GCC's optimization level.
        model: the int8 .tflite.

    Returns:
        The instructions, and the largest difference of an output byte.

    Raises:
        ExportError: the program cannot be built or run.
    """
    network = read_quantized_model(model)
    source, result = (network.get_tensor(indices[0]) for indices in (network.inputs, network.outputs))
    inputs = np.random.default_rng(0).integers(-128, 128, (SAMPLES, *source.shape[1:]), np.int8)
    expected = run_tflm(model, inputs)
    with tempfile.TemporaryDirectory(prefix="edgefl-tflm-") as name:
        work = Path(name)
        header = MODEL_H.format(input_bytes=source.size, output_bytes=result.size)
        for path, text in make_project_files({"model.h": header, "model.c": ""}, target).items():
            (work / path).parent.mkdir(parents=True, exist_ok=True)
            (work / path).write_text(text)
        (work / "inference.cc").write_text(MAIN.replace("MODEL}", ",".join(map(str, model)) + "}"))
        _compile(folder.resolve(), target, level, work)
        empty = SectionSizes(0, 0, 0)
        ran = run_firmware(
            BuiltFirmware(
                target=target,
                program=work / "firmware.elf",
                model=empty,
                image=empty,
                output_bytes=result.size,
            ),
            inputs,
            work,
        )
    return {
        "instructions": round(float(ran.ticks.mean()) * float(target.tick)),
        "largest_difference": int(np.abs(ran.outputs.astype(int) - expected).max()),
    }


def _compile(folder: Path, target: Target, level: str, work: Path) -> None:
    lite = folder / "src" / "tensorflow" / "lite"
    kernels = folder / "src" / CMSIS / "CMSIS" / "NN"
    include = [
        folder / "src",
        kernels / "Include",
        folder / "src" / CMSIS / "CMSIS" / "DSP" / "Include",
        folder / "ra" / "arm" / "CMSIS_5" / "CMSIS" / "Core" / "Include",
        folder / "src" / "third_party" / "flatbuffers" / "include",
        folder / "src" / "third_party" / "gemmlowp",
        folder / "src" / CMSIS,
    ]
    options = [*target.flags, level, *FLAGS, "-DTF_LITE_STATIC_MEMORY", "-DCMSIS_NN", "-Imodel", "-I."]
    options += [f"-I{path}" for path in include]
    c_files = [path for path in sorted(lite.rglob("*.c")) if not LEFT_OUT.search(str(path))]
    c_files += [path for path in sorted(kernels.rglob("Source/*/*.c")) if "HWC" not in path.name]
    c_files += [work / name for name in ("main.c", "semihosting.c", "startup.c")]
    cc_files = [path for path in sorted(lite.rglob("*.cc")) if not LEFT_OUT.search(str(path))]
    cc_files.append(work / "inference.cc")
    c_copies, cc_copies = _copy_files(c_files, work, "c"), _copy_files(cc_files, work, "cc")
    run_tool([ARM.gcc, *options, "-c", *c_copies], work, COMPILE_DEADLINE_S)
    run_tool(
        ["arm-none-eabi-g++", *options, *CXX_FLAGS, "-include", "limits", "-c", *cc_copies],
        work,
        COMPILE_DEADLINE_S,
    )
    objects = [f"{Path(name).stem}.o" for name in (*c_copies, *cc_copies)]
    link = ["-nostdlib", "-Wl,--gc-sections", "-T", "link.ld", *objects, "-lm", "-lc", "-lgcc"]
    run_tool(["arm-none-eabi-g++", *target.flags, *link, "-o", "firmware.elf"], work)


def _copy_files(paths: Iterable[Path], work: Path, prefix: str) -> list[str]:
    """Copy files under different names, since files of several folders share names. Return the new names."""
    names = []
    for i, path in enumerate(paths):
        names.append(f"{prefix}{i}_{path.name}")
        shutil.copy(path, work / names[-1])
    return names


if __name__ == "__main__":
    try:
        measured = measure(
            Path(sys.argv[1]), TARGETS[sys.argv[2]], sys.argv[3], Path(sys.argv[4]).read_bytes()
        )
        print(json.dumps(measured))
    except (EdgeflError, OSError) as error:
        sys.exit(str(error))
