"""Reads and writes enrolment files.

An enrolment contains a device's identity, the broker's URL and all keys that the device needs. Anyone with
the file can act as the device.
"""

import contextlib
import json
import os
import ssl
import tempfile
from collections.abc import Iterator
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path

from edgefl.base.errors import ConfigError
from edgefl.base.system.files import SECRET_MODE, parse_json, write_atomic

ENROLMENT_FORMAT = "edgefl enrolment 1"


@dataclass(frozen=True)
class Enrolment:
    """The identity and the keys of a device, the aggregator or the watcher.

    Attributes:
        client_id: client id, also the common name of the certificate.
        broker: url of the broker.
        ca: certificate of the authority, PEM.
        certificate: certificate of this client, PEM.
        key: private key of the certificate, PEM.
        signing_key: private Ed25519 key of this client in base64. "" for the watcher.
        aggregator_key: public Ed25519 key of the aggregator in base64.
        masked_only: whether the device takes part only in masked rounds. The command line cannot weaken it.
        least_clients: minimum number of clients in a masked round. The command line cannot weaken it. See
            `edgefl.protocol.device.order.SharingRules`.
    """

    client_id: str
    broker: str
    ca: str
    certificate: str
    key: str
    signing_key: str
    aggregator_key: str
    masked_only: bool = False
    least_clients: int = 0


def save_enrolment(enrolment: Enrolment, path: Path) -> None:
    """Write an enrolment file that only its owner can read.

    Args:
        path: file to write. Missing parent directories are created.

    Raises:
        ConfigError: the file cannot be written.
    """
    text = json.dumps({"format": ENROLMENT_FORMAT, **asdict(enrolment)}, indent=1) + "\n"
    write_secret(path, text)


def load_enrolment(path: Path) -> Enrolment:
    """Read an enrolment file.

    Raises:
        ConfigError: the file cannot be read, is not an enrolment of this version, or can be read by others.
    """
    try:
        if path.stat().st_mode & 0o077:
            raise ConfigError(
                f"{path} can be read by others, but it is this device's identity; run chmod 600 {path}"
            )
        raw = parse_json(path.read_text())
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}; create it with `edgefl device enrol`"
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"{path} is not an enrolment: {error}; create it with `edgefl device enrol`"
        ) from error
    names = [field.name for field in fields(Enrolment) if field.default is MISSING]
    if (
        not isinstance(raw, dict)
        or raw.get("format") != ENROLMENT_FORMAT
        or not all(isinstance(raw.get(name), str) for name in names)
    ):
        raise ConfigError(
            f"{path} is not an enrolment of this version, expected {ENROLMENT_FORMAT!r} with "
            f"{', '.join(names)}; enrol again"
        )
    masked_only = raw.get("masked_only", False)
    least_clients = raw.get("least_clients", 0)
    if type(masked_only) is not bool or type(least_clients) is not int or least_clients < 0:
        raise ConfigError(
            f"{path} has masked_only {masked_only!r} and least_clients {least_clients!r}, expected a boolean "
            "and a number"
        )
    return Enrolment(
        **{name: raw[name] for name in names}, masked_only=masked_only, least_clients=least_clients
    )


def make_tls_context(enrolment: Enrolment) -> ssl.SSLContext:
    """Return a TLS context with the client's certificate that trusts only the enrolment's authority.

    Raises:
        ConfigError: certificate and key cannot be used, or do not belong together.
    """
    try:
        context = ssl.create_default_context(cadata=enrolment.ca)
        with _write_temporary(enrolment.certificate + enrolment.key) as path:
            context.load_cert_chain(path)
    except (ssl.SSLError, ValueError, OSError) as error:
        raise ConfigError(
            f"the keys of {enrolment.client_id!r} cannot be used: {error}; enrol it again"
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


@contextlib.contextmanager
def _write_temporary(text: str) -> Iterator[str]:
    """Yield the path of a temporary file with this text.

    OpenSSL reads a certificate chain only from a file. On Linux the file is in memory, because a private key
    that was written to a card leaves a trace.
    """
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("edgefl"), "w") as file:
            file.write(text)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
        return
    with tempfile.NamedTemporaryFile("w", prefix="edgefl-", suffix=".pem") as file:
        file.write(text)
        file.flush()
        yield file.name


def write_secret(path: Path, text: str) -> None:
    """Write a file that only its owner can read.

    Args:
        path: file to write. Missing parent directories are created.
        text: content of the file.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        write_atomic(path, text.encode(), SECRET_MODE)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; choose another path") from error
