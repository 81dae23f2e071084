"""Fuzzing of the C that boards run, under AddressSanitizer and UndefinedBehaviorSanitizer.

It covers generated models and firmware updates. `make test-fuzz` runs 50 models with 2,000 inputs each, and
100,000 updates. EDGEFL_FUZZ_SCALE is the share of them to run, by default a tenth. EDGEFL_FUZZ_CC names
another compiler than gcc.
"""

import hashlib
import os
import struct
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from edgefl.base.errors import ExportError
from edgefl.program.plan.tflite import VALUE_TYPES, TfliteTensor
from firmware_export.codegen.c_source import generate_c
from firmware_export.ota.update_package import (
    ALL_DEVICES,
    PART_ENTRY,
    UPDATE_HEADER,
    draw_self_test_inputs,
    hash_device_id,
    read_update,
)
from firmware_export.tflite.quantized_model import read_quantized_model

SCALE = float(os.environ.get("EDGEFL_FUZZ_SCALE", "0.1"))
CC = os.environ.get("EDGEFL_FUZZ_CC", "gcc")
MODELS = max(10, round(50 * SCALE))
"""The first three have every kernel, and the others are of each kind in turn."""
INPUTS = 2000
UPDATES = max(100, round(100_000 * SCALE))
COMPARED = 100
MEMORY_MB = 64
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
BOARD = Path(__file__).parent / "ota_board"
OTA = Path(__file__).parents[2] / "firmware_export/templates/ota"
LAYOUT = bytes.fromhex("00112233445566778899aabbccddeeff" * 2)
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
DEVICE = hash_device_id("pi-1")
SHARES = {1: 0.03, 2: 0.05, 4: 0.1, 8: 0.2, 16: 0.1}
"""Probability of each flag of `ota_board/fuzz.c`: factory reset, flash with flipped bits, power cut, loss of
both slots, an interrupted update before this one.
"""
FACTORY_RESET = 1
DONE = 0
NO_ROOM = 7
RESULTS = range(12)


def run_bounded(command: list[Any], content: bytes, work: Path) -> bytes:
    """Run a program on a file and return its standard output.

    The test fails if the program crashes or needs more than MEMORY_MB.
    """
    (work / "stdin").write_bytes(content)
    limits = f"hard_rss_limit_mb={MEMORY_MB}:max_allocation_size_mb=1:quarantine_size_mb=8"
    with (work / "stdin").open("rb") as source:
        environment = {**os.environ, "ASAN_OPTIONS": limits}
        done = subprocess.run(
            [str(part) for part in command], stdin=source, capture_output=True, timeout=3000, env=environment
        )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
    return done.stdout


