"""The exported library: manifests that the tools of each build system accept, and sources that compile."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgefl.base.errors import ExportError
from edgefl.base.tasks.detector import TASK_METADATA_NAME, ModelTask, encode_model_task
from edgefl.program.plan.tflite import with_metadata
from firmware_export.codegen.c_source import generate_c
from firmware_export.firmware.package import EXAMPLES, PACKAGE_FILES, make_package_files
from firmware_export.firmware.project import CLASSES, SCORES, VALUES

SHA256 = "0123456789abcdef" * 4
PLATFORMIO_CHECK = """
import sys
from platformio.package.manifest.parser import ManifestParserFactory
from platformio.package.manifest.schema import ManifestSchema
for name in ("library.json", "library.properties"):
    parsed = ManifestParserFactory.new_from_file(f"{sys.argv[1]}/{name}").as_dict()
    manifest = ManifestSchema().load_manifest(parsed)
    print(name, manifest["name"], manifest["version"])
"""
IDF_CHECK = """
import sys
from idf_component_tools.manager import ManifestManager
manager = ManifestManager(sys.argv[1], "door")
print(manager.load().version if manager.is_valid else manager.validation_errors)
"""


@pytest.fixture
def package(hand, tmp_path) -> Path:
    """The library of the handwritten model with the prefix `door`, in a folder."""
    folder = tmp_path / "door"
    for name, text in make_package_files(hand.FILES, "door", SHA256).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="session")
def tools(tmp_path_factory) -> Path:
    """Return the Python of an environment with PlatformIO and Espressif's component manager."""
    directory = tmp_path_factory.mktemp("tools")
    subprocess.run([sys.executable, "-m", "venv", directory], check=True, timeout=120)
    install = ["-m", "pip", "install", "-q", "platformio>=6.1,<7", "idf-component-manager>=2.0,<4"]
    ran = subprocess.run(
        [directory / "bin" / "python", *install], capture_output=True, text=True, timeout=280
    )
    if ran.returncode:
        pytest.skip(f"PlatformIO cannot be installed here: {ran.stderr[-200:]}")
    return directory / "bin" / "python"


def test_all_placeholders_are_filled(package) -> None:
    files = [path for path in package.rglob("*") if path.is_file()]
    assert {str(path.relative_to(package)) for path in files} == {
        *PACKAGE_FILES,
        *EXAMPLES[CLASSES],
        "door.h",
        "door.c",
        "door_weights.c",
        "examples/selftest/selftest.c",
        "examples/selftest/selftest.h",
    }
    for path in files:
        assert not re.search(r"@[A-Z0-9]+@|\bmodel_invoke\b|\bMODEL_", path.read_text()), path


@pytest.mark.parametrize(
    ("answers", "kind", "expected"),
    [
        (VALUES, "regression", "output 0: 0\noutput 1: 0\n"),
        (SCORES, "anomaly", "normal, score 0, threshold 7\n"),
    ],
)
def test_example_of_another_task_runs(graphs, tmp_path, answers, kind, expected) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc here; apt install gcc")
    task = ModelTask(
        kind=kind, loss="mse", anomalies=(), false_alarm_rate=0.01, threshold=7 if answers == SCORES else 0
    )
    model = with_metadata(
        graphs.make_tflite(
            [
                graphs.T((1, 2), 0.5),
                graphs.T(shape=(2, 2), scales=0.1, zero=0, data=np.ones((2, 2), np.int8)),
                graphs.T((1, 2), 0.5),
            ],
            [
                graphs.Op(
                    name="FULLY_CONNECTED",
                    inputs=(0, 1, -1),
                    outputs=(2,),
                    options={},
                    options_class="FullyConnected",
                    version=4,
                )
            ],
        ),
        {TASK_METADATA_NAME: encode_model_task(task)},
    )
    package = make_package_files(generate_c(model).files, "door", SHA256)
    assert set(EXAMPLES[answers]) <= set(package) and "classify" not in "".join(package.values())
    for name, text in package.items():
        assert not re.search(r"@[A-Z0-9]+@|\bmodel_\w|\bMODEL_\w", text), name
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    sources = ["examples/host/main.c", "door.c", "door_weights.c"]
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I."]
    subprocess.run(["gcc", *flags, *sources, "-o", "program"], cwd=tmp_path, check=True)
    ran = subprocess.run([tmp_path / "program"], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, expected)


