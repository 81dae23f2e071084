"""Ed25519 (RFC 8032) by libsodium, or by OpenSSL on a board for which there is no wheel of it (32 bits).

Signatures are the same bits.

In a process that signs, libsodium takes 2 MB of memory where the package `cryptography` takes 9, and half its
time for a check.
"""

from collections.abc import Callable

Sign = Callable[[bytes], bytes]
"""A message -> its signature, 64 bytes."""
Verify = Callable[[bytes, bytes], bool]
"""A signature of any length and the message -> whether the one is the other's."""

try:
    from nacl.exceptions import BadSignatureError
    from nacl.signing import SigningKey, VerifyKey

    def derive_public_bytes(seed: bytes) -> bytes:
        """Return the public half, 32 bytes, of a private key of 32 bytes."""
        return bytes(SigningKey(seed).verify_key)

    def make_signer(seed: bytes) -> Sign:
        """Return what signs with this private key, 32 bytes."""
        key = SigningKey(seed)
        return lambda message: key.sign(message).signature

    def make_verifier(public: bytes) -> Verify:
        """Return what checks signatures of the owner of this public key, 32 bytes."""
        key = VerifyKey(public)

        def fits(signature: bytes, message: bytes) -> bool:
            try:
                key.verify(message, signature)
            except (BadSignatureError, ValueError):
                return False
            return True

        return fits

except ImportError:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

    def derive_public_bytes(seed: bytes) -> bytes:
        """Return the public half, 32 bytes, of a private key of 32 bytes."""
        return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()

    def make_signer(seed: bytes) -> Sign:
        """Return what signs with this private key, 32 bytes."""
        return Ed25519PrivateKey.from_private_bytes(seed).sign

    def make_verifier(public: bytes) -> Verify:
        """Return what checks signatures of the owner of this public key, 32 bytes."""
        key = Ed25519PublicKey.from_public_bytes(public)

        def is_valid(signature: bytes, message: bytes) -> bool:
            try:
                key.verify(signature, message)
            except InvalidSignature:
                return False
            return True

        return is_valid