def draw_inputs(rng: np.random.Generator, tensor: TfliteTensor) -> Any:
    """Return random inputs, shape (INPUTS, ...). One in four has only extreme values."""
    shape = tensor.shape[1:]
    limits = np.iinfo(VALUE_TYPES[tensor.dtype])
    x = rng.integers(limits.min, limits.max + 1, (INPUTS, *shape)).astype(limits.dtype)
    extremes = np.array([limits.min, limits.min + 1, -1, 0, 1, limits.max], limits.dtype)
    x[: INPUTS // 4] = rng.choice(extremes, (INPUTS // 4, *shape))
    x[0] = limits.min
    x[1] = limits.max
    x[2] = 0
    return x


@pytest.mark.parametrize("seed", range(MODELS))
def test_generated_c_has_no_memory_errors_on_random_inputs(
    seed: int, graphs: Any, random_models: Any, compiled: Any, tmp_path: Path
) -> None:
    """No input causes an error of memory or arithmetic. Some are compared with tflite-micro."""
    pytest.importorskip("tflite_micro")
    if seed < 3:
        kind = ("every kernel", "every kernel with a state", "every kernel of 16 bits")[seed]
        makers = (
            random_models.make_every_kernel_model,
            random_models.make_every_stateful_kernel_model,
            random_models.make_every_wide_kernel_model,
        )
        model = makers[seed](graphs)
    else:
        kind, model = random_models.make_random_model(graphs, seed)
    source = generate_c(model, optimize="ram")
    network = read_quantized_model(model)
    x = draw_inputs(np.random.default_rng(seed), network.get_tensor(network.inputs[0]))
    files = compiled.write_files(source, tmp_path)
    (tmp_path / "main.c").write_text(compiled.MAIN)
    command = [
        CC,
        *compiled.STRICT,
        "-O1",
        *SANITIZERS,
        "-o",
        tmp_path / "program",
        tmp_path / "main.c",
        *files,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    began = time.monotonic()
    result = network.get_tensor(network.outputs[0])
    made = run_bounded([tmp_path / "program"], x.tobytes(), tmp_path)
    outputs = np.frombuffer(made, VALUE_TYPES[result.dtype]).reshape(INPUTS, result.size)
    print(f"model {seed} ({kind}): {INPUTS} inputs in {time.monotonic() - began:.1f} s")
    np.testing.assert_array_equal(outputs[:COMPARED], compiled.run_micro(model, x[:COMPARED]))


class Spec:
    """An update that a firmware of ota_board/model.c accepts.

    Its fields can be changed before it is signed.
    """

    def __init__(self, rng: np.random.Generator, counter: int) -> None:
        self.rng = rng
        self.mark = b"EFLU"
        self.version = 2
        self.counter = counter
        self.count = 2
        self.layout = LAYOUT
        self.device = DEVICE
        self.seed = int(rng.integers(1, 2**32))
        self.runs = 8
        self.parts = [int(rng.integers(-99, 99)).to_bytes(4, "little", signed=True), rng.bytes(35)]
        self.entries = [[len(part), 1, hashlib.sha256(part).digest()] for part in self.parts]
        self.answers = self.compute_answers()
        self.payload = b"".join(self.parts)

    def compute_answers(self) -> bytes:
        """Return the digest of the parts' outputs for the self-test inputs."""
        x = draw_self_test_inputs(self.seed, min(self.runs, 64), 5).astype(int)
        total = x.sum(axis=1) + int.from_bytes(self.parts[0], "little", signed=True)
        weight = int.from_bytes(self.parts[1][:1], "little", signed=True)
        outputs = np.stack([total & 127, weight * (total & 31)], axis=1).astype(np.int8)
        return hashlib.sha256(outputs.tobytes()).digest()

    def sign(self) -> bytes:
        """Return the update with a valid signature at the offset where the firmware expects it."""
        values = (
            self.mark,
            self.version,
            self.counter,
            self.count,
            self.layout,
            self.device,
            self.seed,
            self.runs,
            self.answers,
        )
        entries = b"".join(PART_ENTRY.pack(*entry) for entry in self.entries)
        head = UPDATE_HEADER.pack(*values) + entries
        if self.count <= 70:
            size = UPDATE_HEADER.size + self.count * PART_ENTRY.size
            head = (head + self.rng.bytes(max(0, size - len(head))))[:size]
        return head + KEY.sign(head) + self.payload


def draw_uint32(rng: np.random.Generator) -> int:
    """Return a uint32, often an extreme one."""
    extremes = (0, 1, 2, 3, 4, 5, 7, 8, 63, 64, 65, 127, 2**16, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1)
    return int(rng.choice(extremes)) if rng.random() < 0.7 else int(rng.integers(0, 2**32))


def change_field(spec: Spec) -> bool:
    """Change one field. Return whether the firmware may still accept the update."""
    rng = spec.rng
    entry = spec.entries[int(rng.integers(len(spec.entries)))]
    name = str(
        rng.choice(
            [
                "version",
                "counter",
                "count",
                "layout",
                "device",
                "all",
                "seed",
                "runs",
                "answers",
                "bytes",
                "carried",
                "left out",
                "digest",
                "longer",
                "shorter",
                "payload",
                "entries",
            ]
        )
    )
    if name in ("version", "count", "runs"):
        setattr(spec, name, draw_uint32(rng))
        spec.answers = spec.compute_answers()
        return (name, getattr(spec, name)) in (("version", 2), ("count", 2)) or (
            name == "runs" and spec.runs <= 64
        )
    if name == "counter":
        spec.counter = draw_uint32(rng)
        return spec.counter > 0
    if name in ("layout", "device", "answers"):
        setattr(spec, name, rng.bytes(32))
        return False
    if name == "all":
        spec.device = ALL_DEVICES
        return True
    if name == "seed":
        spec.seed = draw_uint32(rng)
        spec.answers = spec.compute_answers()
        return True
    if name == "carried":
        entry[1] = max(1, draw_uint32(rng))
        return True
    if name == "left out":  # the firmware may already have this part
        index = spec.entries.index(entry)
        entry[1] = 0
        spec.payload = b"".join(
            part for part, (_, is_carried, _) in zip(spec.parts, spec.entries, strict=False) if is_carried
        )
        return index < len(spec.parts)
    if name == "entries":
        spec.entries += [list(entry) for _ in range(int(rng.integers(1, 64)))]
        spec.count = len(spec.entries)
        return False
    before = spec.payload
    if name == "bytes":
        before = entry[0]
        entry[0] = draw_uint32(rng)
        return bool(before == entry[0])
    if name == "digest":
        entry[2] = rng.bytes(32)
        return False
    if name == "longer":
        spec.payload += rng.bytes(int(rng.integers(1, 9000)))
    elif name == "shorter":
        spec.payload = spec.payload[: int(rng.integers(0, len(spec.payload) + 1))]
    else:
        spec.payload = rng.bytes(len(spec.payload))
    return spec.payload == before


def mutate(rng: np.random.Generator, content: bytes, other: bytes) -> bytes:
    """Return damaged bytes of an update: flipped, cut, extended, spliced with another update, or random."""
    kind = int(rng.integers(6))
    offset = int(rng.integers(0, len(content) + 1))
    if kind == 0:
        return content[:offset]
    if kind == 1:
        return content[:offset] + rng.bytes(int(rng.integers(1, 300))) + content[offset:]
    if kind == 2:
        return content[:offset] + other[min(offset, len(other)) :]
    if kind == 3:
        return rng.bytes(offset) if rng.random() < 0.5 else content[:12] + rng.bytes(offset)
    changed = bytearray(content)
    for index in rng.integers(0, len(changed), 1 + int(rng.integers(4))):
        changed[index] = int(rng.integers(256)) if kind == 4 else changed[index] ^ 1 << int(rng.integers(8))
    return bytes(changed)


def draw_updates(rng: np.random.Generator) -> list[tuple[int, bytes, bool]]:
    """Return flags, an update, and whether the firmware may accept it.

    One update in 20 is valid. Half of the others are mutated, and half are signed with changed fields.
    """
    cases = []
    good = Spec(rng, 1).sign()
    for counter in range(1, UPDATES + 1):
        spec = Spec(rng, counter)
        flags = sum(flag for flag, share in SHARES.items() if rng.random() < share)
        draw = rng.random()
        allowed = True
        if draw > 0.525:
            changes = [change_field(spec) for _ in range(int(rng.choice([1, 1, 1, 2, 3])))]
            allowed = len(changes) > 1 or changes[0]  # a second change can undo the first
        content = spec.sign()
        if 0.05 < draw <= 0.525:
            intact = content
            content = mutate(rng, content, good)
            allowed = content in (intact, good)
            good = intact
        if spec.counter > UPDATES:
            flags |= FACTORY_RESET
        cases.append((flags, content, allowed))
        if spec.counter > UPDATES:  # no counter is higher: the next case starts with a new board
            cases.append((FACTORY_RESET, good[:8], False))
    return cases


@pytest.fixture(scope="module")
def updates() -> list[tuple[int, bytes, bool]]:
    """Flags of each case, its update, and whether the firmware may accept the update."""
    return draw_updates(np.random.default_rng(1))


def test_random_updates_cause_no_memory_errors(
    updates: list[tuple[int, bytes, bool]], tmp_path: Path
) -> None:
    """No update causes an error of memory or arithmetic.

    A refused update changes nothing, and the counter never decreases. See `ota_board/fuzz.c`.
    """
    flags = ["-std=c99", "-O1", f"-I{BOARD}", f"-I{OTA}", f"-I{OTA / 'monocypher'}", *SANITIZERS]
    sources = [
        BOARD / "fuzz.c",
        BOARD / "board.c",
        BOARD / "model.c",
        OTA / "ota.c",
        OTA / "sha2.c",
        OTA / "monocypher/monocypher.c",
    ]
    done = subprocess.run(
        [CC, *flags, "-o", tmp_path / "fuzz", *sources], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    (tmp_path / "trusted").write_bytes(KEY.public_key().public_bytes_raw() + DEVICE)
    seeds = np.random.default_rng(2).integers(0, 2**32, len(updates))
    stream = b"".join(
        struct.pack("<BII", flags, int(seed), len(content)) + content
        for seed, (flags, content, _) in zip(seeds, updates, strict=True)
    )
    began = time.monotonic()
    results = run_bounded([tmp_path / "fuzz", tmp_path / "trusted"], stream, tmp_path)
    print(
        f"{len(updates)} updates in {time.monotonic() - began:.1f} s: "
        f"{dict(sorted(Counter(results).items()))}"
    )
    assert len(results) == len(updates)
    wrong = [
        i
        for i, (result, (_, _, allowed)) in enumerate(zip(results, updates, strict=True))
        if result == DONE and not allowed
    ]
    assert not wrong, [updates[i] for i in wrong[:3]]
    assert set(results) == set(RESULTS) - {NO_ROOM}, "a result that no update reached"


def test_host_reads_or_refuses_every_update(updates: list[tuple[int, bytes, bool]]) -> None:
    """`read_update` names the problem and raises no other error."""
    outcomes: Counter[str] = Counter()
    for _, content, _ in updates:
        try:
            read_update(content)
            outcomes["read"] += 1
        except ExportError:
            outcomes["refused"] += 1
    print(dict(outcomes))
    assert min(outcomes["read"], outcomes["refused"]) > UPDATES // 10