def test_header_without_sizes_is_refused(hand) -> None:
    with pytest.raises(ExportError, match=r"model\.h has no function model_input"):
        make_package_files({**hand.FILES, "model.h": ""}, "door", SHA256)


@pytest.mark.slow
def test_platformio_accepts_the_manifests(package, tools) -> None:
    ran = subprocess.run(
        [tools, "-c", PLATFORMIO_CHECK, package], capture_output=True, text=True, timeout=100
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split("\n")[:2] == [
        "library.json edgefl_door 1.0.0+01234567",
        "library.properties edgefl_door 1.0.0+01234567",
    ]
    (package / "library.json").write_text(json.dumps({"name": "edgefl_door", "version": "one"}))
    ran = subprocess.run(
        [tools, "-c", PLATFORMIO_CHECK, package], capture_output=True, text=True, timeout=100
    )
    assert ran.returncode != 0 and "version" in ran.stderr


@pytest.mark.slow
def test_espressif_accepts_the_manifest(package, tools) -> None:
    ran = subprocess.run([tools, "-c", IDF_CHECK, package], capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "1.0.0+01234567"


def test_arduino_properties_follow_the_specification(package) -> None:
    """Required fields, no unknown category, and a sketch whose folder has its name."""
    lines = dict(line.split("=", 1) for line in (package / "library.properties").read_text().splitlines())
    required = {
        "name",
        "version",
        "author",
        "maintainer",
        "sentence",
        "paragraph",
        "category",
        "url",
        "architectures",
    }
    assert required <= lines.keys() and all(lines.values())
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", lines["name"])
    assert lines["category"] == "Data Processing" and not lines["sentence"].startswith(lines["name"])
    assert (package / lines["includes"]).is_file()
    assert {path.stem for path in package.glob("examples/*/*.ino")} == {"classify", "selftest"}


def test_cmake_builds_a_program_with_the_library(package, tmp_path) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("CMake is not installed")
    project = tmp_path / "project"
    project.mkdir()
    (project / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(gate C)\n"
        f"add_subdirectory({package} door)\nadd_executable(gate main.c)\n"
        "target_link_libraries(gate PRIVATE edgefl::door)\n"
    )
    (project / "main.c").write_text(
        '#include "door.h"\n#include <stdio.h>\nint main(void)\n{\n    int8_t *input = door_input();\n'
        "    input[0] = 16;\n    input[1] = 0;\n    input[2] = 16;\n    door_invoke(input, door_output());\n"
        '    printf("%d %d\\n", door_output()[0], door_output()[1]);\n    return 0;\n}\n'
    )
    for command in (["cmake", "-B", "build"], ["cmake", "--build", "build"], ["build/gate"]):
        ran = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=200)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout == "4 2\n"  # (16 + 3 * 16) / 16 and (-4 * 16 + 6 * 16) / 16


def test_zephyr_module_names_existing_files(package) -> None:
    yaml = pytest.importorskip("yaml")
    module = yaml.safe_load((package / "zephyr" / "module.yml").read_text())
    assert module["name"] == "edgefl_door"
    assert (package / module["build"]["cmake"] / "CMakeLists.txt").is_file()
    assert (package / module["build"]["kconfig"]).is_file()
    sources = re.findall(
        r"\$\{CMAKE_CURRENT_LIST_DIR\}/([\w./]+)", (package / "zephyr" / "CMakeLists.txt").read_text()
    )
    assert sources and all((package / "zephyr" / source).exists() for source in sources)


def test_sketch_compiles_as_cpp_with_stubs_of_arduino(package) -> None:
    """Not Arduino's core: a header with the functions that the sketch calls."""
    (package / "arduino.h").write_text(
        "#include <stdint.h>\nstruct { void begin(long) {} template <class T> void print(T) {} "
        "template <class T> void println(T) {} } Serial;\nunsigned long micros();\nvoid delay(int);\n"
    )
    sketch = package / "examples" / "classify" / "classify.ino"
    command = [
        "g++",
        "-x",
        "c++",
        "-Wall",
        "-Werror",
        "-fsyntax-only",
        "-include",
        package / "arduino.h",
        f"-I{package}",
        sketch,
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
