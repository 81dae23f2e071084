"""The authority's directory: enrolment, replacement and revocation of devices."""

import json
import ssl
import subprocess
import sys
from dataclasses import replace

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from edgefl.base.errors import ConfigError, WireError
from edgefl.protocol.security.authority import create_enrolment, create_key_directory, revoke_enrolment
from edgefl.protocol.security.certificates import read_serial
from edgefl.protocol.security.enrolled_devices import load_enrolled_devices
from edgefl.protocol.security.enrolment import load_enrolment, make_tls_context, save_enrolment
from edgefl.protocol.security.trust import DeviceKeys


@pytest.fixture
def directory(tmp_path):
    create_key_directory(tmp_path / "keys", ["broker.local", "10.0.0.7"], 8883, 30)
    return tmp_path / "keys"


def list_revoked_serials(directory):
    return {entry.serial_number for entry in x509.load_pem_x509_crl((directory / "crl.pem").read_bytes())}


def read_common_name(certificate: str) -> str:
    subject = x509.load_pem_x509_certificate(certificate.encode()).subject
    return subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value


def test_certificates_have_expected_names_and_purposes(directory):
    server = x509.load_pem_x509_certificate((directory / "server.pem").read_bytes())
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["broker.local", "localhost"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7", "127.0.0.1"]
    route = x509.load_pem_x509_certificate((directory / "route.pem").read_bytes())
    route.verify_directly_issued_by(route)  # self-signed: servers accept no other certificate
    purposes = route.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(purposes) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert route.extensions.get_extension_for_class(x509.SubjectAlternativeName).value == names
    assert (directory / "route.key").stat().st_mode & 0o777 == 0o600
    enrolment = create_enrolment(directory, "pi-1", 30)
    assert (read_common_name(enrolment.certificate), enrolment.broker) == (
        "pi-1",
        "mqtts://broker.local:8883",
    )
    assert read_common_name(load_enrolment(directory / "aggregator.enrol").certificate) == "aggregator"
    assert make_tls_context(enrolment).verify_mode is ssl.CERT_REQUIRED
    assert "PRIVATE" not in (directory / "devices.json").read_text()


def test_device_is_replaced_under_the_same_id_after_revocation(directory):
    first = create_enrolment(directory, "pi-1", 30)
    with pytest.raises(ConfigError, match=r"enrolled already.*revoke pi-1"):
        create_enrolment(directory, "pi-1", 30)
    keys = DeviceKeys(directory)
    old_key = keys.find_key("pi-1")
    revoke_enrolment(directory, "pi-1")
    with pytest.raises(WireError, match="pi-1 was revoked"):
        keys.find_key("pi-1")
    assert list_revoked_serials(directory) == {read_serial(first.certificate)}
    second = create_enrolment(directory, "pi-1", 30)
    assert list_revoked_serials(directory) == {read_serial(first.certificate)}
    assert keys.find_key("pi-1") != old_key
    revoke_enrolment(directory, "pi-1")
    assert list_revoked_serials(directory) == {
        read_serial(first.certificate),
        read_serial(second.certificate),
    }
    assert load_enrolled_devices(directory)["pi-1"].revoked


COUNT_OPENED_FILES = """
import sys, tempfile
tempfile.tempdir = sys.argv[2]
written = []
def hook(event, arguments):
    if event == "open" and str(arguments[0]).startswith(tempfile.tempdir):
        written.append(arguments[0])
sys.addaudithook(hook)
from pathlib import Path
from edgefl.protocol.security.enrolment import load_enrolment, make_tls_context
make_tls_context(load_enrolment(Path(sys.argv[1])))
print(len(written))
"""


def test_private_key_is_not_written_to_disk(directory, tmp_path):
    """OpenSSL reads keys only from a file, which is in memory here.

    The test counts the files that Python opens in the folder of temporary files.
    """
    save_enrolment(create_enrolment(directory, "pi-1", 30), tmp_path / "pi.enrol")
    (tmp_path / "temporary").mkdir()
    command = [sys.executable, "-c", COUNT_OPENED_FILES, tmp_path / "pi.enrol", tmp_path / "temporary"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "0\n"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": "edgefl enrolment 1"}', b"\xff"])
def test_invalid_enrolment_file_is_refused(content, tmp_path):
    path = tmp_path / "x.enrol"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="is not an enrolment"):
        load_enrolment(path)


def test_enrolment_round_trips_and_wrong_keys_are_refused(directory, tmp_path):
    enrolment = create_enrolment(directory, "pi-1", 30)
    save_enrolment(enrolment, tmp_path / "pi.enrol")
    assert load_enrolment(tmp_path / "pi.enrol") == enrolment
    other = create_enrolment(directory, "pi-2", 30)
    with pytest.raises(ConfigError, match="keys of 'pi-1' cannot be used"):
        make_tls_context(replace(enrolment, key=other.key))
    with pytest.raises(ConfigError, match="broker init"):
        load_enrolled_devices(tmp_path)
    with pytest.raises(ConfigError, match="no host"):
        create_key_directory(tmp_path / "none", [], 8883, 30)


@pytest.mark.parametrize(
    "changes", [{"masked_only": 1}, {"masked_only": "no"}, {"least_clients": -1}, {"least_clients": True}]
)
def test_enrolment_permissions_are_validated_strictly(changes, directory, tmp_path):
    """A file of an older version lacks these fields. An invalid value must not count as a permission."""
    path = tmp_path / "pi.enrol"
    save_enrolment(create_enrolment(directory, "pi-1", 30), path)
    content = json.loads(path.read_text())
    path.write_text(
        json.dumps(
            {key: value for key, value in content.items() if key not in ("masked_only", "least_clients")}
        )
    )
    path.chmod(0o600)
    assert (load_enrolment(path).masked_only, load_enrolment(path).least_clients) == (False, 0)
    path.write_text(json.dumps({**content, **changes}))
    with pytest.raises(ConfigError, match="expected a boolean and a number"):
        load_enrolment(path)
