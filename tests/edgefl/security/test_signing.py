"""Signatures: RFC 8032's own vector, and that no byte of what was said may change."""

import base64
import json
import re
from contextlib import nullcontext
from dataclasses import fields, replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from edgefl.errors import ConfigError, WireError
from edgefl.security import signing
from edgefl.security.signing import derive_public_key, encode_signed, generate_signing_key
from edgefl.security.trust import DeviceKeys, Trust
from edgefl.wire.messages import Begin, Receipt, Task
from edgefl.wire.strict_json import MAX_JSON_BYTES, decode_json, encode_json

BEGIN = Begin("pi-1", "s", 3, "p", "ab" * 32, 10, 1, 65536, 5, {"loss": 0.5}, "n1", 1.5)
KEY = generate_signing_key()
SAID = encode_signed(BEGIN, KEY, "kitchen", "pi-1")


def check(message, public, *rest):
    """As the message is written by edgefl."""
    signing.check_signature(message, encode_json(message), public, *rest)


def signed_begin():
    return decode_json(Begin, SAID)


def test_a_public_key_is_that_of_rfc_8032():
    """Section 7.1, test 1."""
    private = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    public = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
    assert base64.b64decode(derive_public_key(base64.b64encode(private).decode())) == public


@given(st.sampled_from([field.name for field in fields(Begin) if field.name != "signature"]))
def test_no_field_can_be_changed(name):
    signed = signed_begin()
    check(signed, derive_public_key(KEY), "kitchen", "pi-1")
    value = getattr(signed, name)
    other = (
        {**value, "loss": 0.6} if isinstance(value, dict) else value + ("x" if isinstance(value, str) else 1)
    )
    with pytest.raises(WireError, match="wrong signature"):
        check(replace(signed, **{name: other}), derive_public_key(KEY), "kitchen", "pi-1")


def test_a_signature_is_for_one_federation_device_kind_and_key():
    signed = signed_begin()
    receipt = Receipt(3, "ab" * 32, "ok", (), "", "n1", 1.5, signed.signature)
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


def as_travelled(text):
    """Return a text signed by another program: its blanks, order and numbers are its own."""
    head, field, rest = text.rpartition('"signature":"')
    said = f"edgefl/v2 kitchen Begin pi-1\n{text}".encode()
    key = Ed25519PrivateKey.from_private_bytes(base64.b64decode(KEY))
    return f"{head}{field}{base64.b64encode(key.sign(said)).decode()}{rest}".encode()


def test_what_is_signed_is_what_travels():
    written = {**json.loads(encode_json(BEGIN)), "ts": 2, "metrics": {"loss": 5e-1}}
    text = json.dumps(written, indent=1).replace('"signature": "', '"signature":"')
    payload = as_travelled(text)
    told = decode_json(Begin, payload)
    assert (told.ts, told.metrics) == (2.0, {"loss": 0.5})
    signing.check_signature(told, payload, derive_public_key(KEY), "kitchen", "pi-1")
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
def test_a_signature_is_not_looked_for_elsewhere(change):
    """The field with a blank in it; a text behind the signature; the field once more behind the message."""
    other = SAID.decode().replace(*change).encode()
    assert other != SAID
    with pytest.raises(WireError, match="wrong signature"):
        signing.check_signature(signed_begin(), other, derive_public_key(KEY), "kitchen", "pi-1")


@pytest.mark.parametrize("signature", ["\\ud800", "\\u00e9", "%%%", "AAAA", "\\u0041AAA", 'AAAA\\"'])
def test_a_text_that_is_no_signature(signature):
    other = re.sub(r'"signature":"[^"]*"', lambda _: f'"signature":"{signature}"', SAID.decode()).encode()
    with pytest.raises(WireError, match=r"wrong signature|whole characters"):
        signing.check_signature(decode_json(Begin, other), other, derive_public_key(KEY), "kitchen", "pi-1")


@given(st.integers(0, len(SAID) - 1), st.integers(0, 255))
def test_no_byte_of_a_message_can_be_changed(place, byte):
    other = bytes([*SAID[:place], byte, *SAID[place + 1 :]])
    with nullcontext() if other == SAID else pytest.raises(WireError):
        signing.check_signature(decode_json(Begin, other), other, derive_public_key(KEY), "kitchen", "pi-1")


def test_a_signature_stands_in_its_field_alone():
    named = replace(BEGIN, client_id='"signature":"', metrics={"signature": 1.0, '"signature":""': 2.0})
    signed = decode_json(Begin, encode_signed(named, KEY, "kitchen"))
    check(signed, derive_public_key(KEY), "kitchen")
    assert replace(signed, signature="") == named
    models = {"a": "1", "signature": ""}
    task = Task("s", 1, "federate", "p", models, {}, 0, 1.0, "fp32", 0, 0.0, "n", 1.0)
    assert replace(decode_json(Task, encode_signed(task, KEY, "kitchen")), signature="") == task


def test_a_message_may_be_too_large_by_its_signature():
    large = replace(BEGIN, metrics={f"{i:01000}": 1.0 for i in range(64)})
    large = replace(large, session="s" * (1 + MAX_JSON_BYTES - len(encode_json(large))))
    assert len(encode_json(large)) == MAX_JSON_BYTES
    with pytest.raises(WireError, match=r"Begin is \d+ bytes, expected at most"):
        encode_signed(large, KEY, "kitchen")


def test_what_is_no_key():
    for key in ("", "!!", "AAAA", base64.b64encode(bytes(31)).decode()):
        with pytest.raises(ConfigError, match="enrol again"):
            encode_signed(BEGIN, key, "f")
        with pytest.raises(ConfigError, match="enrol again"):
            check(signed_begin(), key, "f")


def test_without_keys_nothing_is_signed_or_asked_for(tmp_path):
    open_trust = Trust("f")
    assert open_trust.check(BEGIN, b"") is BEGIN
    assert open_trust.encode(BEGIN) == encode_json(BEGIN)
    (tmp_path / "devices.json").write_text("{}")
    with pytest.raises(WireError, match="pi-1 is not enrolled"):
        Trust("f", find_key=DeviceKeys(tmp_path).find_key).check(BEGIN, b"", "pi-1")
