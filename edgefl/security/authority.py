"""The directory of a federation's keys: its authority, the broker's certificate, the aggregator's enrolment, and who was enrolled.

It stays on the machine of broker and aggregator; `ca.key` may be kept elsewhere between enrolments.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from edgefl.errors import ConfigError
from edgefl.files import write_atomic
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
from edgefl.wire.topics import check_client_id

AGGREGATOR = "aggregator"
WATCHER = "watcher"
"""The account of monitors, which may read and may not write."""
AUTHORITY_DAYS = 3650
REVOCATION_DAYS = 3650


def create(directory: Path, hosts: Sequence[str], port: int, days: int) -> None:
    """Make authority, broker's certificate and aggregator's enrolment. ConfigError when the directory holds an authority."""
    if (directory / "ca.pem").exists():
        raise ConfigError(f"{directory} holds an authority already; give another directory, or remove it and enrol every device again")
    if not hosts:
        raise ConfigError("no host, expected the name or address by which devices reach this machine; give --host")
    authority = make_authority("edgefl authority", AUTHORITY_DAYS)
    write_secret(directory / "ca.key", authority.key)
    names = [*hosts, *(each for each in ("localhost", "127.0.0.1") if each not in hosts)]
    server, route = certify_server(authority, names, days), certify_route(names, days)
    write_secret(directory / "server.key", server.key)
    write_atomic(directory / "server.pem", server.certificate.encode())
    write_secret(directory / "route.key", route.key)
    write_atomic(directory / "route.pem", route.certificate.encode())
    write_atomic(directory / "crl.pem", revocation_list(authority, [], REVOCATION_DAYS).encode())
    signing = new_key()
    own = certify_client(authority, AGGREGATOR, days)
    url = f"mqtts://{hosts[0]}:{port}"
    save_enrolment(
        Enrolment(AGGREGATOR, url, authority.certificate, own.certificate, own.key, signing, public_of(signing)),
        directory / "aggregator.enrol",
    )
    save_devices(directory, {})
    write_atomic(directory / "ca.pem", authority.certificate.encode())  # last: its presence says that all is here


def enrol(directory: Path, client_id: str, days: int) -> Enrolment:
    """Return a new device's enrolment and note it. ConfigError for an id that is taken or no id."""
    check_client_id(client_id)
    if client_id in (AGGREGATOR, WATCHER):
        raise ConfigError(f"the id {client_id!r} is the {client_id}'s own; take another, such as pi-1")
    known = devices(directory)
    if client_id in known and not known[client_id].revoked:
        raise ConfigError(f"{client_id} is enrolled already; for a new board in its place, `edgefl device revoke {client_id}` first")
    authority, aggregator = _authority(directory), load_enrolment(directory / "aggregator.enrol")
    certified, signing = certify_client(authority, client_id, days), new_key()
    _revoked(directory, known)
    public = public_of(signing)
    entry = Enrolled(str(serial_of(certified.certificate)), public, voucher=vouch(authority, client_id, public))
    save_devices(directory, {**known, client_id: entry})
    return Enrolment(
        client_id, aggregator.broker, authority.certificate, certified.certificate, certified.key, signing, aggregator.aggregator_key
    )


def enrol_watcher(directory: Path, days: int) -> Enrolment:
    """Return the enrolment of the account that only reads, and note it. It has no signing key, so that nothing signed by it counts.

    ConfigError when it is there already.
    """
    known = devices(directory)
    if WATCHER in known and not known[WATCHER].revoked:
        raise ConfigError(f"the {WATCHER} is enrolled already; copy its file, or `edgefl device revoke {WATCHER}` and make another")
    authority, aggregator = _authority(directory), load_enrolment(directory / "aggregator.enrol")
    certified = certify_client(authority, WATCHER, days)
    _revoked(directory, known)
    save_devices(directory, {**known, WATCHER: Enrolled(str(serial_of(certified.certificate)), "")})
    return Enrolment(WATCHER, aggregator.broker, authority.certificate, certified.certificate, certified.key, "", aggregator.aggregator_key)


def revoke(directory: Path, client_id: str) -> None:
    """Take a device's rights away: its certificate goes on the revocation list, its signatures do not count any more."""
    known = devices(directory)
    if client_id not in known:
        raise ConfigError(f"{client_id!r} is not enrolled in {directory}; enrolled are {', '.join(sorted(known)) or 'none'}")
    known = {**known, client_id: replace(known[client_id], revoked=True)}
    save_devices(directory, known)
    _revoked(directory, known)


def _authority(directory: Path) -> Certified:
    try:
        return Certified((directory / "ca.pem").read_text(), (directory / "ca.key").read_text())
    except OSError as error:
        raise ConfigError(f"cannot read the authority in {directory}: {error.strerror}; put ca.pem and ca.key there") from error


def _revoked(directory: Path, known: Mapping[str, Enrolled]) -> None:
    """Write the revocation list anew, with what was on it: a serial number once revoked stays so, though its id is enrolled again."""
    path = directory / "revoked.json"
    before = set(json.loads(path.read_text())) if path.exists() else set()
    serials = sorted(before | {entry.serial for entry in known.values() if entry.revoked}, key=int)
    write_atomic(path, (json.dumps(serials) + "\n").encode())
    listed = revocation_list(_authority(directory), [int(serial) for serial in serials], REVOCATION_DAYS)
    write_atomic(directory / "crl.pem", listed.encode())
