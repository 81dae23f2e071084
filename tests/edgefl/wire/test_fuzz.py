"""Every decoder of what comes from outside: a hundred thousand damaged inputs, no other error than its own, no memory beyond the limit."""

import base64
import contextlib
import json
import tracemalloc
from dataclasses import fields
from functools import partial

import numpy as np
import pytest

from edgefl.checkpoint import decode_client_state, decode_mixture, decode_server_state, encode_server_state
from edgefl.errors import EdgeflError
from edgefl.plan.spec import TensorSpec, decode_plan
from edgefl.security.signing import public_of
from edgefl.security.trust import Trust
from edgefl.types import ServerState
from edgefl.wire import messages
from edgefl.wire.strict_json import decode_json, encode_json
from edgefl.wire.tensors import decode_models, encode_models
from edgefl.wire.topics import parse_topic
from edgefl.wire.url import parse_url

WEIGHTS = {"fc/kernel": np.arange(12, dtype=np.float32).reshape(3, 4), "fc/bias": np.ones(4, np.float32)}
SPECS = {"global": tuple(TensorSpec(name, array.shape) for name, array in WEIGHTS.items())}
SHA = "ab" * 32
SAID = [
    messages.State("f", "s", "federate", 1, 3, 2, 9.0, SHA, 1.0, started=17 * 10**11, settings={"a": 1.0}),
    messages.Status("pi-1", "b", True, 1.0, 5, "0.1.0", 1.0),
    messages.Task(
        "s", 1, "federate", SHA, {"global": SHA}, {"a": 1.0}, 1, 9.0, "fp32", 1, 2.5, "n", 1.0, started=1700000000000, settings={"b": 1.0}
    ),
    messages.Manifest(SHA, 10, 1, 65536, 1.0),
    messages.Begin("pi-1", "s", 1, SHA, SHA, 10, 1, 65536, 5, {"loss": 0.5}, "n", 1.0),
    messages.End(SHA, 1, 1.0),
    messages.Receipt(1, SHA, "missing", ((0, 1),), "", "n", 1.0),
    messages.Want(SHA, ((0, 1), (2, 3)), 1.0),
    messages.Claim("b", 1.0),
    messages.Metrics("pi-1", 1, {"loss": 0.5}, 50.0, 60.0, 45.5, 1.5, 1.0),
    messages.Summary(1, "federate", 2, 0.5, 0.9, 0.8, 1.0, 100, 200, 3.5, ("pi-2",), 1.0, {"auc": 0.5}),
    messages.Clusters("s", 1, {"pi-1": 0}, "fc1", ("pi-1", "pi-2"), ((1.0, 0.5), (0.5, 1.0)), ((0, 1, 0.5, 2),), 0.6, 1.0),
]
JSONS = [(partial(decode_json, type(message)), encode_json(message)) for message in SAID]
KEY = base64.b64encode(bytes(range(32))).decode()
TRUST = Trust("f", KEY, lambda client_id: public_of(KEY))


def read_signed(kind, blob):
    return TRUST.checked(decode_json(kind, blob), blob, "pi-1")


SIGNED = [(partial(read_signed, type(each)), TRUST.encode(each, "pi-1")) for each in SAID if hasattr(each, "signature")]
TENSORS = [
    (lambda blob, codec=codec: decode_models(blob, SPECS, "pi-1", codec), encode_models({"global": WEIGHTS}, codec))
    for codec in ("fp32", "fp16", "int8", "top-10", "int8+deflate", "top-10+deflate")
]
STATE = encode_server_state(ServerState(1, "federate", {"global": WEIGHTS}))
FILES = [(decode, STATE) for decode in (decode_server_state, decode_client_state, decode_mixture, decode_plan)]
TOPICS = [
    (lambda blob: parse_topic(blob.decode("latin-1")), f"edgefl/v2/f/device/pi-1/up/{SHA}/0".encode()),
    (lambda blob: parse_url(blob.decode("latin-1")), b"mqtts://user:word@host:8883"),
]
EACH = 100_000 // len(JSONS + SIGNED + TENSORS + FILES + TOPICS) + 1
LIMIT = 2_000_000
NASTY = [
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
]


def damaged(blob: bytes, rng: np.random.Generator) -> bytes:
    """Cut, flip, repeat, swap or grow: a few of these one after the other."""
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
                made[at : at + 8] = int(rng.choice([0, 1, 2**31, 2**62, 2**63 - 1])).to_bytes(8, "little")
            case 6:
                made[at:at] = NASTY[int(rng.integers(0, len(NASTY)))]
    return bytes(made)


@pytest.mark.parametrize(
    ("name", "cases"), [("json", JSONS), ("signed", SIGNED), ("tensors", TENSORS), ("files", FILES), ("topics", TOPICS)]
)
def test_damaged_input_is_an_error_of_ours_or_fine(name, cases):
    rng = np.random.default_rng(7)
    refused = 0
    for decode, fine in cases:
        for _ in range(EACH):
            try:
                decode(damaged(fine, rng))
            except EdgeflError:
                refused += 1
    assert refused > 0.5 * EACH


def test_no_input_takes_more_memory_than_the_limit():
    rng = np.random.default_rng(8)
    tracemalloc.start()
    try:
        for decode, fine in (*JSONS, *SIGNED, *TENSORS, *FILES, *TOPICS):
            for blob in (*NASTY, *(damaged(fine, rng) for _ in range(150))):
                tracemalloc.reset_peak()
                before = tracemalloc.get_traced_memory()[0]
                with contextlib.suppress(EdgeflError):
                    decode(blob)
                assert tracemalloc.get_traced_memory()[1] - before < LIMIT, blob[:80]
    finally:
        tracemalloc.stop()


def test_a_header_that_promises_terabytes_is_refused_before_anything_is_taken():
    header = {"global/fc/kernel": {"dtype": "F32", "shape": [2**40, 2**20], "data_offsets": [0, 2**62]}}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    tracemalloc.start()
    try:
        with pytest.raises(EdgeflError):
            decode_models(len(text).to_bytes(8, "little") + text, SPECS, "pi-1")
        assert tracemalloc.get_traced_memory()[1] < LIMIT
    finally:
        tracemalloc.stop()


def test_every_message_is_here():
    classes = {cls for cls in vars(messages).values() if isinstance(cls, type) and cls.__module__ == messages.__name__ and fields(cls)}
    assert {type(message) for message in SAID} >= classes
