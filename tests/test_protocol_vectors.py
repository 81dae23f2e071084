"""The page of test vectors equals the output of the code, and agrees with a second implementation that
imports nothing of edgefl.
"""

import base64
import importlib.util
import json
import re
import struct
from pathlib import Path
from types import ModuleType

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

TESTS = Path(__file__).parent


def load_module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"edgefl_tests_{path.stem}", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


foreign = load_module(TESTS / "mqtt_broker" / "foreign_device.py")
TEXT = (TESTS.parent / "docs" / "protocol-vectors.md").read_text()
VECTORS = dict(re.findall(r"^(\S.*)\n\n    (.*)$", TEXT, re.MULTILINE))
DELTA = {"fc/bias": [0.5, -0.25, 0.0], "fc/kernel": [1.0, -3.0, 0.1, 0.001, 2.0, -0.7]}


def test_page_equals_the_generated_vectors() -> None:
    made = load_module(TESTS / "protocol_vectors.py").render()
    assert made == TEXT, "run python -m tests.protocol_vectors, and say in protocol.md what changed"


@pytest.mark.parametrize("kind", ["State", "Task", "Begin", "Receipt"])
def test_signatures_are_valid(kind: str) -> None:
    signed_text = VECTORS[f"{kind}: what is signed"].replace("\\n{", "\n{", 1)
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(VECTORS["public key, base64"]))
    key.verify(base64.b64decode(VECTORS[f"{kind}: signature"]), signed_text.encode())
    head, _, body = signed_text.partition("\n")
    assert foreign.signed_bytes(kind, json.loads(body), "kitchen", head.split(" ")[3]) == signed_text.encode()


def test_verdict_has_the_documented_fields() -> None:
    """The fields are those that protocol.md lists, and the counts decide which model is better."""
    message = json.loads(VECTORS["Verdict"])
    assert VECTORS["topic"] == "edgefl/v2/kitchen/verdict"
    section = (TESTS.parent / "docs" / "protocol.md").read_text().partition("### Verdict\n")[2]
    fields = re.findall(r"^\| (\w+) \|", section.partition("\n## ")[0], re.MULTILINE)
    assert list(message) == fields[1:]
    assert message["rows"] == [
        ["pi-1", 0.75, 0.625, 0.875, None, "fine-tuned", "better"],
        ["pi-2", 0.75, 0.625, 0.875, 0.33333, "mixture", ""],
    ]
    assert (message["better"], message["as_good"], message["gain_points"]) == (1, 0, 12.5)
    assert sum(1 for ways in range(2**5) if ways.bit_count() >= 5) / 2**5 <= 0.05


def test_model_and_update_decode_to_the_delta() -> None:
    for name, prefix in (("model", ""), ("update in fp32", "global/")):
        tensors = foreign.safetensors(bytes.fromhex(VECTORS[name]))
        assert {
            key: list(struct.unpack(f"<{len(part) // 4}f", part)) for key, (_, _, part) in tensors.items()
        } == pytest.approx({prefix + key: pytest.approx(values) for key, values in DELTA.items()})
    assert foreign.hashlib.sha256(bytes.fromhex(VECTORS["model"])).hexdigest() == VECTORS["its sha256"]


