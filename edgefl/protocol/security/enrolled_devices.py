"""Reads and writes the list of enrolled devices.

The list is the part of a federation's key directory that a running aggregator reads. It contains no private
keys.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from edgefl.base.errors import ConfigError
from edgefl.base.system.files import SECRET_MODE, parse_json, write_atomic


@dataclass(frozen=True)
class EnrolledDevice:
    """The entry of a device in the list of enrolled devices.

    Attributes:
        serial: serial number of the device's certificate, decimal.
        signing_key: public Ed25519 key in base64. "" for the watcher, which signs nothing.
        revoked: whether the device was revoked.
        voucher: the authority's voucher for the signing key (`certificates.sign_voucher`), for other devices.
            "" if an older edgefl enrolled the device.
    """

    serial: str
    signing_key: str
    revoked: bool = False
    voucher: str = ""


def parse_voucher_end(voucher: str) -> float:
    """Return the time at which a voucher ends, in seconds since 1970.

    An empty voucher, and a voucher of an older edgefl, ends at 0. The signature is not checked.
    """
    ending, mark, _ = voucher.partition(".")
    return float(ending) if mark and ending.isdecimal() else 0.0


def list_ending_vouchers(directory: Path, by: float) -> tuple[str, ...]:
    """Return the sorted ids of the devices whose voucher ends by a time, without revoked devices.

    Args:
        directory: key directory of the federation.
        by: seconds since 1970.

    Raises:
        ConfigError: the list of devices cannot be read.
    """
    enrolled = load_enrolled_devices(directory).items()
    return tuple(
        sorted(
            name
            for name, device in enrolled
            if device.signing_key and not device.revoked and parse_voucher_end(device.voucher) <= by
        )
    )


def load_enrolled_devices(directory: Path) -> Mapping[str, EnrolledDevice]:
    """Return the enrolled devices by id, including revoked devices and the watcher.

    Args:
        directory: key directory of the federation.

    Raises:
        ConfigError: the directory has no list of devices, or the list cannot be read.
    """
    path = directory / "devices.json"
    try:
        return {
            client_id: EnrolledDevice(**entry) for client_id, entry in parse_json(path.read_text()).items()
        }
    except FileNotFoundError as error:
        raise ConfigError(
            f"{directory} contains no keys; create them with `edgefl broker init {directory} --host NAME`"
        ) from error
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"cannot read {path}: {error}; restore it from a copy") from error


def save_enrolled_devices(directory: Path, enrolled: Mapping[str, EnrolledDevice]) -> None:
    """Write the list of enrolled devices.

    Args:
        directory: key directory of the federation.
        enrolled: devices by id.
    """
    text = (
        json.dumps({client_id: asdict(enrolled[client_id]) for client_id in sorted(enrolled)}, indent=1)
        + "\n"
    )
    write_atomic(directory / "devices.json", text.encode(), SECRET_MODE)
