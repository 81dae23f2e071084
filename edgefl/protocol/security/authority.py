"""Creates and manages the key directory of a federation.

The directory contains the authority, the broker's certificate, the aggregator's enrolment and the list of
enrolled devices. It stays on the machine of broker and aggregator.

The authority's private key `ca.key` can be in a separate directory, which all functions that sign take as
`authority`. It is needed only to enrol, to revoke and to renew vouchers.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from edgefl.base.errors import ConfigError
from edgefl.base.names import check_client_id
from edgefl.base.system.files import SECRET_MODE, write_atomic
from edgefl.protocol.security.certificates import (
    CertifiedKey,
    certify_client,
    certify_route,
    certify_server,
    make_authority,
    read_serial,
    sign_revocation_list,
    sign_voucher,
)
from edgefl.protocol.security.enrolled_devices import (
    EnrolledDevice,
    load_enrolled_devices,
    save_enrolled_devices,
)
from edgefl.protocol.security.enrolment import Enrolment, load_enrolment, save_enrolment, write_secret
from edgefl.protocol.security.signing import derive_public_key, generate_signing_key

AGGREGATOR_ID = "aggregator"
WATCHER_ID = "watcher"
"""Account of monitors, which may read but not write."""
AUTHORITY_DAYS = 3650
REVOCATION_DAYS = 3650
VOUCHER_DAYS = 90
"""Default validity of a voucher in days.

A hostile aggregator can use a device's signing key for this time after the owner revoked the device.
"""
DAY_S = 86400.0


PUBLIC_MODE = 0o644
"""Mode of the certificates and the revocation list, which are public.