def test_packed_updates_match_the_second_implementation() -> None:
    for name, values in DELTA.items():
        single = list(struct.unpack(f"<{len(values)}f", struct.pack(f"<{len(values)}f", *values)))
        tensors = foreign.safetensors(bytes.fromhex(VECTORS["update in int8"]))
        scale, packed = foreign.int8_of(single)
        assert tensors[f"global/{name}"][2] == packed
        assert tensors[f"global/{name}#scale"][2] == struct.pack("<f", scale)
        tensors = foreign.safetensors(bytes.fromhex(VECTORS["update in fp16"]))
        assert tensors[f"global/{name}"][2] == struct.pack(f"<{len(values)}e", *values)
        tensors = foreign.safetensors(bytes.fromhex(VECTORS["update in top-50"]))
        positions = sorted(
            sorted(range(len(values)), key=lambda i: (-abs(single[i]), i))[: -(-len(values) // 2)]
        )
        assert tensors[f"global/{name}#place"] == (
            "U32",
            [len(positions)],
            struct.pack(f"<{len(positions)}I", *positions),
        )
        assert tensors[f"global/{name}"][2] == struct.pack(
            f"<{len(positions)}f", *(single[i] for i in positions)
        )


def test_deflate_unpacks_to_the_plain_bytes() -> None:
    from edgefl.protocol.wire.deflate import deflate_blob, inflate_blob

    blob = bytes(range(23))
    assert inflate_blob(foreign.deflated(blob, 4), 4, 23, "peer") == blob
    planes = foreign.zlib.decompress(deflate_blob(blob, 4))
    assert planes == bytes(
        [*range(0, 20, 4), *range(1, 20, 4), *range(2, 20, 4), *range(3, 20, 4), 20, 21, 22]
    )


def compute_keystream(seed: bytes) -> list[int]:
    stream = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor().update(bytes(24))
    return list(struct.unpack("<3Q", stream))


def test_masked_vectors_match_the_second_implementation() -> None:
    context = VECTORS["context, of the Task above"]
    clients = ("a", "b", "c")
    vector = json.loads(VECTORS["elements of the deltas .5, -.25 at 3 samples, as u64"])
    assert vector == [3 * 2**23, 2**64 - 3 * 2**22, 3]
    secret = {
        client: [bytes.fromhex(part) for part in VECTORS[f"secrets of {client}: seal, mask, seed"].split()]
        for client in clients
    }
    keys = {
        client: [
            bytes.fromhex(part) for part in VECTORS[f"public keys of {client}: seal, mask, seed"].split()
        ]
        for client in clients
    }
    public = {client: keys[client][1] for client in clients}
    assert all(foreign.hashlib.sha256(secret[client][2]).digest() == keys[client][2] for client in clients)
    lines = VECTORS["key list of a, b and c, not enrolled"].replace("\\t", "\t").replace("\\n", "\n")
    for client, line in zip(clients, lines.split("\n"), strict=True):
        names = ("client_id", "context", "seal", "mask", "seed", "signature")
        values = (client, context, *(base64.b64encode(key).decode() for key in keys[client]), "")
        assert line == json.dumps(dict(zip(names, values, strict=True)), separators=(",", ":")) + "\t\t"
    binding = foreign.hashlib.sha256(f"{context}\n{lines}".encode()).hexdigest()
    assert binding == VECTORS["binding, of that context and list"]
    total = [0, 0, 0]
    for u in clients:
        masked = [x + m for x, m in zip(vector, compute_keystream(secret[u][2]), strict=True)]
        for v in clients:
            if v != u:
                shared = X25519PrivateKey.from_private_bytes(secret[u][1]).exchange(
                    X25519PublicKey.from_public_bytes(public[v])
                )
                seed = HKDF(SHA256(), 32, None, f"{binding} mask".encode()).derive(shared)
                masked = [
                    x + (m if v > u else -m) for x, m in zip(masked, compute_keystream(seed), strict=True)
                ]
        masked = [x % 2**64 for x in masked]
        assert struct.pack("<3Q", *masked).hex() == VECTORS[f"masked elements of {u}"]
        total = [(x + y) % 2**64 for x, y in zip(total, masked, strict=True)]
    assert struct.pack("<3Q", *total).hex() == VECTORS["their sum"]
    for client in clients:  # without the self masks, the sum is three times the vector
        total = [(x - m) % 2**64 for x, m in zip(total, compute_keystream(secret[client][2]), strict=True)]
    assert total == [3 * x % 2**64 for x in vector]


def test_shares_recover_the_secret_seed() -> None:
    prime = 2**521 - 1
    shares = {
        position: int(VECTORS[f"share of a's seed at place {position}, polynomial seed + 5 p"], 16)
        for position in (1, 3)
    }
    secret = (shares[1] * 3 * pow(2, -1, prime) - shares[3] * pow(2, -1, prime)) % prime
    assert secret.to_bytes(32).hex() == VECTORS["secrets of a: seal, mask, seed"].split()[2]
    signed_text = VECTORS["binding, of that context and list"].encode() + b"\na\nc\n" + shares[3].to_bytes(66)
    assert (
        foreign.hashlib.sha256(signed_text).hexdigest()
        == VECTORS["digest of the share at place 3, of a for c"]
    )


def test_complaints_have_no_multiple_of_8_bytes() -> None:
    assert bytes.fromhex(VECTORS["complaint about a1 and b"]) == b"a1 b"
    assert bytes.fromhex(VECTORS["complaint about a12 and bcde"]) == b"a12 bcde\n"


def test_context_and_random_draws_match_the_second_implementation() -> None:
    task = json.loads(VECTORS["Task: what is signed"].partition("\\n")[2])
    fields = [
        "kitchen",
        task["session"],
        task["round"],
        task["phase"],
        task["nonce"],
        task["plan"],
        sorted(map(list, task["models"].items())),
        sorted(map(list, task["scalars"].items())),
        task["seed"],
    ]
    text = json.dumps(fields)
    assert foreign.hashlib.sha256(text.encode()).hexdigest() == VECTORS["context, of the Task above"]
    import numpy as np

    entropy = struct.unpack("<4I", foreign.hashlib.sha256(b"pi-1").digest()[:16])
    draws = np.random.Generator(np.random.PCG64(np.random.SeedSequence([7, 1, *entropy]))).integers(
        0, 2**64, 2, np.uint64
    )
    assert draws.tolist() == json.loads(VECTORS["seed 7, round 1, client pi-1: two u64"])
