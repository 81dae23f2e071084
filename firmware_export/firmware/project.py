"""A firmware project: the model's C, a program that runs it on samples, CMake files for one target.

The files come from `templates/project`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from edgefl.base.errors import ExportError
from firmware_export.firmware.field_program import UpdateSettings, make_field_files
from firmware_export.firmware.targets import ARM, COMPILER_OPTIONS, XTENSA, Target
from firmware_export.firmware.toolchain import TOOL_PACKAGES

CLASSES = "classes"
VALUES = "values"
SCORES = "scores"
PLACEHOLDER = re.compile(r"@([A-Z_]+)@")
PORTABLE_FILES = ("board.h", "print.h")
BARE_METAL_FILES = ("semihosting.c", "startup.c")
SELFTEST_SECTION = """
## Self-test

`cmake --build build --target selftest` starts a program that answers `edgefl export verify FOLDER
--serial PORT`, and prints its PORT. It shows how the check of a board works. For a board, see
`c/examples/selftest`.
"""
UARTS = {
    "microbit": ("NRF51", 0x40002000),
    "mps2-an385": ("CMSDK", 0x40004000),
    "mps2-an386": ("CMSDK", 0x40004000),
    "mps2-an500": ("CMSDK", 0x40004000),
    "mps2-an505": ("CMSDK", 0x50200000),
    "mps3-an547": ("CMSDK", 0x59303000),
    "virt": ("16550", 0x10000000),
    "sim": ("CONSOLE", 0),
}
"""Kind and address of the first serial port of each of QEMU's machines."""


@dataclass(frozen=True)
class AnswerCode:
    """The parts of main.c that depend on what the model answers.

    Attributes:
        name: what it prints for each sample.
        code: definitions before main.
        invoke: the statement that runs an inference.
        printing: the statement that prints the answer.
    """

    name: str
    code: str
    invoke: str
    printing: str


CLASS_ANSWER = AnswerCode(
    name="class",
    code="""static int highest(const @TYPE@ *output)
{
    int best = 0;
    for (int i = 1; i < (int)(MODEL_OUTPUT_BYTES / sizeof *output); i++) {
        best = output[i] > output[best] ? i : best;
    }
    return best;
}

""",
    invoke="model_invoke(input, output);",
    printing='print_number(": class ", (uint32_t)highest(output));',
)
OUTPUTS_ANSWER = AnswerCode(
    name="outputs",
    code="""static void print_outputs(const @TYPE@ *output)
{
    board_print(": outputs");
    for (int i = 0; i < (int)(MODEL_OUTPUT_BYTES / sizeof *output); i++) {
        print_number(output[i] < 0 ? " -" : " ", (uint32_t)(output[i] < 0 ? -output[i] : output[i]));
    }
}

""",
    invoke="model_invoke(input, output);",
    printing="print_outputs(output);",
)
SCORE_ANSWER = AnswerCode(
    name="anomaly score",
    code="""static struct model_detector detector;

""",
    invoke="(void)model_is_anomaly(&detector, input);",
    printing='print_number(": score ", detector.score);',
)
ANSWERS = {CLASSES: CLASS_ANSWER, VALUES: OUTPUTS_ANSWER, SCORES: SCORE_ANSWER}