The broker reads them, possibly under another account than their writer's.
"""


def create_key_directory(
    directory: Path, hosts: Sequence[str], port: int, days: int, authority: Path | None = None
) -> None:
    """Create an authority, the broker's certificate and the aggregator's enrolment.

    Args:
        hosts: names and addresses by which devices reach the broker. Every enrolment uses the first.
        days: validity of the certificates of broker and aggregator, in days.
        authority: directory for ca.key. None for `directory`.

    Raises:
        ConfigError: a directory already contains an authority, there is no host, or a file cannot be written.
    """
    if (directory / "ca.pem").exists():
        raise ConfigError(
            f"{directory} already contains an authority; choose another directory, or remove it and enrol "
            "every device again"
        )
    key_path = (authority or directory) / "ca.key"
    if key_path.exists():
        raise ConfigError(f"{key_path} already exists, the key of another authority; choose another --ca")
    if not hosts:
        raise ConfigError(
            "no host, expected the name or address by which devices reach this machine; give --host"
        )
    certified = make_authority("edgefl authority", AUTHORITY_DAYS)
    write_secret(key_path, certified.key)
    names = [*hosts, *(host for host in ("localhost", "127.0.0.1") if host not in hosts)]
    server = certify_server(certified, names, days)
    route = certify_route(names, days)
    write_secret(directory / "server.key", server.key)
    write_atomic(directory / "server.pem", server.certificate.encode(), PUBLIC_MODE)
    write_secret(directory / "route.key", route.key)
    write_atomic(directory / "route.pem", route.certificate.encode(), PUBLIC_MODE)
    write_atomic(
        directory / "crl.pem", sign_revocation_list(certified, [], REVOCATION_DAYS).encode(), PUBLIC_MODE
    )
    signing = generate_signing_key()
    aggregator = certify_client(certified, AGGREGATOR_ID, days)
    url = f"mqtts://{hosts[0]}:{port}"
    save_enrolment(
        Enrolment(
            client_id=AGGREGATOR_ID,
            broker=url,
            ca=certified.certificate,
            certificate=aggregator.certificate,
            key=aggregator.key,
            signing_key=signing,
            aggregator_key=derive_public_key(signing),
        ),
        directory / "aggregator.enrol",
    )
    save_enrolled_devices(directory, {})
    # written last: its presence shows that the directory is complete
    write_atomic(directory / "ca.pem", certified.certificate.encode(), PUBLIC_MODE)


def create_enrolment(
    directory: Path,
    client_id: str,
    days: int,
    authority: Path | None = None,
    voucher_days: int = VOUCHER_DAYS,
) -> Enrolment:
    """Return the enrolment of a new device, and add the device to the list.

    Args:
        directory: key directory of the federation.
        days: validity of the device's certificate, in days.
        authority: directory of ca.key. None for `directory`.
        voucher_days: validity of the authority's voucher for the device's signing key, in days.
            `renew_vouchers` extends it.

    Raises:
        ConfigError: the id is in use or not valid, or ca.key or another file cannot be read.
    """
    check_client_id(client_id)
    if client_id in (AGGREGATOR_ID, WATCHER_ID):
        raise ConfigError(
            f"the id {client_id!r} is reserved for the {client_id}; choose another, such as pi-1"
        )
    enrolled = load_enrolled_devices(directory)
    if client_id in enrolled and not enrolled[client_id].revoked:
        raise ConfigError(
            f"{client_id} is enrolled already; to replace the board, run `edgefl device revoke "
            f"{client_id}` first"
        )
    signer = _load_authority(directory, authority)
    aggregator = load_enrolment(directory / "aggregator.enrol")
    certified = certify_client(signer, client_id, days)
    signing = generate_signing_key()
    _write_revocations(directory, enrolled, signer)
    public = derive_public_key(signing)
    voucher = sign_voucher(signer, client_id, public, time.time() + voucher_days * DAY_S)
    save_enrolled_devices(
        directory,
        {
            **enrolled,
            client_id: EnrolledDevice(
                serial=str(read_serial(certified.certificate)), signing_key=public, voucher=voucher
            ),
        },
    )
    return Enrolment(
        client_id=client_id,
        broker=aggregator.broker,
        ca=signer.certificate,
        certificate=certified.certificate,
        key=certified.key,
        signing_key=signing,
        aggregator_key=aggregator.aggregator_key,
    )


def renew_vouchers(directory: Path, days: int, authority: Path | None = None) -> tuple[str, ...]:
    """Renew the authority's vouchers for all devices that are not revoked, and return their ids.

    Only the aggregator stores vouchers, so no device changes. A revoked device keeps its voucher until it
    ends.

    Args:
        directory: key directory of the federation.
        days: validity of the new vouchers, in days.
        authority: directory of ca.key. None for `directory`.

    Raises:
        ConfigError: ca.key or the list of devices cannot be read.
    """
    enrolled = dict(load_enrolled_devices(directory))
    signer = _load_authority(directory, authority)
    until = time.time() + days * DAY_S
    ids = tuple(
        sorted(client_id for client_id, entry in enrolled.items() if entry.signing_key and not entry.revoked)
    )
    for client_id in ids:
        entry = enrolled[client_id]
        enrolled[client_id] = replace(
            entry, voucher=sign_voucher(signer, client_id, entry.signing_key, until)
        )
    save_enrolled_devices(directory, enrolled)
    return ids


def enrol_watcher(directory: Path, days: int, authority: Path | None = None) -> Enrolment:
    """Return the enrolment of the account that only reads, and add it to the list.

    The watcher has no signing key, so no message of it is accepted.

    Args:
        directory: key directory of the federation.
        days: validity of the certificate, in days.
        authority: directory of ca.key. None for `directory`.

    Raises:
        ConfigError: the watcher is enrolled already, or ca.key or another file cannot be read.
    """
    enrolled = load_enrolled_devices(directory)
    if WATCHER_ID in enrolled and not enrolled[WATCHER_ID].revoked:
        raise ConfigError(
            f"the {WATCHER_ID} is enrolled already; copy its file, or run `edgefl device revoke "
            f"{WATCHER_ID}` and enrol it again"
        )
    signer = _load_authority(directory, authority)
    aggregator = load_enrolment(directory / "aggregator.enrol")
    certified = certify_client(signer, WATCHER_ID, days)
    _write_revocations(directory, enrolled, signer)
    save_enrolled_devices(
        directory,
        {
            **enrolled,
            WATCHER_ID: EnrolledDevice(serial=str(read_serial(certified.certificate)), signing_key=""),
        },
    )
    return Enrolment(
        client_id=WATCHER_ID,
        broker=aggregator.broker,
        ca=signer.certificate,
        certificate=certified.certificate,
        key=certified.key,
        signing_key="",
        aggregator_key=aggregator.aggregator_key,
    )


def revoke_enrolment(directory: Path, client_id: str, authority: Path | None = None) -> None:
    """Revoke a device: reject its signatures, and put its certificate on the revocation list.

    Args:
        directory: key directory of the federation.
        client_id: id of the device, or of the watcher.
        authority: directory of ca.key. None for `directory`.

    Raises:
        ConfigError: the device is not enrolled, or ca.key cannot be read. Without ca.key the signatures are
            rejected, but the broker still admits the device.
    """
    enrolled = load_enrolled_devices(directory)
    if client_id not in enrolled:
        raise ConfigError(
            f"{client_id!r} is not enrolled in {directory}; enrolled are "
            f"{', '.join(sorted(enrolled)) or 'none'}"
        )
    enrolled = {**enrolled, client_id: replace(enrolled[client_id], revoked=True)}
    save_enrolled_devices(directory, enrolled)
    try:
        signer = _load_authority(directory, authority)
    except ConfigError as error:
        raise ConfigError(
            f"the aggregator refuses {client_id} from now on, but the broker still admits it: {error}"
        ) from error
    _write_revocations(directory, enrolled, signer)


def _load_authority(directory: Path, authority: Path | None) -> CertifiedKey:
    try:
        return CertifiedKey(
            (directory / "ca.pem").read_text(), ((authority or directory) / "ca.key").read_text()
        )
    except OSError as error:
        raise ConfigError(
            f"cannot read {error.filename}: {error.strerror}; name the directory of ca.key with --ca"
        ) from error


def _write_revocations(directory: Path, enrolled: Mapping[str, EnrolledDevice], signer: CertifiedKey) -> None:
    """Write the revocation list with its earlier entries.

    A revoked serial number stays revoked, even if its id is enrolled again.
    """
    path = directory / "revoked.json"
    before = set(json.loads(path.read_text())) if path.exists() else set()
    serials = sorted(before | {entry.serial for entry in enrolled.values() if entry.revoked}, key=int)
    write_atomic(path, (json.dumps(serials) + "\n").encode(), SECRET_MODE)
    listed = sign_revocation_list(signer, [int(serial) for serial in serials], REVOCATION_DAYS)
    write_atomic(directory / "crl.pem", listed.encode(), PUBLIC_MODE)
