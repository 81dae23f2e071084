"""Creates the authority of a federation, and the certificates of broker, aggregator and devices.

All keys are on the elliptic curve P-256, and all files are PEM.

The common name of a certificate is the MQTT user name (`use_identity_as_username`). The broker's access list
can therefore check the client id in a topic.
"""

import base64
import binascii
import ipaddress
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from edgefl.base.errors import ConfigError, WireError
from edgefl.protocol.wire.topics import TOPIC_PREFIX

CLOCK_TOLERANCE = timedelta(days=1)
"""Time by which the clock of a board may be late, because some boards have no real-time clock."""


@dataclass(frozen=True)
class CertifiedKey:
    """A certificate and its private key.

    Attributes:
        certificate: the certificate, PEM.
        key: the private key, PEM.
    """

    certificate: str
    key: str


def make_authority(name: str, days: int) -> CertifiedKey:
    """Return a self-signed authority that can sign only end-entity certificates.

    Args:
        name: common name of the authority.
        days: validity in days.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _make_name(name)
    built = _make_builder(subject, subject, key.public_key(), days)
    built = built.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    built = built.add_extension(_make_usage(key_cert_sign=True, crl_sign=True), critical=True)
    built = built.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return _encode_pem(built.sign(key, hashes.SHA256()), key)


def certify_server(authority: CertifiedKey, hosts: Sequence[str], days: int) -> CertifiedKey:
    """Return the broker's certificate.

    Args:
        authority: authority that signs.
        hosts: host names and addresses of the broker. The first is the common name.
        days: validity in days.
    """
    return _certify(
        authority, hosts[0], days, ExtendedKeyUsageOID.SERVER_AUTH, _list_alternative_names(hosts)
    )


def certify_route(hosts: Sequence[str], days: int) -> CertifiedKey:
    """Return the certificate by which the servers of a broker cluster recognize each other.

    It is self-signed. A server that trusts only this certificate rejects devices, although the authority
    signed their certificates.

    Args:
        hosts: names and addresses of all servers of the cluster.
        days: validity in days.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _make_name("edgefl route")
    built = _make_builder(subject, subject, key.public_key(), days)
    built = built.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    built = built.add_extension(_make_usage(digital_signature=True), critical=True)
    # each server is a client on some routes and a server on the others
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    built = built.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    built = built.add_extension(x509.SubjectAlternativeName(_list_alternative_names(hosts)), critical=False)
    return _encode_pem(built.sign(key, hashes.SHA256()), key)


def certify_client(authority: CertifiedKey, name: str, days: int) -> CertifiedKey:
    """Return the certificate of a device or of the aggregator.

    Args:
        authority: authority that signs.
        name: client id, which becomes the common name.
        days: validity in days.
    """
    return _certify(authority, name, days, ExtendedKeyUsageOID.CLIENT_AUTH, [])


def sign_revocation_list(authority: CertifiedKey, serials: Sequence[int], days: int) -> str:
    """Return the authority's list of revoked certificates, PEM.

    Args:
        days: validity of the list in days.
    """
    issuer, key = _open(authority)
    now = datetime.now(UTC)
    built = x509.CertificateRevocationListBuilder().issuer_name(issuer.subject)
    built = built.last_update(now - CLOCK_TOLERANCE).next_update(now + timedelta(days=days))
    for serial in serials:
        revoked = (
            x509.RevokedCertificateBuilder()
            .serial_number(serial)
            .revocation_date(now - CLOCK_TOLERANCE)
            .build()
        )
        built = built.add_revoked_certificate(revoked)
    return built.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def sign_voucher(authority: CertifiedKey, client_id: str, signing_key: str, until: float) -> str:
    """Return the authority's voucher for a device's signing key.

    Devices trust each other's signing keys by their vouchers.

    Args:
        signing_key: public Ed25519 key of the device, in base64.
        until: end of the voucher in seconds since 1970.

    Returns:
        The end in whole seconds, a full stop, and the base64 signature over id, key and end.
    """
    _, key = _open(authority)
    end = int(until)
    return f"{end}.{base64.b64encode(key.sign(_encode_statement(client_id, signing_key, end), ec.ECDSA(hashes.SHA256()))).decode()}"  # noqa: E501


