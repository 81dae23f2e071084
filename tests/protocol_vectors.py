"""The test vectors of the protocol, made by the project's code. `python -m tests.protocol_vectors` writes
them into docs/.
"""

import base64
import json
from hashlib import sha256
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from edgefl.base.codecs import pack_array
from edgefl.base.rng import derive_rng
from edgefl.base.types import Array
from edgefl.base.verdict import judge_federation
from edgefl.protocol.security.secagg.masking import expand_mask, to_vector
from edgefl.protocol.security.secagg.participant import to_advertised
from edgefl.protocol.security.secagg.secure_sum import PublicKeys, Secrets, mask_vector
from edgefl.protocol.security.secagg.shamir import PRIME, combine_shares
from edgefl.protocol.security.signing import derive_public_key, encode_signed
from edgefl.protocol.wire.chunks import count_chunks, to_ranges
from edgefl.protocol.wire.masked import (
    Introduced,
    encode_complaint,
    encode_ids,
    encode_keys,
    hash_binding,
    hash_context,
)
from edgefl.protocol.wire.messages import Begin, Receipt, State, Task
from edgefl.protocol.wire.strict_json import decode_json, encode_json
from edgefl.protocol.wire.tensors import bound_models_size, encode_models, encode_weights, list_specs
from edgefl.protocol.wire.topics import TOPIC_PREFIX, FederationTopics
from edgefl.protocol.wire.verdict_message import make_verdict_message

PAGE = Path(__file__).parents[1] / "docs" / "protocol-vectors.md"
KEY = base64.b64encode(bytes(range(32))).decode()
"""A private Ed25519 key, which is public because it only serves tests."""
SHA = "ab" * 32
STATE = State(
    federation="kitchen",
    session="0123456789abcdef",
    phase="federate",
    round=1,
    rounds=20,
    cohort_size=2,
    deadline_s=60.0,
    plan=SHA,
    ts=1700000000.25,
    started=1700000000000,
)
TASK = Task(
    session="0123456789abcdef",
    round=1,
    phase="federate",
    plan=SHA,
    models={"global": "cd" * 32},
    scalars={"step": 1e-05},
    seed=7,
    deadline_s=60.0,
    codec="fp32",
    max_staleness=0,
    budget_s=0.0,
    nonce="00112233445566ff",
    ts=1e16,
    started=1700000000000,
    chunk_bytes=122880,
    settings={"evaluate": 1.0},
)
BEGIN = Begin(
    client_id="pi-1",
    session="0123456789abcdef",
    round=1,
    plan=SHA,
    sha256="ef" * 32,
    size=140,
    count=1,
    chunk_bytes=245760,
    num_samples=188,
    metrics={"loss": float("nan"), "küche": 0.5},
    nonce="00112233445566ff",
    ts=1700000001.0,
)
RECEIPT = Receipt(
    round=1,
    sha256="ef" * 32,
    outcome="missing",
    missing=((0, 2), (5, 6)),
    reason="",
    nonce="00112233445566ff",
    ts=1700000002.0,
)
DELTA: dict[str, Array] = {
    "fc/bias": np.array([0.5, -0.25, 0.0], np.float32),
    "fc/kernel": np.array([[1.0, -3.0, 0.1], [1e-3, 2.0, -0.7]], np.float32),
}
CODECS = ("fp32", "fp16", "int8", "top-50", "int8+deflate")


def make_signatures() -> list[tuple[str, str]]:
    """Return messages with the bytes that are signed, and their signatures."""
    rows = [("private key, base64", KEY), ("public key, base64", derive_public_key(KEY))]
    for message, client_id in ((STATE, ""), (TASK, "pi-1"), (BEGIN, "pi-1"), (RECEIPT, "pi-1")):
        kind = type(message).__name__
        rows.append(
            (
                f"{kind}: what is signed",
                f"{TOPIC_PREFIX} kitchen {kind} {client_id}\\n{encode_json(message).decode()}",
            )
        )
        rows.append(
            (
                f"{kind}: signature",
                decode_json(type(message), encode_signed(message, KEY, "kitchen", client_id)).signature,
            )
        )
    return rows


