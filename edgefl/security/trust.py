"""What one end of the wire signs, and whose signatures it wants: all of it, or nothing where nobody was enrolled."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from edgefl.errors import WireError

T = TypeVar("T")


@dataclass(frozen=True)
class Trust:
    """`key`: this end's private key, empty signs nothing. `key_of`: a client id -> the public key of who speaks under it.

    Without `key_of` nothing is checked. The aggregator speaks to a device under the device's id, to all under the empty one.
    """

    federation: str
    key: str = ""
    key_of: Callable[[str], str] | None = None

    def signed(self, message: T, client_id: str = "") -> T:
        """Return the message as it is sent."""
        if not self.key:
            return message
        from edgefl.security.signing import sign

        return sign(message, self.key, self.federation, client_id)

    def checked(self, message: T, client_id: str = "") -> T:
        """Return the message; WireError when it does not bear the signature that it must."""
        if self.key_of is not None:
            from edgefl.security.signing import check

            check(message, self.key_of(client_id), self.federation, client_id)
        return message


class Enrolments:
    """The public key of each device, read again when its file changes: a revoked device is out at its next word."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read_at = -1
        self._keys: dict[str, tuple[str, bool, str]] = {}

    def key_of(self, client_id: str) -> str:
        """Return a device's public key; WireError when it is not enrolled, or was revoked."""
        return self._entry(client_id)[0]

    def introduction_of(self, client_id: str) -> tuple[str, str]:
        """Return a device's public key and the authority's word for it. WireError as `key_of`, and when there is no such word."""
        key, voucher = self._entry(client_id)
        if not voucher:
            raise WireError(f"{client_id} was enrolled by an older edgefl, which made no voucher; revoke it and enrol it again")
        return key, voucher

    def _entry(self, client_id: str) -> tuple[str, str]:
        from edgefl.security.authority import devices

        changed = (self._directory / "devices.json").stat().st_mtime_ns
        if changed != self._read_at:
            self._keys = {name: (e.signing_key, e.revoked, e.voucher) for name, e in devices(self._directory).items()}
            self._read_at = changed
        key, revoked, voucher = self._keys.get(client_id, ("", False, ""))
        if not key or revoked:
            word = "was revoked" if revoked else "is not enrolled"
            raise WireError(f"{client_id} {word}; enrol it with `edgefl device enrol {client_id}`")
        return key, voucher