def check_voucher(
    authority: str, client_id: str, signing_key: str, voucher: str, now: float | None = None
) -> None:
    """Check that the authority vouches for a device's signing key at a time.

    Args:
        authority: certificate of the authority, PEM.
        signing_key: public Ed25519 key of the device, in base64.
        voucher: the voucher of `sign_voucher`.
        now: seconds since 1970. None for the present time.

    Raises:
        WireError: the voucher is not valid for this device and key, or has ended.
        ConfigError: the authority's certificate cannot be read.
    """
    public = _load(authority).public_key()
    ending, mark, signature = voucher.partition(".")
    if not mark or not re.fullmatch(r"[0-9]{1,12}", ending, re.ASCII):
        raise WireError(
            f"the authority does not vouch for the key of {client_id} in this version; renew all "
            "vouchers with `edgefl broker vouch`"
        )
    until = int(ending)
    now = time.time() if now is None else now
    try:
        if not isinstance(public, ec.EllipticCurvePublicKey):
            raise ValueError("the authority's key is not an elliptic curve key")
        public.verify(
            base64.b64decode(signature, validate=True),
            _encode_statement(client_id, signing_key, until),
            ec.ECDSA(hashes.SHA256()),
        )
    except (InvalidSignature, ValueError, binascii.Error) as error:
        raise WireError(
            f"the authority does not vouch for the key of {client_id}; revoke it and enrol it again"
        ) from error
    if now >= until:
        raise WireError(
            f"the authority vouched for the key of {client_id} until {_format_date(until)}, but this "
            f"device's clock shows {_format_date(now)}; renew all vouchers with `edgefl broker vouch`, or "
            "set the clock"
        )


def _format_date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _encode_statement(client_id: str, signing_key: str, until: int) -> bytes:
    return f"{TOPIC_PREFIX} {client_id} signs with {signing_key} until {until}\n".encode()


def read_serial(certificate: str) -> int:
    """Return the serial number of a certificate.

    Args:
        certificate: the certificate, PEM.

    Raises:
        ConfigError: the text is not a certificate.
    """
    return _load(certificate).serial_number


def read_expiry(certificate: str) -> float:
    """Return the time at which a certificate expires, in seconds since 1970.

    Args:
        certificate: the certificate, PEM.

    Raises:
        ConfigError: the text is not a certificate.
    """
    return _load(certificate).not_valid_after_utc.timestamp()


def _load(certificate: str) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(certificate.encode())
    except ValueError as error:
        raise ConfigError(f"this is not a certificate: {error}; enrol the device again") from error


def _certify(
    authority: CertifiedKey,
    name: str,
    days: int,
    purpose: x509.ObjectIdentifier,
    others: Sequence[x509.GeneralName],
) -> CertifiedKey:
    issuer, signer = _open(authority)
    key = ec.generate_private_key(ec.SECP256R1())
    built = _make_builder(_make_name(name), issuer.subject, key.public_key(), days)
    built = built.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    built = built.add_extension(_make_usage(digital_signature=True), critical=True)
    built = built.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    built = built.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
    )
    if others:
        built = built.add_extension(x509.SubjectAlternativeName(others), critical=False)
    return _encode_pem(built.sign(signer, hashes.SHA256()), key)


def _make_builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
    )
    begins = min(now, now + timedelta(days=days)) - CLOCK_TOLERANCE
    return built.not_valid_before(begins).not_valid_after(now + timedelta(days=days))


def _open(authority: CertifiedKey) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = serialization.load_pem_private_key(authority.key.encode(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return x509.load_pem_x509_certificate(authority.certificate.encode()), key


def _make_usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _make_name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _list_alternative_names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    return [
        x509.IPAddress(ipaddress.ip_address(host)) if _is_address(host) else x509.DNSName(host)
        for host in hosts
    ]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _encode_pem(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> CertifiedKey:
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return CertifiedKey(certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode())
