"""Copied sources equal their release, byte for byte."""

import hashlib
from pathlib import Path

import pytest

MONOCYPHER = Path(__file__).parents[3] / "firmware_export/templates/ota/monocypher"
# Digests of release 4.0.3 from https://monocypher.org. PyPI's pymonocypher 4.0.3.4 contains the same bytes.
RELEASED = {
    "monocypher.c": "57eb914fc88136119bd41655cccb8c250048bf54d470540625186f8ab16f64be",
    "monocypher.h": "c494da712122da7ff679fdcf318a5317e84972b6c950fe9d896212947797facd",
}


@pytest.mark.parametrize("name", RELEASED)
def test_copied_monocypher_equals_its_release(name: str) -> None:
    content = (MONOCYPHER / name).read_bytes()
    assert content.splitlines()[0] == b"// Monocypher version 4.0.3"
    assert hashlib.sha256(content).hexdigest() == RELEASED[name]
