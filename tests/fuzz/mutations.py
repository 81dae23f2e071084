"""Damaged inputs that get past a parser's first check.

Trees are mutated as trees, and lengths, digests and checksums are made right again.
"""

import copy
import io
import json
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np

Rng = np.random.Generator
Make = Callable[[Rng], bytes]

BYTES = [
    b"",
    b"\x00",
    b"\xff" * 16,
    b"{" * 500,
    b"[" * 50_000,
    b'{"a":' * 5_000,
    b"1e999",
    b"-0",
    b"null",
    b'"' + b"\\u0000" * 40 + b'"',
    b"\xf0\x9f",
    b"\\ud800",  # half a character, which has no bytes
    b"\n",
    b"\t",
    b" ",
]
VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    255,
    65535,
    2**31,
    -(2**31),
    2**32,
    2**62,
    2**63,
    -(2**63),
    10**400,
    0.5,
    -0.0,
    1e308,
    1e-320,
    "",
    "x",
    "a" * 2000,
    "\0",
    "../../etc/passwd",
    "\x1b[2J",
    "é\u202e",
    "NaN",
    "F32",
    "global",
    "pi-1",
    [],
    {},
    [0],
    [[0, 1]],
    [[1, 0]],
    [None],
    {"a": 1},
    {"": ""},
    [[]],
]
NUMBERS = [
    0,
    1,
    2,
    127,
    128,
    255,
    256,
    65535,
    65536,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**62,
    2**63 - 1,
    2**64 - 1,
]


def pick(rng: Rng, items: Any) -> Any:
    """Return one of the items."""
    return items[int(rng.integers(0, len(items)))]


def damage_bytes(blob: bytes, rng: Rng) -> bytes:
    """Cut, flip, repeat, remove, overwrite or insert, one to three times."""
    made = bytearray(blob)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(0, len(made) + 1))
        match int(rng.integers(0, 7)):
            case 0:
                del made[at:]
            case 1 if made:
                made[at % len(made)] ^= 1 << int(rng.integers(0, 8))
            case 2:
                made[at:at] = rng.bytes(int(rng.integers(1, 9)))
            case 3:
                made[at:at] = made[at : at + 16]
            case 4:
                del made[at : at + int(rng.integers(1, 9))]
            case 5:
                made[at : at + 8] = int(pick(rng, NUMBERS)).to_bytes(8, "little")
            case 6:
                made[at:at] = pick(rng, BYTES)
    return bytes(made)


def flip_bytes(blob: bytes, rng: Rng) -> bytes:
    """Change one to eight bytes or 32-bit numbers and keep the length."""
    made = bytearray(blob)
    for _ in range(int(rng.integers(1, 9))):
        at = int(rng.integers(0, max(1, len(made))))
        if rng.random() < 0.5:
            made[at : at + 1] = bytes([int(rng.integers(0, 256))])
        else:
            made[at : at + 4] = (int(pick(rng, NUMBERS)) % 2**32).to_bytes(4, "little")[: len(made) - at]
    return bytes(made)


def damage_tree(tree: Any, rng: Rng) -> Any:
    """Return a copy with one to three of its nodes replaced, removed, renamed or repeated."""
    made = [copy.deepcopy(tree)]
    for _ in range(int(rng.integers(1, 4))):
        places = [(made, 0)]
        for holder, key in places:  # grows as it is walked
            node = holder[key]
            keys = node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
            places.extend((node, inner) for inner in keys)
        holder, key = pick(rng, places[1:] or places)
        match int(rng.integers(0, 5)):
            case 0 | 1:
                holder[key] = copy.deepcopy(pick(rng, VALUES))
            case 2 if holder is not made:
                del holder[key]
            case 3 if isinstance(holder, dict):
                holder[pick(rng, ["", "x", "signature", "a" * 300, "\ud800"])] = holder.pop(key)
            case 4 if isinstance(holder, list) and holder is not made:
                holder.extend([copy.deepcopy(holder[key])] * int(pick(rng, [1, 3, 2000])))
    return made[0]


def damage_json(text: bytes) -> Make:
    """Mutate the tree, or the text in one of four cases."""
    tree = json.loads(text)
    return lambda rng: (
        damage_bytes(text, rng) if rng.random() < 0.25 else json.dumps(damage_tree(tree, rng)).encode()
    )


def damage_lines(blob: bytes, separator: bytes = b"\n") -> Make:
    """Swap, repeat, drop or damage lines."""

    def make(rng: Rng) -> bytes:
        lines = blob.split(separator)
        at, other = (int(rng.integers(0, len(lines))) for _ in range(2))
        match int(rng.integers(0, 4)):
            case 0:
                lines[at], lines[other] = lines[other], lines[at]
            case 1:
                lines.insert(at, lines[other])
            case 2:
                del lines[at]
            case _:
                lines[at] = damage_bytes(lines[at], rng)
        return separator.join(lines)

    return make


def damage_safetensors(blob: bytes) -> Make:
    """Mutate header, values or the whole file; the header's length is right again in the first two cases."""
    end = 8 + int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8:end])
    values = blob[end:]

    def make(rng: Rng) -> bytes:
        kind = rng.random()
        if kind < 0.2:
            return damage_bytes(blob, rng)
        text = json.dumps(damage_tree(header, rng) if kind < 0.7 else header).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text + (values if kind < 0.7 else flip_bytes(values, rng))

    return make


def damage_zip(blob: bytes) -> Make:
    """Mutate one member; the archive's checksums are right again. One of four mutates the archive itself."""
    with zipfile.ZipFile(io.BytesIO(blob)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}

    def make(rng: Rng) -> bytes:
        if rng.random() < 0.25:
            return damage_bytes(blob, rng)
        chosen = pick(rng, list(members))
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w") as archive:
            for name, content in members.items():
                if name != chosen:
                    archive.writestr(name, content)
                elif rng.random() < 0.9:
                    # a header of .npy lies in the first 128 bytes
                    head = flip_bytes(content[:128], rng) if rng.random() < 0.5 else content[:128]
                    archive.writestr(name, head + flip_bytes(content[128:], rng))
        return made.getvalue()

    return make
