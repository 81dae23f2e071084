"""Signs outgoing messages and checks incoming ones, or does neither without enrolment."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from edgefl.base.errors import WireError
from edgefl.protocol.security.enrolled_devices import load_enrolled_devices, parse_voucher_end
from edgefl.protocol.wire.strict_json import encode_json

T = TypeVar("T")


@dataclass(frozen=True)
class Trust:
    """The signing rules of one side of a federation.

    The aggregator signs messages to a device under the device's id, and messages to all under the empty id.

    Attributes:
        federation: name of the federation.
        key: private Ed25519 key of this side in base64. "" to send messages without a signature.
        find_key: returns the public key for a client id, or raises WireError. None to accept messages without
            a check.
        clients: ids of the devices that may take part. Empty for all devices.
    """

    federation: str
    key: str = ""
    find_key: Callable[[str], str] | None = None
    clients: frozenset[str] = frozenset()

    def encode(self, message: object, client_id: str = "") -> bytes:
        """Return a message as JSON, signed if this side has a key.

        Args:
            message: instance of a message class with an empty `signature`.
            client_id: client id in the topic, or "" if the topic has none.

        Raises:
            WireError: the message is too large.
        """
        if not self.key:
            return encode_json(message)
        from edgefl.protocol.security.signing import encode_signed

        return encode_signed(message, self.key, self.federation, client_id)

    def encode_now(self, message: object, receiver: str | None) -> bytes:
        """Return a message as JSON with the present time.

        Args:
            message: instance of a message class with the field `ts`.
            receiver: client id in the topic of a signed message, or "" if the topic has none. None does not
                sign the message.

        Raises:
            WireError: the message is too large.
        """
        timed = replace(message, ts=time.time())  # type: ignore[type-var]
        return encode_json(timed) if receiver is None else self.encode(timed, receiver)

    def check(self, message: T, payload: bytes, client_id: str = "") -> T:
        """Return the message if its signature is valid, or if this side checks no signatures.

        Args:
            message: the message as decoded from the payload.
            payload: the received JSON.
            client_id: client id in the topic, or "" if the topic has none.

        Raises:
            WireError: the signature is missing or not valid, or the sender is not enrolled.
        """
        if self.find_key is not None:
            from edgefl.protocol.security.signing import check_signature

            check_signature(message, payload, self.find_key(client_id), self.federation, client_id)
        return message

    def is_admitted(self, client_id: str) -> bool:
        """Return whether a client may take part in this federation.

        Enrolment is checked separately, see `explain_refusal`.
        """
        return not self.clients or client_id in self.clients

    def explain_refusal(self, client_id: str) -> str:
        """Return why messages of a client are rejected, or "" if they are accepted.

        A client is rejected if it is not enrolled, or if it was revoked.
        """
        if self.find_key is None:
            return ""
        try:
            self.find_key(client_id)
        except WireError as error:
            return str(error)
        return ""


class DeviceKeys:
    """The public keys of the enrolled devices.

    The file is read again when it changes, so the next message of a revoked device is rejected.

    Args:
        directory: key directory of the federation.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read_at: int | None = None
        # only keys, because an aggregator has hundreds of devices. An empty key means revoked
        self._keys: dict[str, str] = {}
        self._vouchers: dict[str, str] = {}

    def find_key(self, client_id: str) -> str:
        """Return the public key of a device, in base64.

        Raises:
            WireError: the device is not enrolled, or was revoked.
            ConfigError: the list of devices cannot be read.
        """
        self._read()
        key = self._keys.get(client_id)
        if not key:
            reason = "is not enrolled" if key is None else "was revoked"
            raise WireError(f"{client_id} {reason}; enrol it with `edgefl device enrol {client_id}`")
        return key

    def find_introduction(self, client_id: str) -> tuple[str, str]:
        """Return the public key of a device, in base64, and the authority's voucher for it.

        Raises:
            WireError: the device is not enrolled or was revoked, or its voucher is missing or has ended.
            ConfigError: the list of devices cannot be read.
        """
        key = self.find_key(client_id)
        self._vouchers = self._vouchers or {
            name: device.voucher for name, device in load_enrolled_devices(self._directory).items()
        }
        voucher = self._vouchers.get(client_id, "")
        if parse_voucher_end(voucher) <= time.time():
            problem = "ended" if parse_voucher_end(voucher) else "is missing, or was made by an older edgefl"
            raise WireError(
                f"the authority's voucher for the key of {client_id} {problem}; renew all "
                "vouchers with `edgefl broker vouch`"
            )
        return key, voucher

    def _read(self) -> None:
        changed: int | None
        try:
            changed = (self._directory / "devices.json").stat().st_mtime_ns
        except OSError:
            changed = None  # `load_enrolled_devices` fails too, and explains the error
        if changed is None or changed != self._read_at:
            self._keys = {
                sys.intern(name): "" if device.revoked else device.signing_key
                for name, device in load_enrolled_devices(self._directory).items()
            }
            self._vouchers = {}
            self._read_at = changed