def make_blobs() -> list[tuple[str, str]]:
    """Return a model and an update in several codecs, in hex."""
    rows = [("model", encode_weights(DELTA).hex()), ("its sha256", sha256(encode_weights(DELTA)).hexdigest())]
    rows += [
        (f"update in {codec}", encode_models({"global": DELTA}, codec).hex())
        for codec in CODECS
        if codec != "int8+deflate"
    ]
    limits = {codec: bound_models_size({"global": list_specs(DELTA)}, codec) + 64 for codec in CODECS}
    return [*rows, ("largest size of such an update, bytes", json.dumps(limits))]


def make_codecs() -> list[tuple[str, str]]:
    """Return packed values of each codec."""
    kernel = DELTA["fc/kernel"]
    int8 = pack_array("int8", kernel)
    top = pack_array("top-50", kernel)
    half = pack_array("fp16", np.array([1e6, -0.0, 1 / 3, 6e-8], np.float32))[""]
    return [
        ("int8 of fc/kernel: q", json.dumps(int8[""].ravel().tolist())),
        (
            "int8 of fc/kernel: scale, float32, most significant byte first",
            int8["scale"].astype(">f4").tobytes().hex(),
        ),
        ("top-50 of fc/kernel: places", json.dumps(top["place"].tolist())),
        ("top-50 of fc/kernel: values", json.dumps([float(x) for x in top[""]])),
        ("fp16 of 1e6, -0, 1/3, 6e-8, most significant byte first", half.astype(">f2").tobytes().hex()),
    ]


def make_chunks() -> list[tuple[str, str]]:
    """Return topics and chunk counts."""
    topics = FederationTopics("kitchen")
    return [
        ("topic of a task", topics.format_device("pi-1", "task")),
        ("topic of a chunk", topics.format_upload("pi-1", SHA, 3)),
        (
            "chunks of 0, 245760, 245761 and 492345 bytes",
            json.dumps([count_chunks(size) for size in (0, 245760, 245761, 492345)]),
        ),
        ("ranges of 0, 1, 2, 5, 7, 8", json.dumps(to_ranges([0, 1, 2, 5, 7, 8]))),
    ]


def make_clients() -> dict[str, tuple[Secrets, PublicKeys]]:
    """Return secrets and public keys of three clients, made from fixed bytes."""
    made = {}
    for position, client_id in enumerate(("a", "b", "c"), 1):
        seal, agree = (X25519PrivateKey.from_private_bytes(bytes([16 * position + i] * 32)) for i in (1, 2))
        seed = bytes([16 * position + 3] * 32)
        keys = PublicKeys(
            seal.public_key().public_bytes_raw(), agree.public_key().public_bytes_raw(), sha256(seed).digest()
        )
        made[client_id] = Secrets(seal.private_bytes_raw(), agree.private_bytes_raw(), seed), keys
    return made


