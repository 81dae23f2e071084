"""What one end of the wire signs, and whose signatures it wants: all of it, or nothing where nobody was
enrolled.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from edgefl.errors import WireError
from edgefl.security.enrolled_devices import load_enrolled_devices, parse_voucher_end
from edgefl.wire.strict_json import encode_json
from edgefl.wire.topics import TOPIC_PREFIX

T = TypeVar("T")


@dataclass(frozen=True)
class Trust:
    """`key`: this end's private key, empty signs nothing.

    `key_of`: a client id -> the public key of who speaks under it.

    Without `key_of` nothing is checked. The aggregator speaks to a device under the device's id, to all under
    the empty one. `prefix`: the version of the protocol that outgoing messages belong to.
    `clients`: the ids of the devices that may take part; empty for all.
    """

    federation: str
    key: str = ""
    find_key: Callable[[str], str] | None = None
    prefix: str = TOPIC_PREFIX
    clients: frozenset[str] = frozenset()

    def encode(self, message: object, client_id: str = "") -> bytes:
        """Return the message as it is sent; its field `signature` is empty before.

        WireError when it is too large.
        """
        if not self.key:
            return encode_json(message)
        from edgefl.security.signing import encode_signed

        return encode_signed(message, self.key, self.federation, client_id, self.prefix)

    def check(self, message: T, payload: bytes, client_id: str = "") -> T:
        """Return the message, which was read from this payload.

        WireError when it does not bear the signature that it must.
        """
        if self.find_key is not None:
            from edgefl.security.signing import check_signature

            check_signature(message, payload, self.find_key(client_id), self.federation, client_id)
        return message

    def is_admitted(self, client_id: str) -> bool:
        """Whether a client may take part in this federation.

        Who is enrolled is another question, see `refusal`.
        """
        return not self.clients or client_id in self.clients

    def explain_refusal(self, client_id: str) -> str:
        """Return why messages of a client count for nothing: it is not enrolled, or it was revoked.

        Empty: they count.
        """
        if self.find_key is None:
            return ""
        try:
            self.find_key(client_id)
        except WireError as error:
            return str(error)
        return ""


class DeviceKeys:
    """The public key of each device, read again when its file changes: a revoked device is out at its next
    word.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read_at = -1
        # an aggregator holds this for each of hundreds of devices; empty: revoked
        self._keys: dict[str, str] = {}
        self._vouchers: dict[str, str] = {}

    def find_key(self, client_id: str) -> str:
        """Return a device's public key; WireError when it is not enrolled, or was revoked."""
        self._read()
        key = self._keys.get(client_id)
        if not key:
            reason = "is not enrolled" if key is None else "was revoked"
            raise WireError(f"{client_id} {reason}; enrol it with `edgefl device enrol {client_id}`")
        return key

    def find_introduction(self, client_id: str) -> tuple[str, str]:
        """Return a device's public key and the authority's voucher for it.

        Raises:
            WireError: As `key_of`; the device has no voucher, or one that ended.
        """
        key = self.find_key(client_id)
        self._vouchers = self._vouchers or {
            name: device.voucher for name, device in load_enrolled_devices(self._directory).items()
        }
        voucher = self._vouchers.get(client_id, "")
        if parse_voucher_end(voucher) <= time.time():
            problem = "ended" if parse_voucher_end(voucher) else "is missing, or is one of an older edgefl"
            raise WireError(
                f"the authority's voucher for the key of {client_id} {problem}; renew all with `edgefl "
                f"broker "
                "vouch`"
            )
        return key, voucher

    def _read(self) -> None:
        changed = (self._directory / "devices.json").stat().st_mtime_ns
        if changed != self._read_at:
            self._keys = {
                sys.intern(name): "" if device.revoked else device.signing_key
                for name, device in load_enrolled_devices(self._directory).items()
            }
            self._vouchers = {}
            self._read_at = changed
