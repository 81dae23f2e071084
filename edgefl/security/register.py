"""Who was enrolled: what the aggregator reads of the directory of a federation's keys, while it runs, without
the keys themselves.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from edgefl.errors import ConfigError
from edgefl.system.files import SECRET, parse_json, write_atomic


@dataclass(frozen=True)
class Enrolled:
    """What the aggregator knows of a device: its certificate's serial number (decimal), its public Ed25519
    key, and the authority's word for that, which it shows to the other devices (`certificates.vouch`); empty
    of who was enrolled before there was one.
    """

    serial: str
    signing_key: str
    revoked: bool = False
    voucher: str = ""


def voucher_until(voucher: str) -> float:
    """Return when a voucher says that it ends, seconds since 1970; 0 for none and for one of an older
    edgefl.
    """
    ending, mark, _ = voucher.partition(".")
    return float(ending) if mark and ending.isdecimal() else 0.0


def ending_vouchers(directory: Path, by: float) -> tuple[str, ...]:
    """Return the ids of devices that are not revoked and whose voucher ends by then, sorted.

    Args:
        directory: The directory of the federation's keys.
        by: Seconds since 1970.

    Raises:
        ConfigError: The list of devices cannot be read.
    """
    known = devices(directory).items()
    return tuple(
        sorted(
            name
            for name, each in known
            if each.signing_key and not each.revoked and voucher_until(each.voucher) <= by
        )
    )


def devices(directory: Path) -> Mapping[str, Enrolled]:
    """Return who was enrolled, by id. ConfigError when this is no directory of keys."""
    path = directory / "devices.json"
    try:
        return {client_id: Enrolled(**entry) for client_id, entry in parse_json(path.read_text()).items()}
    except FileNotFoundError as error:
        raise ConfigError(
            f"{directory} holds no keys; make them with `edgefl broker init {directory} --host NAME`"
        ) from error
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"cannot read {path}: {error}; restore it from a copy") from error


def save_devices(directory: Path, known: Mapping[str, Enrolled]) -> None:
    """Write who was enrolled, by id."""
    text = json.dumps({client_id: asdict(known[client_id]) for client_id in sorted(known)}, indent=1) + "\n"
    write_atomic(directory / "devices.json", text.encode(), SECRET)