def make_masked_sum() -> list[tuple[str, str]]:
    """Return each step of a masked sum of three clients."""
    secrets_and_keys = make_clients()
    context = hash_context("kitchen", TASK)
    public = {client_id: keys for client_id, (_, keys) in secrets_and_keys.items()}
    vector = to_vector(np.array([0.5, -0.25], np.float64), 3)
    keys = encode_keys(
        [
            Introduced(to_advertised(keys_of_client, client_id, context))
            for client_id, keys_of_client in public.items()
        ]
    )
    binding = hash_binding(context, keys)
    rows = [
        ("context, of the Task above", context),
        *(
            (
                f"secrets of {client_id}: seal, mask, seed",
                f"{secrets.seal.hex()} {secrets.mask.hex()} {secrets.self_seed.hex()}",
            )
            for client_id, (secrets, _) in secrets_and_keys.items()
        ),
        *(
            (
                f"public keys of {client_id}: seal, mask, seed",
                f"{keys_of_client.seal.hex()} {keys_of_client.mask.hex()} {keys_of_client.seed.hex()}",
            )
            for client_id, keys_of_client in public.items()
        ),
        ("key list of a, b and c, not enrolled", keys.decode().replace("\t", "\\t").replace("\n", "\\n")),
        ("binding, of that context and list", binding),
        ("elements of the deltas .5, -.25 at 3 samples, as u64", json.dumps(vector.tolist())),
        (
            "mask of a's seed, 3 elements as bytes",
            expand_mask(secrets_and_keys["a"][0].self_seed, 3).astype("<u8").tobytes().hex(),
        ),
    ]
    total = np.zeros(3, np.uint64)
    for client_id, (secrets, _) in secrets_and_keys.items():
        masked_vector = mask_vector(secrets, client_id, public, public, vector, binding)
        rows.append((f"masked elements of {client_id}", masked_vector.astype("<u8").tobytes().hex()))
        total += masked_vector
    rows.append(("their sum", total.astype("<u8").tobytes().hex()))
    # The polynomial is f(p) = secret + 5 p, so the threshold is 2
    secret = int.from_bytes(secrets_and_keys["a"][0].self_seed)
    shares = {position: (secret + 5 * position) % PRIME for position in (1, 3)}
    assert combine_shares(shares, 2, 32) == secrets_and_keys["a"][0].self_seed
    rows += [
        (f"share of a's seed at place {position}, polynomial seed + 5 p", share.to_bytes(66).hex())
        for position, share in shares.items()
    ]
    digest = sha256(f"{binding}\na\nc\n".encode() + shares[3].to_bytes(66)).hexdigest()
    rows.append(("digest of the share at place 3, of a for c", digest))
    rows.append(("ids in a list", encode_ids(["a", "b", "c"]).decode()))
    rows += [
        (f"complaint about {' and '.join(ids)}", encode_complaint(ids).hex())
        for ids in (["a1", "b"], ["a12", "bcde"])
    ]
    return rows


def make_draws() -> list[tuple[str, str]]:
    """Return the first draws of a client in a round."""
    return [
        (
            "seed 7, round 1, client pi-1: two u64",
            json.dumps(derive_rng(7, 1, "pi-1").integers(0, 2**64, 2, np.uint64).tolist()),
        )
    ]


def make_verdicts() -> list[tuple[str, str]]:
    """Return the message of a verdict on two devices. The second device reports no counts."""
    figures = {"accuracy_local": 0.75, "accuracy_federated": 0.625, "accuracy_shipped": 0.875}
    rows = [
        {"id": "pi-1", **figures, "shipped": 2.0, "test_gained": 5.0, "test_lost": 0.0},
        {"id": "pi-2", **figures, "accuracy_shipped_int8": 1 / 3, "shipped": 3.0},
    ]
    message = make_verdict_message(judge_federation(rows), "0123456789abcdef", 1700000003.0, with_rows=True)
    return [("topic", FederationTopics("kitchen").verdict), ("Verdict", encode_json(message).decode())]


SECTIONS = {
    "Topics and chunks": make_chunks,
    "Signatures": make_signatures,
    "Blobs": make_blobs,
    "Codecs": make_codecs,
    "Verdict": make_verdicts,
    "Secure aggregation": make_masked_sum,
    "Draws": make_draws,
}
HEAD = """# Test vectors

For authors of another implementation of [the protocol](protocol.md). edgefl's code makes them (`tests/protocol_vectors.py`). A test
makes them again and compares, and another checks them with Python's standard library and the package `cryptography` alone. Deflated bytes
are none of them: any stream that unpacks to the same is right.

The delta is `fc/bias` = [0.5, -0.25, 0] and `fc/kernel` = [[1, -3, 0.1], [0.001, 2, -0.7]]. In what is signed and in the key
list, `\\n` stands for a newline, `\\t` for a tab.
In the masked sum three clients a, b and c send the same elements.
"""  # noqa: E501


def render() -> str:
    """Return the page."""
    parts = [HEAD]
    for title, rows in SECTIONS.items():
        parts.append(f"\n## {title}\n")
        parts += [f"\n{name}\n\n    {value}\n" for name, value in rows()]
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(render())