def make_project_files(
    model: Mapping[str, str], target: Target, updates: UpdateSettings | None = None
) -> dict[str, str]:
    """Return the text files of a firmware project by path, without samples.bin.

    The same arguments give the same text.

    Args:
        model: model.h, model.c and model_weights.c, by name.
        updates: settings of firmware that takes updates. None makes firmware without updates.

    Raises:
        ExportError: model.h lacks a macro, or the update key is invalid.
    """
    board_files = ("host.c",) if target.is_host else BARE_METAL_FILES
    texts = {name: read_project_template(name) for name in (*PORTABLE_FILES, *board_files)}
    texts["main.c"] = _render_main(model["model.h"])
    texts |= {f"model/{name}": text for name, text in model.items()}
    values = _make_template_values(model["model.h"], target)
    texts["README.md"] = fill_placeholders(read_project_template("README.md.in"), values)
    if target.is_host:
        texts["CMakeLists.txt"] = fill_placeholders(read_project_template("CMakeLists.host.txt.in"), values)
    else:
        for name in ("CMakeLists.txt", "toolchain.cmake", "link.ld"):
            texts[name] = fill_placeholders(read_project_template(f"{name}.in"), values)
        texts |= make_selftest_files("model")
        texts["selftest_qemu.c"] = read_project_template("selftest_qemu.c")
        texts["machine.h"] = _render_machine_header(target)
    return texts | make_field_files(texts, target, updates)


def make_selftest_files(prefix: str) -> dict[str, str]:
    """Return selftest.c and selftest.h, which answer `edgefl export verify --serial` on a board.

    `prefix` is the prefix of the model's symbols.
    """
    folder = files("firmware_export") / "templates" / "package" / "examples"
    values = {"PREFIX": prefix, "UPPER": prefix.upper()}
    return {
        "selftest.c": fill_placeholders((folder / "selftest.c.in").read_text(), values),
        "selftest.h": (folder / "selftest.h").read_text(),
    }


def read_project_template(name: str) -> str:
    """Return the text of a template."""
    return (_locate_templates() / name).read_text()


def fill_placeholders(text: str, values: Mapping[str, str]) -> str:
    """Replace the placeholders of a template.

    Args:
        text: the template, with placeholders `@NAME@`.
        values: the value of each placeholder by its name.

    Raises:
        KeyError: a placeholder has no value.
    """
    return PLACEHOLDER.sub(lambda match: values[match[1]], text)


def read_input_bytes(header: str) -> int:
    """Return MODEL_INPUT_BYTES of a model.h.

    Raises:
        ExportError: the header does not define it.
    """
    return read_macro(header, "MODEL_INPUT_BYTES")


def read_output_bytes(header: str) -> int:
    """Return MODEL_OUTPUT_BYTES of a model.h.

    Raises:
        ExportError: the header does not define it.
    """
    return read_macro(header, "MODEL_OUTPUT_BYTES")


def read_input_type(header: str) -> str:
    """Return the type of the values of a model's input, such as int8."""
    return _read_end_type(header, "input")


def read_output_type(header: str) -> str:
    """Return the type of the values of a model's output, such as int8."""
    return _read_end_type(header, "output")


def _read_end_type(header: str, end: str) -> str:
    match = re.search(rf"^(int8|int16|int32)_t \*model_{end}\(void\);", header, re.MULTILINE)
    if not match:
        raise ExportError(f"model.h has no function model_{end}; export again")
    return match[1]


def read_answer_kind(header: str) -> str:
    """Return the kind of a model's answers: CLASSES, VALUES of a regression or SCORES of anomalies.

    Args:
        header: the text of model.h.
    """
    if re.search(r"^#define MODEL_THRESHOLD ", header, re.MULTILINE):
        return SCORES
    return CLASSES if "int model_classify(" in header else VALUES


def read_macro(header: str, name: str) -> int:
    """Return an integer that a header defines.

    Args:
        header: the text of model.h.

    Raises:
        ExportError: the header does not define it.
    """
    match = re.search(rf"^#define {name} \(?(-?\d+)", header, re.MULTILINE)
    if not match:
        raise ExportError(f"model.h defines no {name}; export again")
    return int(match[1])


def choose_clang_flags(target: Target) -> tuple[str, ...]:
    """Return the options that Clang needs for a core besides GCC's options.

    On Arm without an operating system, Clang loads a word that may be unaligned byte by byte. Cores from the
    M3 on can load it at once. Clang also needs short enums, because GCC links with short enums.
    """
    if target.architecture is not ARM:
        return ()
    return ("-fshort-enums", *([] if target.machine == "microbit" else ["-munaligned-access"]))


