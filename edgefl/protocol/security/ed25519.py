"""Ed25519 signatures by libsodium, or by OpenSSL on a board without a wheel of libsodium (32 bits).

Both give the same signatures. In a process that signs, libsodium takes 2 MB of memory and `cryptography` 9
MB. A check with libsodium takes half the time.

Source: RFC 8032.
"""

from collections.abc import Callable

Sign = Callable[[bytes], bytes]
"""A function from a message to its signature of 64 bytes."""
Verify = Callable[[bytes, bytes], bool]
"""A function from a signature of any length and a message to whether the signature is valid."""

try:
    from nacl.exceptions import BadSignatureError
    from nacl.signing import SigningKey, VerifyKey

    def derive_public_bytes(seed: bytes) -> bytes:
        """Return the public key (32 bytes) of a private key.

        Args:
            seed: private key, 32 bytes.
        """
        return bytes(SigningKey(seed).verify_key)

    def make_signer(seed: bytes) -> Sign:
        """Return a signer for a private key.

        Args:
            seed: private key, 32 bytes.
        """
        key = SigningKey(seed)
        return lambda message: key.sign(message).signature

    def make_verifier(public: bytes) -> Verify:
        """Return a verifier for the signatures of a public key.

        Args:
            public: public key, 32 bytes.
        """
        key = VerifyKey(public)

        def is_valid(signature: bytes, message: bytes) -> bool:
            try:
                key.verify(message, signature)
            except (BadSignatureError, ValueError):
                return False
            return True

        return is_valid

except ImportError:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

    def derive_public_bytes(seed: bytes) -> bytes:
        """Return the public key (32 bytes) of a private key.

        Args:
            seed: private key, 32 bytes.
        """
        return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()

    def make_signer(seed: bytes) -> Sign:
        """Return a signer for a private key.

        Args:
            seed: private key, 32 bytes.
        """
        return Ed25519PrivateKey.from_private_bytes(seed).sign

    def make_verifier(public: bytes) -> Verify:
        """Return a verifier for the signatures of a public key.

        Args:
            public: public key, 32 bytes.
        """
        key = Ed25519PublicKey.from_public_bytes(public)

        def is_valid(signature: bytes, message: bytes) -> bool:
            try:
                key.verify(signature, message)
            except InvalidSignature:
                return False
            return True

        return is_valid
