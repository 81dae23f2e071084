"""Signatures: a vector of RFC 8032, and messages with a changed byte, which are refused."""

import base64
import json
import re
from contextlib import nullcontext
from dataclasses import fields, replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.errors import ConfigError, WireError
from edgefl.protocol.security import signing
from edgefl.protocol.security.signing import derive_public_key, encode_signed, generate_signing_key
from edgefl.protocol.security.trust import DeviceKeys, Trust
from edgefl.protocol.wire.messages import Begin, Receipt, Task
from edgefl.protocol.wire.strict_json import MAX_JSON_BYTES, decode_json, encode_json

BEGIN = Begin(
    client_id="pi-1",
    session="s",
    round=3,
    plan="p",
    sha256="ab" * 32,
    size=10,
    count=1,
    chunk_bytes=65536,
    num_samples=5,
    metrics={"loss": 0.5},
    nonce="n1",
    ts=1.5,
)
KEY = generate_signing_key()
SIGNED_BYTES = encode_signed(BEGIN, KEY, "kitchen", "pi-1")


def check(message, public, *rest):
    """Check the signature of a message in the encoding of edgefl."""
    signing.check_signature(message, encode_json(message), public, *rest)


def decode_signed_begin():
    return decode_json(Begin, SIGNED_BYTES)


def test_public_key_matches_rfc_8032_vector():
    """The vector is test 1 of section 7.1."""
    private = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    public = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
    assert base64.b64decode(derive_public_key(base64.b64encode(private).decode())) == public


@given(st.sampled_from([field.name for field in fields(Begin) if field.name != "signature"]))
def test_changed_field_invalidates_the_signature(name):
    signed = decode_signed_begin()
    check(signed, derive_public_key(KEY), "kitchen", "pi-1")
    value = getattr(signed, name)
    other = (
        {**value, "loss": 0.6} if isinstance(value, dict) else value + ("x" if isinstance(value, str) else 1)
    )
    with pytest.raises(WireError, match="wrong signature"):
        check(replace(signed, **{name: other}), derive_public_key(KEY), "kitchen", "pi-1")


def test_signature_is_bound_to_federation_device_kind_and_key():
    signed = decode_signed_begin()
    receipt = Receipt(
        round=3,
        sha256="ab" * 32,
        outcome="ok",
        missing=(),
        reason="",
        nonce="n1",
        ts=1.5,
        signature=signed.signature,
    )
    for message, key, federation, client_id in (
        (signed, KEY, "garden", "pi-1"),
        (signed, KEY, "kitchen", "pi-2"),
        (signed, generate_signing_key(), "kitchen", "pi-1"),
        (receipt, KEY, "kitchen", "pi-1"),
        (replace(signed, signature="%%%"), KEY, "kitchen", "pi-1"),
        (replace(signed, signature="AAAA"), KEY, "kitchen", "pi-1"),
    ):
        with pytest.raises(WireError, match="wrong signature"):
            check(message, derive_public_key(key), federation, client_id)
    with pytest.raises(WireError, match="not signed"):
        check(BEGIN, derive_public_key(KEY), "kitchen", "pi-1")


def sign_text(text):
    """Sign a text as another program does, with other blanks, order and numbers than edgefl."""
    head, field, rest = text.rpartition('"signature":"')
    signed_bytes = f"edgefl/v2 kitchen Begin pi-1\n{text}".encode()
    key = Ed25519PrivateKey.from_private_bytes(base64.b64decode(KEY))
    return f"{head}{field}{base64.b64encode(key.sign(signed_bytes)).decode()}{rest}".encode()


def test_signature_covers_the_transmitted_bytes():
    written = {**json.loads(encode_json(BEGIN)), "ts": 2, "metrics": {"loss": 5e-1}}
    text = json.dumps(written, indent=1).replace('"signature": "', '"signature":"')
    payload = sign_text(text)
    decoded = decode_json(Begin, payload)
    assert (decoded.ts, decoded.metrics) == (2.0, {"loss": 0.5})
    signing.check_signature(decoded, payload, derive_public_key(KEY), "kitchen", "pi-1")
    for other in (payload.replace(b"\n", b"\n ", 1), payload.replace(b'"ts": 2', b'"ts": 3')):
        with pytest.raises(WireError, match="wrong signature"):
            signing.check_signature(
                decode_json(Begin, other), other, derive_public_key(KEY), "kitchen", "pi-1"
            )


