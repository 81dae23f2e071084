"""The directory of a federation's keys: its authority, the broker's certificate, the aggregator's enrolment,
and who was enrolled.

It stays on the machine of broker and aggregator. The authority's private key may lie in a directory of its
own, which all functions that sign take as `authority`: `ca.key` there is needed only to enrol and to revoke.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from edgefl.errors import ConfigError
from edgefl.security.certificates import (
    Certified,
    certify_client,
    certify_route,
    certify_server,
    make_authority,
    revocation_list,
    serial_of,
    vouch,
)
from edgefl.security.enrolment import Enrolment, load_enrolment, save_enrolment, write_secret
from edgefl.security.register import Enrolled, devices, save_devices
from edgefl.security.signing import new_key, public_of
from edgefl.system.files import SECRET, write_atomic
from edgefl.wire.topics import check_client_id

AGGREGATOR = "aggregator"
WATCHER = "watcher"
"""The account of monitors, which may read and may not write."""
AUTHORITY_DAYS = 3650
REVOCATION_DAYS = 3650
VOUCHER_DAYS = 90
"""For so long a hostile aggregator may use the signing key of a device after the owner revoked it."""
DAY_S = 86400.0


PUBLIC_MODE = 0o644
"""Certificates and the revocation list are public. The broker's account reads them, which may be another one
than wrote them.
"""


def create(
    directory: Path, hosts: Sequence[str], port: int, days: int, authority: Path | None = None
) -> None:
    """Make an authority, the broker's certificate and the aggregator's enrolment.

    Args:
        directory: Where they go.
        hosts: Names and addresses by which devices reach the broker; the first stands in every enrolment.
        port: The broker's port.
        days: How long the certificates of broker and aggregator are valid.
        authority: Where ca.key goes; without it into `directory`.

    Raises:
        ConfigError: A directory holds an authority already, or there is no host.
    """
    if (directory / "ca.pem").exists():
        raise ConfigError(
            f"{directory} holds an authority already; give another directory, or remove it and enrol every "
            "device again"
        )
    key_path = (authority or directory) / "ca.key"
    if key_path.exists():
        raise ConfigError(f"{key_path} is there already, the key of another authority; give another --ca")
    if not hosts:
        raise ConfigError(
            "no host, expected the name or address by which devices reach this machine; give --host"
        )
    certified = make_authority("edgefl authority", AUTHORITY_DAYS)
    write_secret(key_path, certified.key)
    names = [*hosts, *(each for each in ("localhost", "127.0.0.1") if each not in hosts)]
    server = certify_server(certified, names, days)
    route = certify_route(names, days)
    write_secret(directory / "server.key", server.key)
    write_atomic(directory / "server.pem", server.certificate.encode(), PUBLIC_MODE)
    write_secret(directory / "route.key", route.key)
    write_atomic(directory / "route.pem", route.certificate.encode(), PUBLIC_MODE)
    write_atomic(directory / "crl.pem", revocation_list(certified, [], REVOCATION_DAYS).encode(), PUBLIC_MODE)
    signing = new_key()
    own = certify_client(certified, AGGREGATOR, days)
    url = f"mqtts://{hosts[0]}:{port}"
    save_enrolment(
        Enrolment(
            AGGREGATOR, url, certified.certificate, own.certificate, own.key, signing, public_of(signing)
        ),
        directory / "aggregator.enrol",
    )
    save_devices(directory, {})
    # Last: its presence says that all is here
    write_atomic(directory / "ca.pem", certified.certificate.encode(), PUBLIC_MODE)


def enrol(
    directory: Path,
    client_id: str,
    days: int,
    authority: Path | None = None,
    voucher_days: int = VOUCHER_DAYS,
) -> Enrolment:
    """Return a new device's enrolment and note it.

    Args:
        directory: The directory of `create`.
        client_id: The device.
        days: How long its certificate is valid.
        authority: The directory of ca.key, when it is another one.
        voucher_days: For how long the authority vouches for its signing key, see `vouch_again`.

    Raises:
        ConfigError: The id is taken or is none, or ca.key cannot be read.
    """
    check_client_id(client_id)
    if client_id in (AGGREGATOR, WATCHER):
        raise ConfigError(f"the id {client_id!r} is the {client_id}'s own; take another, such as pi-1")
    known = devices(directory)
    if client_id in known and not known[client_id].revoked:
        raise ConfigError(
            f"{client_id} is enrolled already; for a new board in its place, `edgefl device revoke "
            f"{client_id}` first"
        )
    signer = _authority(directory, authority)
    aggregator = load_enrolment(directory / "aggregator.enrol")
    certified = certify_client(signer, client_id, days)
    signing = new_key()
    _revoked(directory, known, signer)
    public = public_of(signing)
    voucher = vouch(signer, client_id, public, time.time() + voucher_days * DAY_S)
    save_devices(
        directory,
        {**known, client_id: Enrolled(str(serial_of(certified.certificate)), public, voucher=voucher)},
    )
    return Enrolment(
        client_id,
        aggregator.broker,
        signer.certificate,
        certified.certificate,
        certified.key,
        signing,
        aggregator.aggregator_key,
    )


def vouch_again(directory: Path, days: int, authority: Path | None = None) -> tuple[str, ...]:
    """Renew the authority's vouchers for all devices that are not revoked, and return their ids.

    Only the aggregator holds vouchers, so no device is touched. The voucher of a revoked device ends at its
    time.

    Args:
        directory: The directory of `create`.
        days: How long the new vouchers are valid.
        authority: The directory of ca.key, when it is another one.

    Raises:
        ConfigError: ca.key or the list of devices cannot be read.
    """
    known = dict(devices(directory))
    signer = _authority(directory, authority)
    until = time.time() + days * DAY_S
    ids = tuple(
        sorted(client_id for client_id, entry in known.items() if entry.signing_key and not entry.revoked)
    )
    for client_id in ids:
        entry = known[client_id]
        known[client_id] = replace(entry, voucher=vouch(signer, client_id, entry.signing_key, until))
    save_devices(directory, known)
    return ids


def enrol_watcher(directory: Path, days: int, authority: Path | None = None) -> Enrolment:
    """Return the enrolment of the account that only reads, and note it.

    It has no signing key, so that nothing signed by it counts.

    ConfigError when it is there already.
    """
    known = devices(directory)
    if WATCHER in known and not known[WATCHER].revoked:
        raise ConfigError(
            f"the {WATCHER} is enrolled already; copy its file, or `edgefl device revoke {WATCHER}` and make "
            "another"
        )
    signer = _authority(directory, authority)
    aggregator = load_enrolment(directory / "aggregator.enrol")
    certified = certify_client(signer, WATCHER, days)
    _revoked(directory, known, signer)
    save_devices(directory, {**known, WATCHER: Enrolled(str(serial_of(certified.certificate)), "")})
    return Enrolment(
        WATCHER,
        aggregator.broker,
        signer.certificate,
        certified.certificate,
        certified.key,
        "",
        aggregator.aggregator_key,
    )


def revoke(directory: Path, client_id: str, authority: Path | None = None) -> None:
    """Take a device's rights away: its certificate goes on the revocation list, its signatures do not count
    any more.

    Without ca.key only the second is done; ConfigError says so.
    """
    known = devices(directory)
    if client_id not in known:
        raise ConfigError(
            f"{client_id!r} is not enrolled in {directory}; enrolled are {', '.join(sorted(known)) or 'none'}"
        )
    known = {**known, client_id: replace(known[client_id], revoked=True)}
    save_devices(directory, known)
    try:
        signer = _authority(directory, authority)
    except ConfigError as error:
        raise ConfigError(
            f"the aggregator refuses {client_id} from now on, but the broker still admits it: {error}"
        ) from error
    _revoked(directory, known, signer)


def _authority(directory: Path, authority: Path | None) -> Certified:
    try:
        return Certified(
            (directory / "ca.pem").read_text(), ((authority or directory) / "ca.key").read_text()
        )
    except OSError as error:
        raise ConfigError(
            f"cannot read {error.filename}: {error.strerror}; name the directory of ca.key with --ca"
        ) from error


def _revoked(directory: Path, known: Mapping[str, Enrolled], signer: Certified) -> None:
    """Write the revocation list anew, with what was on it: a serial number once revoked stays so, though its
    id is enrolled again.
    """
    path = directory / "revoked.json"
    before = set(json.loads(path.read_text())) if path.exists() else set()
    serials = sorted(before | {entry.serial for entry in known.values() if entry.revoked}, key=int)
    write_atomic(path, (json.dumps(serials) + "\n").encode(), SECRET)
    listed = revocation_list(signer, [int(serial) for serial in serials], REVOCATION_DAYS)
    write_atomic(directory / "crl.pem", listed.encode(), PUBLIC_MODE)
