"""Damaged inputs that pass a parser's first check.

JSON is mutated as a tree. Lengths, digests and checksums are corrected after a mutation.
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
    b"\\ud800",  # half of a surrogate pair, which UTF-8 cannot encode
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
        offset = int(rng.integers(0, len(made) + 1))
        match int(rng.integers(0, 7)):
            case 0:
                del made[offset:]
            case 1 if made:
                made[offset % len(made)] ^= 1 << int(rng.integers(0, 8))
            case 2:
                made[offset:offset] = rng.bytes(int(rng.integers(1, 9)))
            case 3:
                made[offset:offset] = made[offset : offset + 16]
            case 4:
                del made[offset : offset + int(rng.integers(1, 9))]
            case 5:
                made[offset : offset + 8] = int(pick(rng, NUMBERS)).to_bytes(8, "little")
            case 6:
                made[offset:offset] = pick(rng, BYTES)
    return bytes(made)


def flip_bytes(blob: bytes, rng: Rng) -> bytes:
    """Change one to eight bytes or 32-bit numbers without changing the length."""
    made = bytearray(blob)
    for _ in range(int(rng.integers(1, 9))):
        offset = int(rng.integers(0, max(1, len(made))))
        if rng.random() < 0.5:
            made[offset : offset + 1] = bytes([int(rng.integers(0, 256))])
        else:
            made[offset : offset + 4] = (int(pick(rng, NUMBERS)) % 2**32).to_bytes(4, "little")[
                : len(made) - offset
            ]
    return bytes(made)


def damage_tree(tree: Any, rng: Rng) -> Any:
    """Return a copy with one to three of its nodes replaced, removed, renamed or repeated."""
    made = [copy.deepcopy(tree)]
    for _ in range(int(rng.integers(1, 4))):
        nodes = [(made, 0)]
        for parent, key in nodes:  # the list grows during the loop
            node = parent[key]
            keys = node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
            nodes.extend((node, inner) for inner in keys)
        parent, key = pick(rng, nodes[1:] or nodes)
        match int(rng.integers(0, 5)):
            case 0 | 1:
                parent[key] = copy.deepcopy(pick(rng, VALUES))
            case 2 if parent is not made:
                del parent[key]
            case 3 if isinstance(parent, dict):
                parent[pick(rng, ["", "x", "signature", "a" * 300, "\ud800"])] = parent.pop(key)
            case 4 if isinstance(parent, list) and parent is not made:
                parent.extend([copy.deepcopy(parent[key])] * int(pick(rng, [1, 3, 2000])))
    return made[0]


def damage_json(text: bytes) -> Make:
    """Mutate the tree. In one of four cases, mutate the text."""
    tree = json.loads(text)
    return lambda rng: (
        damage_bytes(text, rng) if rng.random() < 0.25 else json.dumps(damage_tree(tree, rng)).encode()
    )


def damage_lines(blob: bytes, separator: bytes = b"\n") -> Make:
    """Swap, repeat, drop or damage lines."""

    def make(rng: Rng) -> bytes:
        lines = blob.split(separator)
        offset, other = (int(rng.integers(0, len(lines))) for _ in range(2))
        match int(rng.integers(0, 4)):
            case 0:
                lines[offset], lines[other] = lines[other], lines[offset]
            case 1:
                lines.insert(offset, lines[other])
            case 2:
                del lines[offset]
            case _:
                lines[offset] = damage_bytes(lines[offset], rng)
        return separator.join(lines)

    return make


def damage_safetensors(blob: bytes) -> Make:
    """Mutate header, values or the whole file. The header's length is correct in the first two cases."""
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
    """Mutate one member, with correct checksums in the archive. In one of four cases, mutate the archive."""
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
                    # The first 128 bytes contain the header of .npy
                    head = flip_bytes(content[:128], rng) if rng.random() < 0.5 else content[:128]
                    archive.writestr(name, head + flip_bytes(content[128:], rng))
        return made.getvalue()

    return make