@pytest.mark.parametrize(
    "change",
    [
        ('"signature":"', '"signature": "'),
        ('","follows', 'AAAA","follows'),
        ("false}", 'false}"signature":"'),
    ],
)
def test_signature_outside_its_field_is_refused(change):
    """The field contains a blank, text follows the signature, or the field follows the message again."""
    other = SIGNED_BYTES.decode().replace(*change).encode()
    assert other != SIGNED_BYTES
    with pytest.raises(WireError, match="wrong signature"):
        signing.check_signature(decode_signed_begin(), other, derive_public_key(KEY), "kitchen", "pi-1")


@pytest.mark.parametrize("signature", ["\\ud800", "\\u00e9", "%%%", "AAAA", "\\u0041AAA", 'AAAA\\"'])
def test_malformed_signature_is_refused(signature):
    other = re.sub(
        r'"signature":"[^"]*"', lambda _: f'"signature":"{signature}"', SIGNED_BYTES.decode()
    ).encode()
    with pytest.raises(WireError, match=r"wrong signature|whole characters"):
        signing.check_signature(decode_json(Begin, other), other, derive_public_key(KEY), "kitchen", "pi-1")


@given(st.integers(0, len(SIGNED_BYTES) - 1), st.integers(0, 255))
def test_changed_byte_invalidates_the_signature(place, byte):
    other = bytes([*SIGNED_BYTES[:place], byte, *SIGNED_BYTES[place + 1 :]])
    with nullcontext() if other == SIGNED_BYTES else pytest.raises(WireError):
        signing.check_signature(decode_json(Begin, other), other, derive_public_key(KEY), "kitchen", "pi-1")


def test_signature_like_text_in_other_fields_is_ignored():
    named = replace(BEGIN, client_id='"signature":"', metrics={"signature": 1.0, '"signature":""': 2.0})
    signed = decode_json(Begin, encode_signed(named, KEY, "kitchen"))
    check(signed, derive_public_key(KEY), "kitchen")
    assert replace(signed, signature="") == named
    models = {"a": "1", "signature": ""}
    task = Task(
        session="s",
        round=1,
        phase="federate",
        plan="p",
        models=models,
        scalars={},
        seed=0,
        deadline_s=1.0,
        codec="fp32",
        max_staleness=0,
        budget_s=0.0,
        nonce="n",
        ts=1.0,
    )
    assert replace(decode_json(Task, encode_signed(task, KEY, "kitchen")), signature="") == task


def test_message_made_too_large_by_its_signature_is_refused():
    large = replace(BEGIN, metrics={f"{i:01000}": 1.0 for i in range(64)})
    large = replace(large, session="s" * (1 + MAX_JSON_BYTES - len(encode_json(large))))
    assert len(encode_json(large)) == MAX_JSON_BYTES
    with pytest.raises(WireError, match=r"Begin is \d+ bytes, expected at most"):
        encode_signed(large, KEY, "kitchen")


def test_invalid_key_is_refused():
    for key in ("", "!!", "AAAA", base64.b64encode(bytes(31)).decode()):
        with pytest.raises(ConfigError, match="enrol again"):
            encode_signed(BEGIN, key, "f")
        with pytest.raises(ConfigError, match="enrol again"):
            check(decode_signed_begin(), key, "f")


def test_trust_without_keys_accepts_unsigned_messages(tmp_path):
    open_trust = Trust(federation="f")
    assert open_trust.check(BEGIN, b"") is BEGIN
    assert open_trust.encode(BEGIN) == encode_json(BEGIN)
    (tmp_path / "devices.json").write_text("{}")
    with pytest.raises(WireError, match="pi-1 is not enrolled"):
        Trust(federation="f", find_key=DeviceKeys(tmp_path).find_key).check(BEGIN, b"", "pi-1")


def test_list_of_devices_that_cannot_be_read_is_named(tmp_path):
    path = tmp_path / "devices.json"
    path.write_text("{}")
    keys = DeviceKeys(tmp_path)
    with pytest.raises(WireError, match="is not enrolled"):
        keys.find_key("pi-1")
    path.unlink()
    with pytest.raises(ConfigError, match=rf"{tmp_path} contains no keys; create them with"):
        keys.find_key("pi-1")
    path.mkdir()
    with pytest.raises(ConfigError, match=rf"cannot read {path}: .*Is a directory.*; restore it from a copy"):
        keys.find_key("pi-1")
    path.rmdir()
    path.write_text("{}")
    with pytest.raises(WireError, match="is not enrolled"):
        keys.find_key("pi-1")
