"""The model's C as a library for PlatformIO, Arduino, ESP-IDF, Zephyr and CMake.

The manifests come from `templates/package`. The sources lie in the folder itself, where each of these build
systems looks for them.

Source: PlatformIO's library.json, Arduino's library specification 1.5, Espressif's idf_component.yml and
Zephyr's module.yml, as documented in November 2026.
"""

import re
from collections.abc import Mapping
from importlib.resources import files

from firmware_export.codegen.prefix import rename_symbols
from firmware_export.firmware.project import (
    CLASSES,
    SCORES,
    VALUES,
    fill_placeholders,
    make_selftest_files,
    read_answer_kind,
    read_input_type,
    read_macro,
    read_output_type,
)

PACKAGE_FILES = {
    "library.json": "library.json",
    "library.properties": "library.properties",
    "idf_component.yml": "idf_component.yml",
    "CMakeLists.txt": "CMakeLists.txt",
    "zephyr/module.yml": "zephyr/module.yml",
    "zephyr/CMakeLists.txt": "zephyr/CMakeLists.txt",
    "zephyr/Kconfig": "zephyr/Kconfig",
    "examples/selftest/selftest.ino": "examples/selftest.ino",
    "README.md": "README.md",
}
"""Files of the package, with their templates."""
REPEAT_PATTERN = re.compile(r"@EACH_(INPUT|OUTPUT)@\n(.*?)@END@\n", re.DOTALL)
HOST_EXAMPLE = "examples/host/main.c"
EXAMPLES = {
    CLASSES: {"examples/classify/classify.ino": "examples/classify.ino", HOST_EXAMPLE: "examples/main.c"},
    VALUES: {"examples/predict/predict.ino": "examples/predict.ino", HOST_EXAMPLE: "examples/predict.c"},
    SCORES: {"examples/detect/detect.ino": "examples/detect.ino", HOST_EXAMPLE: "examples/detect.c"},
}
"""Examples for each kind of answers, with their templates."""
USES = {
    CLASSES: "    int found = @PREFIX@_classify(input);",
    VALUES: "    @PREFIX@_invoke(input, @PREFIX@_output());\n"
    "@EACH_OUTPUT@\n"
    "    float value@N@ = @PREFIX@_dequantize_output@N@(@PREFIX@_output()[@START@0]);\n"
    "@END@\n",
    SCORES: "    static struct @PREFIX@_detector detector; /* 48 bytes and a copy of the input */\n"
    "    @PREFIX@_detector_begin(&detector); /* once */\n"
    "    if (@PREFIX@_is_anomaly(&detector, input)) { /* detector.score is above @UPPER@_THRESHOLD */ }",
}
"""The lines of the README that use the model's answer."""
STATE_USE = (
    "The model keeps a state from one inference to the next. `@PREFIX@_reset()` begins a new sequence: "
    "call it\nbefore an input that does not continue the one before it.\n\n"
)


def make_package_files(model: Mapping[str, str], prefix: str, sha256: str) -> dict[str, str]:
    """Return the files of the library by path.

    Args:
        model: model.h, model.c and model_weights.c, by name.
        prefix: prefix of the symbols and files.
        sha256: digest of the .tflite, in hexadecimal. Its start is the build number of the package's version.

    Raises:
        ExportError: model.h lacks a macro.
    """
    header = model["model.h"]
    answers = read_answer_kind(header)
    names = {"PREFIX": prefix, "UPPER": prefix.upper()}
    types = {"INPUT_TYPE": read_input_type(header), "OUTPUT_TYPE": read_output_type(header)}
    values = {
        **names,
        **types,
        "USE": fill_placeholders(_repeat_for_ends(USES[answers], header), names).rstrip(),
        "STATE": fill_placeholders(STATE_USE, names) if "#define MODEL_STATE_BYTES " in header else "",
        "VERSION": f"1.0.0+{sha256[:8]}",
        "DIGEST": sha256,
        "INPUT_VALUES": str(read_macro(header, "MODEL_INPUT_VALUES")),
        "OUTPUT_VALUES": str(read_macro(header, "MODEL_OUTPUT_VALUES")),
        "RAM_BYTES": str(read_macro(header, "MODEL_RAM_BYTES")),
    }
    templates = files("firmware_export") / "templates" / "package"
    manifests = {
        path: fill_placeholders(
            _repeat_for_ends(templates.joinpath(f"{template}.in").read_text(), header), values
        )
        for path, template in (PACKAGE_FILES | EXAMPLES[answers]).items()
    }
    selftest = {f"examples/selftest/{name}": text for name, text in make_selftest_files(prefix).items()}
    return rename_symbols(model, prefix) | manifests | selftest


def _repeat_for_ends(text: str, header: str) -> str:
    """Repeat each block of a template from @EACH_INPUT@ or @EACH_OUTPUT@ to @END@ for all inputs or outputs.

    In a block @N@ is the number of the input, and @START@ the position of its values with a plus sign. Both
    are empty for an only input.

    Args:
        header: the text of model.h.
    """

    def repeat(match: re.Match[str]) -> str:
        if f"#define MODEL_{match[1]}S " not in header:
            return match[2].replace("@N@", "").replace("@START@", "")
        count = read_macro(header, f"MODEL_{match[1]}S")
        return "".join(
            match[2].replace("@N@", str(i)).replace("@START@", f"@UPPER@_{match[1]}{i}_START + ")
            for i in range(count)
        )

    return REPEAT_PATTERN.sub(repeat, text)
