"""A broker with TLS and enrolled devices."""

import subprocess

from click.testing import CliRunner

from edgefl.protocol.security.authority import create_enrolment
from edgefl.protocol.security.enrolment import make_tls_context, save_enrolment
from edgefl.protocol.transport.link import Link
from mqtt_broker.broker.dev_broker import find_mosquitto
from mqtt_broker.commands import broker as broker_commands
from tests.support.ports import choose_port


class SecuredBroker:
    """A mosquitto with the configuration of `edgefl broker init`. `protocol` is the version of MQTT in
    which the tests connect to it.
    """

    def __init__(self, directory, protocol):
        self.directory = directory
        self.port = choose_port()
        self.protocol = protocol
        self.url = f"mqtts://localhost:{self.port}{'?protocol=5' if protocol == 5 else ''}"
        result = CliRunner().invoke(
            broker_commands,
            ["init", str(directory), "--host", "localhost", "--port", str(self.port), "--bind", "127.0.0.1"],
        )
        assert result.exit_code == 0, result.output
        self.start()

    def start(self):
        command = [find_mosquitto(), "-c", str(self.directory / "mosquitto.conf")]
        self.popen = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.popen.stderr:
            if " running" in line:
                return
        raise AssertionError("mosquitto did not start")

    def enrol(self, client_id, path, days=30):
        enrolment = create_enrolment(self.directory, client_id, days)
        save_enrolment(enrolment, path)
        return enrolment

    def link(self, enrolment, name="", will=None, timeout_s=10.0):
        return Link(
            self.url,
            name or f"test-{enrolment.client_id}",
            context=make_tls_context(enrolment),
            will=will,
            timeout_s=timeout_s,
        )

    def stop(self):
        self.popen.terminate()
        self.popen.wait(10)
        self.popen.stderr.close()
