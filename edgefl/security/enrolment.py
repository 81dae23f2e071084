"""One file for a board: who it is, where the broker is, and all keys that it needs.

Whoever has the file is the board.
"""

import contextlib
import json
import os
import ssl
import tempfile
from collections.abc import Iterator
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path

from edgefl.errors import ConfigError
from edgefl.system.files import SECRET_MODE, parse_json, write_atomic

ENROLMENT_FORMAT = "edgefl enrolment 1"


@dataclass(frozen=True)
class Enrolment:
    """`ca`, `certificate`, `key`: PEM.

    `signing_key` is this one's own, private; `aggregator_key` public, both Ed25519 in base64.

    `masked_only`, `least_clients`: what the device may send, whatever its command line says; see
    `devices.order.SharingRules`.
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
    """Write the file, readable by its owner alone; ConfigError when it cannot be written."""
    text = json.dumps({"format": ENROLMENT_FORMAT, **asdict(enrolment)}, indent=1) + "\n"
    write_secret(path, text)


def load_enrolment(path: Path) -> Enrolment:
    """Read the file; ConfigError when it is not one, or when others may read it."""
    try:
        if path.stat().st_mode & 0o077:
            raise ConfigError(
                f"{path} can be read by others, and it is this device's identity; chmod 600 {path}"
            )
        raw = parse_json(path.read_text())
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}; make it with `edgefl device enrol`"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{path} is no enrolment: {error}; make it with `edgefl device enrol`") from error
    names = [field.name for field in fields(Enrolment) if field.default is MISSING]
    if (
        not isinstance(raw, dict)
        or raw.get("format") != ENROLMENT_FORMAT
        or not all(isinstance(raw.get(name), str) for name in names)
    ):
        raise ConfigError(
            f"{path} is no enrolment of this version, expected {ENROLMENT_FORMAT!r} with "
            f"{', '.join(names)}; enrol "
            "again"
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
    """Return the context that proves who this is and trusts this authority alone.

    ConfigError for keys that do not fit.
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
    """Yield the path of a file with this text, because OpenSSL reads a chain from a file only.

    It lies in memory where the system has such files (Linux). A private key that was written to a card leaves
    a trace there.
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
    """Write a file that its owner alone can read; ConfigError when it cannot be written."""
    try:
        write_atomic(path, text.encode(), SECRET_MODE)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; choose another place") from error
