"""Who was enrolled: what the aggregator reads of the directory of a federation's keys, while it runs, without
the keys themselves.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from edgefl.errors import ConfigError
from edgefl.system.files import SECRET_MODE, parse_json, write_atomic


@dataclass(frozen=True)
class EnrolledDevice:
    """What the aggregator knows of a device: its certificate's serial number (decimal), its public Ed25519
    key, and the authority's word for that, which it shows to the other devices (`certificates.vouch`); empty
    of who was enrolled before there was one.
    """

    serial: str
    signing_key: str
    revoked: bool = False
    voucher: str = ""


def parse_voucher_end(voucher: str) -> float:
    """Return when a voucher says that it ends, seconds since 1970; 0 for none and for one of an older
    edgefl.
    """
    ending, mark, _ = voucher.partition(".")
    return float(ending) if mark and ending.isdecimal() else 0.0


def list_ending_vouchers(directory: Path, by: float) -> tuple[str, ...]:
    """Return the ids of devices that are not revoked and whose voucher ends by then, sorted.

    Args:
        directory: The directory of the federation's keys.
        by: Seconds since 1970.

    Raises:
        ConfigError: The list of devices cannot be read.
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
    """Return who was enrolled, by id. ConfigError when this is no directory of keys."""
    path = directory / "devices.json"
    try:
        return {
            client_id: EnrolledDevice(**entry) for client_id, entry in parse_json(path.read_text()).items()
        }
    except FileNotFoundError as error:
        raise ConfigError(
            f"{directory} holds no keys; make them with `edgefl broker init {directory} --host NAME`"
        ) from error
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"cannot read {path}: {error}; restore it from a copy") from error


def save_enrolled_devices(directory: Path, enrolled: Mapping[str, EnrolledDevice]) -> None:
    """Write who was enrolled, by id."""
    text = (
        json.dumps({client_id: asdict(enrolled[client_id]) for client_id in sorted(enrolled)}, indent=1)
        + "\n"
    )
    write_atomic(directory / "devices.json", text.encode(), SECRET_MODE)
