"""Signed update packages for a firmware's parts, made on a host and applied by templates/ota/ota.c.

    120 bytes    mark "EFLU" | version | counter | parts | layout 32 | device 32 | seed | runs | answers 32
     40 bytes    for each part: bytes | carried | sha256 32
     64 bytes    Ed25519 signature (RFC 8032) over all of the above
                 the carried parts, one after another

Numbers are uint32, little-endian. A board receives the bytes in this order and checks the signature before it
writes any part.

An update carries the parts that differ from the old firmware's parts. `layout` is a digest of the network's
shapes and operators, that is, of the code that runs the parts. `device` is the SHA-256 of the id of the only
device that accepts the update, or zeros for all devices. `answers` is the SHA-256 of the outputs for `runs`
pseudo-random inputs. An update contains no samples.
"""

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefl.base.errors import ExportError

UPDATE_MAGIC = b"EFLU"
UPDATE_FORMAT_VERSION = 2
UPDATE_SIGNATURE_BYTES = 64
UPDATE_HEADER = struct.Struct("<4sIII32s32sII32s")
ALL_DEVICES = bytes(32)
PART_ENTRY = struct.Struct("<II32s")
MAX_FIRMWARE_PARTS = 64
SELF_TEST_RUNS = 8
UINT32_MAX = 2**32 - 1


@dataclass(frozen=True)
class FirmwarePart:
    """One replaceable part of a firmware.

    Attributes:
        name: "trunk", "head", "gate", "expert0" and so on.
        content: the bytes of the part's struct in flash.
    """

    name: str
    content: bytes


@dataclass(frozen=True)
class FirmwareParts:
    """All parts of a firmware, in order.

    Attributes:
        layout: digest of the code that runs the parts, 64 hexadecimal digits.
        parts: the parts in the order of MODEL_PARTS.
    """

    layout: str
    parts: tuple[FirmwarePart, ...]


@dataclass(frozen=True)
class UpdateManifest:
    """The signed header of an update.

    Attributes:
        counter: number of the update. A device accepts only a higher number than its last one.
        layout: digest of the code that runs the parts, 64 hexadecimal digits.
        device: digest of the device's id, 32 bytes, or ALL_DEVICES.
        seed: random seed of the self-test inputs.
        runs: number of self-test inputs.
        answers: SHA-256 of the outputs for the self-test inputs.
        entries: for each part its size in bytes, whether the update carries it, and its SHA-256.
    """

    counter: int
    layout: str
    device: bytes
    seed: int
    runs: int
    answers: bytes
    entries: tuple[tuple[int, bool, bytes], ...]

    def pack(self) -> bytes:
        """Return the bytes that are signed."""
        layout = bytes.fromhex(self.layout)
        head = UPDATE_HEADER.pack(
            UPDATE_MAGIC,
            UPDATE_FORMAT_VERSION,
            self.counter,
            len(self.entries),
            layout,
            self.device,
            self.seed,
            self.runs,
            self.answers,
        )
        return head + b"".join(PART_ENTRY.pack(*entry) for entry in self.entries)


def hash_device_id(device: str) -> bytes:
    """Return the digest that stands for a device's id in an update and in its firmware.

    Returns:
        32 bytes. ALL_DEVICES if `device` is empty.
    """
    return hashlib.sha256(device.encode()).digest() if device else ALL_DEVICES


def draw_self_test_inputs(seed: int, runs: int, count: int) -> Any:
    """Return pseudo-random inputs for the self-test of an update.

    A xorshift32 generator draws the values. Run i is shifted right by i mod 8 bits, which gives eight
    amplitudes.

    Args:
        seed: initial state of the generator, not zero.
        count: values of an input.

    Returns:
        Inputs, shape (runs, count), int8.

    Source: Marsaglia, "Xorshift RNGs", Journal of Statistical Software 8(14), 2003.
    """
    drawn = np.empty(runs * count, np.int32)
    state = seed
    for i in range(runs * count):
        state ^= state << 13 & UINT32_MAX
        state ^= state >> 17
        state ^= state << 5 & UINT32_MAX
        drawn[i] = (state & 255) - 128
    amplitudes = np.arange(runs)[:, None] % 8
    return (drawn.reshape(runs, count) >> amplitudes).astype(np.int8)


