"""mosquitto for the fleet benchmark, configured by `edgefl broker init` or bare for the floor."""

import getpass
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from edgefl.base.errors import ConfigError, EdgeflError, LinkError
from edgefl.protocol.security.authority import create_enrolment
from edgefl.protocol.security.enrolment import Enrolment, load_enrolment, make_tls_context, save_enrolment
from edgefl.protocol.transport.link import Link
from mqtt_broker.broker.dev_broker import LOOPBACK_HOST, find_mosquitto
from tests.benchmarks.process import start_program
from tests.support.ports import choose_port

WATCHER = "watch"
"""The account that reads the rounds' summaries and the broker's count of dropped messages. It is the only
change to the configuration that `broker init` writes.
"""
WATCHER_RULES = f"\nuser {WATCHER}\ntopic read $SYS/broker/publish/messages/dropped\n"
DAYS = 2
START_S = 20.0


def get_mosquitto_path() -> str:
    """Return the path of mosquitto.

    Raises:
        ConfigError: mosquitto is not installed.
    """
    path = find_mosquitto()
    if path is None:
        raise ConfigError(
            "mosquitto is not installed, and a fleet is measured on it; `apt install mosquitto`"
        )
    return path


def read_mosquitto_version() -> str:
    """Return the version that mosquitto prints."""
    output = subprocess.run(
        [get_mosquitto_path(), "-h"], capture_output=True, text=True, check=False
    ).stdout.split()
    return output[output.index("version") + 1] if "version" in output else "unknown"


def make_keys(directory: Path, clients: Sequence[str]) -> Path:
    """Make authority, configuration and enrolments, and return the directory of the broker."""
    broker = directory / "broker"
    port = str(choose_port())
    command = [
        sys.executable,
        "-m",
        "edgefl",
        "broker",
        "init",
        str(broker),
        "--host",
        "localhost",
        "--port",
        port,
        "--bind",
        LOOPBACK_HOST,
    ]
    command += ["--user", getpass.getuser()]  # the benchmark deletes and makes the broker's data directory
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise EdgeflError(f"the broker's keys could not be made: {made.stderr.strip()[-300:]}")
    for client_id in (WATCHER, *clients):
        save_enrolment(create_enrolment(broker, client_id, DAYS), directory / f"{client_id}.enrol")
    with (broker / "acl").open("a") as acl:
        acl.write(WATCHER_RULES)
    with (broker / "mosquitto.conf").open("a") as conf:
        conf.write("sys_interval 1\n")
    return broker


@contextmanager
def start_secured_broker(directory: Path, broker: Path) -> Iterator["subprocess.Popen[str]"]:
    """Run mosquitto with the configuration in `broker` until the context ends. Yields its process."""
    enrolment = load_enrolment(directory / f"{WATCHER}.enrol")
    shutil.rmtree(broker / "data", ignore_errors=True)
    (broker / "data").mkdir(mode=0o700)
    with start_program(
        [get_mosquitto_path(), "-c", str(broker / "mosquitto.conf")], directory / "mosquitto.log"
    ) as process:
        _wait_for_mosquitto(process, enrolment.broker, enrolment)
        yield process


@contextmanager
def start_bare_broker(directory: Path, broker: Path | None) -> Iterator[int]:
    """Run mosquitto without access list and persistence, and yield its port.

    Args:
        directory: directory for configuration and log.
        broker: directory with keys for TLS. None runs it without TLS.
    """
    port = choose_port()
    tls = (
        f"cafile {broker}/ca.pem\ncertfile {broker}/server.pem\nkeyfile {broker}/server.key\n"
        if broker
        else ""
    )
    conf = directory / "bare.conf"
    conf.write_text(
        f"listener {port} {LOOPBACK_HOST}\n{tls}allow_anonymous true\nset_tcp_nodelay true\nuser root\n"
    )
    with start_program([get_mosquitto_path(), "-c", str(conf)], directory / "bare.log") as process:
        enrolment = load_enrolment(directory / f"{WATCHER}.enrol") if broker else None
        _wait_for_mosquitto(
            process, f"mqtts://localhost:{port}" if broker else f"mqtt://{LOOPBACK_HOST}:{port}", enrolment
        )
        yield port


def _wait_for_mosquitto(process: "subprocess.Popen[str]", url: str, enrolment: Enrolment | None) -> None:
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            Link(
                url, "probe", timeout_s=2.0, context=make_tls_context(enrolment) if enrolment else None
            ).close(1.0)
            return
        except LinkError:
            time.sleep(0.05)
    raise EdgeflError(f"mosquitto did not answer at {url} within {START_S:g} s; run it by hand to see why")
