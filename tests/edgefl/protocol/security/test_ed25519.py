"""Both Ed25519 libraries against the vectors of RFC 8032, section 7.1, and against each other."""

import importlib.util
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.protocol.security import ed25519

VECTORS = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
]
SEEDS = st.binary(min_size=32, max_size=32)


def load_without_libsodium():
    """Import the module as on a system without `nacl`."""
    spec = importlib.util.spec_from_file_location("ed25519_of_openssl", ed25519.__file__)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "nacl.exceptions", None)
        spec.loader.exec_module(module)
    return module


OPENSSL = load_without_libsodium()
BOTH = pytest.mark.parametrize("module", [ed25519, OPENSSL], ids=["libsodium", "openssl"])


def test_modules_use_two_different_libraries():
    assert hasattr(ed25519, "VerifyKey") and not hasattr(OPENSSL, "VerifyKey")


@BOTH
@pytest.mark.parametrize("seed, public, message, signature", VECTORS)
def test_rfc_8032_vectors_match(module, seed, public, message, signature):
    seed, public, message, signature = map(bytes.fromhex, (seed, public, message, signature))
    assert module.derive_public_bytes(seed) == public
    assert module.make_signer(seed)(message) == signature
    assert module.make_verifier(public)(signature, message) is True
    assert module.make_verifier(public)(signature, message + b"x") is False


@BOTH
@pytest.mark.parametrize("signature", [b"", bytes(63), bytes(64), bytes(65), b"\xff" * 64])
def test_invalid_signature_is_rejected(module, signature):
    assert module.make_verifier(module.derive_public_bytes(bytes(32)))(signature, b"word") is False


@BOTH
@pytest.mark.parametrize("public", [b"\xff" * 32, bytes(32)])
def test_invalid_public_key_accepts_no_signature(module, public):
    assert module.make_verifier(public)(b"\x01" * 64, b"word") is False


@given(SEEDS, st.binary(max_size=300), st.integers(0, 511))
def test_libraries_make_equal_signatures_and_verify_each_other(seed, message, bit):
    signature = ed25519.make_signer(seed)(message)
    assert OPENSSL.make_signer(seed)(message) == signature
    public = ed25519.derive_public_bytes(seed)
    assert OPENSSL.derive_public_bytes(seed) == public
    flipped = bytearray(signature)
    flipped[bit // 8] ^= 1 << bit % 8
    for module in (ed25519, OPENSSL):
        verify = module.make_verifier(public)
        assert verify(signature, message) and not verify(bytes(flipped), message)
