"""The model's C as a library for PlatformIO, Arduino, ESP-IDF, Zephyr and CMake.

The manifests come from `templates/package`. The sources lie in the folder itself, where each of these build
systems looks for them.

Source: PlatformIO's library.json, Arduino's library specification 1.5, Espressif's idf_component.yml and
Zephyr's module.yml, as documented in November 2026.
"""

from collections.abc import Mapping
from importlib.resources import files

from firmware_export.codegen.prefix import rename_symbols
from firmware_export.firmware.project import (
    fill_placeholders,
    make_selftest_files,
    read_input_bytes,
    read_macro,
    read_output_bytes,
)

PACKAGE_FILES = {
    "library.json": "library.json",
    "library.properties": "library.properties",
    "idf_component.yml": "idf_component.yml",
    "CMakeLists.txt": "CMakeLists.txt",
    "zephyr/module.yml": "zephyr/module.yml",
    "zephyr/CMakeLists.txt": "zephyr/CMakeLists.txt",
    "zephyr/Kconfig": "zephyr/Kconfig",
    "examples/classify/classify.ino": "examples/classify.ino",
    "examples/selftest/selftest.ino": "examples/selftest.ino",
    "examples/host/main.c": "examples/main.c",
    "README.md": "README.md",
}
"""Files of the package, with their templates."""


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
    values = {
        "PREFIX": prefix,
        "UPPER": prefix.upper(),
        "VERSION": f"1.0.0+{sha256[:8]}",
        "DIGEST": sha256,
        "INPUT_BYTES": str(read_input_bytes(header)),
        "OUTPUT_BYTES": str(read_output_bytes(header)),
        "RAM_BYTES": str(read_macro(header, "MODEL_RAM_BYTES")),
    }
    templates = files("firmware_export") / "templates" / "package"
    manifests = {
        path: fill_placeholders(templates.joinpath(f"{template}.in").read_text(), values)
        for path, template in PACKAGE_FILES.items()
    }
    selftest = {f"examples/selftest/{name}": text for name, text in make_selftest_files(prefix).items()}
    return rename_symbols(model, prefix) | manifests | selftest