def _render_main(header: str) -> str:
    answer = ANSWERS[read_answer_kind(header)]
    values = {
        "ANSWER": answer.name,
        "ANSWER_CODE": answer.code.replace("@TYPE@", f"{read_output_type(header)}_t"),
        "INVOKE": answer.invoke,
        "PRINT_ANSWER": answer.printing,
    }
    return fill_placeholders(read_project_template("main.c.in"), values)


def _render_machine_header(target: Target) -> str:
    """Return machine.h, with the serial port and the clock of a target's machine."""
    uart, address = UARTS[target.machine]
    lines = [
        f'#define MACHINE "{target.machine}"',
        f"#define UART_{uart} 1",
        f"#define UART_ADDRESS {address:#010x}u",
        f"#define TICKS_PER_SECOND {round(10**9 / target.tick)}u",
    ]
    return "\n".join(["/* QEMU's machine, for the self-test. */", *lines, ""])


def _locate_templates() -> Traversable:
    return files("firmware_export") / "templates" / "project"


def _make_template_values(header: str, target: Target) -> dict[str, str]:
    values = {
        "TARGET": target.name,
        "OPTIONS": " ".join(COMPILER_OPTIONS),
        "INPUT_BYTES": str(read_input_bytes(header)),
        "INPUT_TYPE": read_input_type(header),
        "OUTPUT_TYPE": read_output_type(header),
    }
    if target.is_host:
        return values | {
            "WHERE": " on this computer",
            "NEEDS": "They need CMake and a C compiler (Debian: `apt-get install cmake gcc`).",
            "FILES": "| `host.c` | implements `board.h` for a program on this computer |",
            "TIME": "A tick is a nanosecond on this computer.",
            "SELFTEST": "",
        }
    tick = f"{float(target.tick):g}"
    noun = "instruction" if target.tick == 1 else "instructions"
    architecture = target.architecture
    packages = " ".join(TOOL_PACKAGES[tool] for tool in ("cmake", *target.tools))
    clang = "`cmake -B build -DCLANG=clang-14` compiles with Clang instead."
    linker = " GCC still links, because its libgcc is needed."
    if architecture is XTENSA:
        clang, linker = "Clang 14 does not compile for Xtensa.", ""
    return values | {
        "MACHINE": target.machine,
        "ARCHITECTURE": architecture.name,
        "TRIPLE": architecture.triple,
        "GCC": architecture.gcc,
        "TOOL_PREFIX": architecture.tool_prefix,
        "PACKAGES": packages,
        "FLAGS": " ".join(target.flags),
        "CLANG_FLAGS": " ".join(choose_clang_flags(target)),
        "QEMU": " ".join([architecture.qemu, *target.list_qemu_options()]),
        "QEMU_SERIAL": " ".join([architecture.qemu, *target.list_qemu_options("pty")]),
        "TICK": tick,
        "WHERE": f" in QEMU's `{target.machine}`",
        "NEEDS": f"They need CMake, a GCC for {architecture.name} and QEMU\n(Debian: `apt-get install "
        f"{packages}`). {clang}",
        "CLANG_NOTE": f"{clang}{linker}",
        "FILES": "| `semihosting.c` | implements `board.h` for a debugger or QEMU; a product replaces it |\n"
        "| `startup.c`, `link.ld` | code before main, and memory map; a board's vendor provides others |",
        "TIME": f"A tick is one of {architecture.counter}. Under QEMU that is {tick} {noun}; on a "
        "board, one cycle of the core.",
        "SELFTEST": SELFTEST_SECTION,
        "FLASH_ORIGIN": f"{target.flash[0]:#010x}",
        "FLASH_LENGTH": str(target.flash[1]),
        "RAM_ORIGIN": f"{target.ram[0]:#010x}",
        "RAM_LENGTH": str(target.ram[1]),
    }
