"""The field program of a firmware project.

It applies updates of the model's parts if the firmware trusts a key, and counts drift if the model has a
gate.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from edgefl.base.errors import ExportError
from firmware_export.firmware.targets import COMPILER_OPTIONS, Target
from firmware_export.ota.update_package import hash_device_id

SLOT_RECORD_BYTES = 80
OTA_FILES = (
    "ota.c",
    "ota.h",
    "sha2.c",
    "sha2.h",
    "monocypher/monocypher.c",
    "monocypher/monocypher.h",
    "monocypher/LICENSE",
)
CMAKE_TEMPLATE = """
# The program for the field: updates of the model's parts, drift counters.
add_executable(field.elf EXCLUDE_FROM_ALL field.c {board} {sources})
target_include_directories(field.elf PRIVATE {folders})
target_compile_options(field.elf PRIVATE {options})
{special}target_compile_definitions(field.elf PRIVATE {definitions})
target_link_libraries(field.elf PRIVATE model{libraries})
{link}add_custom_target(field
    COMMAND {command}
    WORKING_DIRECTORY ${{CMAKE_CURRENT_SOURCE_DIR}} DEPENDS field.elf USES_TERMINAL VERBATIM)
"""
LINK_OPTIONS = """target_link_options(field.elf PRIVATE -nostdlib -Wl,--gc-sections -T ${CMAKE_CURRENT_SOURCE_DIR}/link.ld)
"""  # noqa: E501
KEY_HEADER_TEMPLATE = """#include <stdint.h>

/* The Ed25519 key that signs this firmware's updates. */
static const uint8_t update_key[32] = {{
{key}
}};

/* SHA-256 of the device's id. Zeros accept only updates for all devices. */
static const uint8_t update_device[32] = {{
{device}
}};
"""
MONOCYPHER_OPTIONS = """# Clang 14 crashes when it vectorizes these loops for the M55.
set_source_files_properties(ota/monocypher/monocypher.c PROPERTIES COMPILE_OPTIONS "-w$<$<BOOL:${CLANG}>:;-fno-vectorize>")
"""  # noqa: E501
README_TEMPLATE = """
## In the field

    cmake --build build --target field

runs `field.c`: {what}. A product needs the folders {folders} and the calls of `field.c`.
"""
UPDATES_SENTENCE = (
    "it applies the signed `update.bin` of `edgefl export update`, if it is in this folder, to the slots in "
    "`slots.bin`, and stores the highest counter in `update_counter.bin`"
)
COUNTERS_SENTENCE = (
    "it counts how the gate is used into `counters.bin`, which `edgefl export drift` compares with the use "
    "at export"
)


@dataclass(frozen=True)
class UpdateSettings:
    """Settings of a firmware that takes updates.

    Attributes:
        key: the public key that the firmware trusts, in base64.
        part_bytes: size of each part in bytes.
        device: id of the firmware's device. If empty, the firmware accepts only updates for all devices.
    """

    key: str
    part_bytes: tuple[int, ...]
    device: str = ""

    @property
    def slot_bytes(self) -> int:
        """Size of a slot in bytes: the parts, each padded to eight bytes, and the record."""
        return sum((n + 7) // 8 * 8 for n in self.part_bytes) + SLOT_RECORD_BYTES


def make_field_files(
    project: Mapping[str, str], target: Target, updates: UpdateSettings | None
) -> dict[str, str]:
    """Return the files of a project that the field program adds or changes.

    Args:
        project: the text files of the project by path.
        updates: settings of firmware that takes updates. None makes firmware without updates.

    Returns:
        The text files by path. Empty for a model without a gate whose firmware takes no updates.

    Raises:
        ExportError: the update key is not a key.
    """
    gate = "#define MODEL_EXPERTS" in project["model/model.h"]
    if not gate and updates is None:
        return {}
    root = files("firmware_export") / "templates"
    texts = {"field.c": (root / "project/field.c").read_text()}
    if gate:
        texts |= {f"drift/{name}": (root / "drift" / name).read_text() for name in ("drift.c", "drift.h")}
    if updates:
        texts |= {f"ota/{name}": (root / "ota" / name).read_text() for name in OTA_FILES}
        texts["ota/update_key.h"] = _render_key_header(updates.key, updates.device)
    texts["CMakeLists.txt"] = project["CMakeLists.txt"] + _render_cmake(target, gate, updates)
    what = "; ".join([UPDATES_SENTENCE] * (updates is not None) + [COUNTERS_SENTENCE] * gate)
    folders = " and ".join(f"`{name}/`" for name, is_used in (("ota", updates), ("drift", gate)) if is_used)
    texts["README.md"] = project["README.md"] + README_TEMPLATE.format(what=what, folders=folders)
    return texts


def _render_cmake(target: Target, gate: bool, updates: UpdateSettings | None) -> str:
    sources = ["drift/drift.c"] * gate
    folders = ["drift"] * gate
    special = ""
    definitions = ""
    if updates:
        sources += ["ota/ota.c", "ota/sha2.c", "ota/monocypher/monocypher.c"]
        folders += ["ota", "ota/monocypher"]
        special = MONOCYPHER_OPTIONS
        definitions = f"UPDATE_SLOT_BYTES={updates.slot_bytes}"
    host = target.is_host
    qemu = " ".join([target.architecture.qemu, *target.list_qemu_options()])
    return CMAKE_TEMPLATE.format(
        board="host.c" if host else "semihosting.c startup.c",
        sources=" ".join(sources),
        folders=" ".join(folders),
        options=" ".join(COMPILER_OPTIONS),
        special=special,
        definitions=definitions,
        libraries="" if host else " gcc",
        link="" if host else LINK_OPTIONS,
        command="field.elf" if host else f"{qemu} -kernel $<TARGET_FILE:field.elf>",
    )


def _render_key_header(key: str, device: str) -> str:
    raw = base64.b64decode(key)
    if len(raw) != 32:
        raise ExportError(
            f"the update key has {len(raw)} bytes, expected 32; make one with `edgefl export key`"
        )
    return KEY_HEADER_TEMPLATE.format(key=_format_bytes(raw), device=_format_bytes(hash_device_id(device)))


def _format_bytes(raw: bytes) -> str:
    return "\n".join("    " + " ".join(f"0x{byte:02x}," for byte in raw[i : i + 8]) for i in range(0, 32, 8))
