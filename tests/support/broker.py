"""A mosquitto for tests that need a broker of their own."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mqtt_broker.broker.dev_broker import find_mosquitto, wait_until_up, write_conf


@contextlib.contextmanager
def mosquitto(port: int, settings: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """Run mosquitto on a port of loopback; end it and remove its directory at the end.

    Args:
        port: the port.
        settings: lines for the configuration of mosquitto.
    """
    program = find_mosquitto()
    assert program is not None
    with tempfile.TemporaryDirectory(prefix="edgefl-broker-") as directory:
        conf = write_conf(Path(directory), port)
        conf.write_text(f"{conf.read_text()}{settings}\n")
        process = subprocess.Popen([program, "-c", str(conf)], stdout=subprocess.DEVNULL)
        try:
            wait_until_up(port, lambda: process.poll() is None)
            yield process
        finally:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
