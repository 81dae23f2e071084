"""A mosquitto for tests that need a broker of their own."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mqtt_broker.broker.dev_broker import find_mosquitto, wait_until_up, write_conf


@contextlib.contextmanager
def mosquitto(port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run mosquitto on a port of loopback; end it and remove its directory at the end."""
    program = find_mosquitto()
    assert program is not None
    with tempfile.TemporaryDirectory(prefix="edgefl-broker-") as directory:
        conf = write_conf(Path(directory), port)
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