def make_update(
    old: FirmwareParts | None,
    new: FirmwareParts,
    *,
    counter: int,
    sign: Callable[[bytes], bytes],
    answer: Callable[[Any], Any],
    inputs: int,
    seed: int = 1,
    device: str = "",
) -> bytes:
    """Return a signed update from one firmware to another.

    Args:
        old: parts of the installed firmware. None if they are unknown: the update then carries all parts.
        counter: number of the update, from 1.
        sign: maps a message to its Ed25519 signature, 64 bytes.
        answer: maps inputs, shape (runs, inputs), int8, to the new model's outputs, shape (runs, m), int8. It
            must compute the same bytes as the firmware.
        inputs: values of one input of the model.
        seed: random seed of the self-test inputs.
        device: id of the only device that accepts the update. Empty for all devices.

    Raises:
        ExportError: the layouts differ, no part changed, or `counter` is out of range.
    """
    if not 1 <= counter <= UINT32_MAX:
        raise ExportError(
            f"the counter is {counter}, expected 1 to {UINT32_MAX}; count the updates of a device from 1"
        )
    if old and old.layout != new.layout:
        raise ExportError(
            f"the old firmware has the layout {old.layout[:12]}, the new one {new.layout[:12]}: shapes, "
            "operators or parts differ; flash the whole new firmware"
        )
    before = {part.name: part.content for part in old.parts} if old else {}
    carried = [part for part in new.parts if before.get(part.name) != part.content]
    if not carried:
        raise ExportError("the old and the new firmware have the same parts; no update is needed")
    answers = np.ascontiguousarray(answer(draw_self_test_inputs(seed, SELF_TEST_RUNS, inputs)), np.int8)
    entries = tuple((len(p.content), p in carried, hashlib.sha256(p.content).digest()) for p in new.parts)
    manifest = UpdateManifest(
        counter=counter,
        layout=new.layout,
        device=hash_device_id(device),
        seed=seed,
        runs=SELF_TEST_RUNS,
        answers=hashlib.sha256(answers.tobytes()).digest(),
        entries=entries,
    ).pack()
    return manifest + sign(manifest) + b"".join(part.content for part in carried)


def read_update(update: bytes) -> UpdateManifest:
    """Return the manifest of an update, without checking its signature.

    Raises:
        ExportError: the bytes are not an update, are truncated, or have another format version.
    """
    if len(update) < UPDATE_HEADER.size or update[:4] != UPDATE_MAGIC:
        raise ExportError(
            f"{len(update)} bytes are not an update: expected the mark EFLU; make one with `edgefl "
            "export update`"
        )
    _, version, counter, count, layout, device, seed, runs, answers = UPDATE_HEADER.unpack_from(update)
    if version < UPDATE_FORMAT_VERSION:
        raise ExportError(
            f"the update has format version {version}, expected {UPDATE_FORMAT_VERSION}: it is not bound to "
            "a device, and newer firmware rejects it; make it again with `edgefl export update`"
        )
    if version != UPDATE_FORMAT_VERSION:
        raise ExportError(
            f"the update has format version {version}, expected {UPDATE_FORMAT_VERSION}; update edgefl on "
            "this computer"
        )
    signed = UPDATE_HEADER.size + count * PART_ENTRY.size
    if not 1 <= count <= MAX_FIRMWARE_PARTS or len(update) < signed + UPDATE_SIGNATURE_BYTES:
        raise ExportError(
            f"the update is truncated or damaged: {len(update)} bytes for {count} parts; copy it again"
        )
    entries = tuple(
        (n, bool(c), d) for n, c, d in PART_ENTRY.iter_unpack(update[UPDATE_HEADER.size : signed])
    )
    payload = sum(n for n, c, _ in entries if c)
    if len(update) != signed + UPDATE_SIGNATURE_BYTES + payload:
        raise ExportError(
            f"the update has {len(update)} bytes, expected {signed + UPDATE_SIGNATURE_BYTES + payload}; "
            f"copy it again"
        )
    return UpdateManifest(
        counter=counter,
        layout=layout.hex(),
        device=device,
        seed=seed,
        runs=runs,
        answers=answers,
        entries=entries,
    )


def describe_update(manifest: UpdateManifest, names: Sequence[str], size: int, device: str) -> str:
    """Return one line that describes an update.

    Args:
        names: names of the firmware's parts, in order.
        size: size of the whole update in bytes.
        device: id of the device that accepts it. Empty for all devices.
    """
    carried = [name for name, (_, is_carried, _) in zip(names, manifest.entries, strict=True) if is_carried]
    whole = sum(n for n, _, _ in manifest.entries)
    parts = f"{', '.join(carried)} of {', '.join(names)}"
    return (
        f"update {manifest.counter} for {device or 'all devices'}: {parts}; {size:,} bytes (all parts: "
        f"{whole:,})"
    )
