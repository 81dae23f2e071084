"""mosquitto for the fleet benchmark: as `edgefl broker init` configures it, or bare for the floor."""

import getpass
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from edgefl.errors import ConfigError, EdgeflError, LinkError
from edgefl.security.authority import create_enrolment
from edgefl.security.enrolment import Enrolment, load_enrolment, make_tls_context, save_enrolment
from edgefl.transport.link import Link
from mqtt_broker.broker.dev_broker import LOOPBACK_HOST, find_mosquitto
from tests.benchmarks.process import running
from tests.support.ports import choose_port

WATCH = "watch"
"""Who reads the rounds' summaries and the broker's count of dropped messages; the one change to what `broker
init` writes.
"""
WATCHED = f"\nuser {WATCH}\ntopic read $SYS/broker/publish/messages/dropped\n"
DAYS = 2
START_S = 20.0


def mosquitto_path() -> str:
    """Return the path of mosquitto; ConfigError when it is not installed."""
    path = find_mosquitto()
    if path is None:
        raise ConfigError(
            "mosquitto is not installed, and a fleet is measured on it; `apt install mosquitto`"
        )
    return path


def mosquitto_version() -> str:
    """Return mosquitto's version as it says it."""
    said = subprocess.run(
        [mosquitto_path(), "-h"], capture_output=True, text=True, check=False
    ).stdout.split()
    return said[said.index("version") + 1] if "version" in said else "unknown"


def make_keys(directory: Path, clients: Sequence[str]) -> Path:
    """Make authority, configuration and enrolments by the public command and `enrol`; returns the directory
    of the broker.
    """
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
    command += ["--user", getpass.getuser()]  # the benchmark makes the broker's data directory anew
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise EdgeflError(f"the broker's keys could not be made: {made.stderr.strip()[-300:]}")
    for client_id in (WATCH, *clients):
        save_enrolment(create_enrolment(broker, client_id, DAYS), directory / f"{client_id}.enrol")
    with (broker / "acl").open("a") as acl:
        acl.write(WATCHED)
    with (broker / "mosquitto.conf").open("a") as conf:
        conf.write("sys_interval 1\n")
    return broker


@contextmanager
def secured_broker(directory: Path, broker: Path) -> Iterator["subprocess.Popen[str]"]:
    """Run mosquitto with the configuration in `broker`, until the context ends; yield its process."""
    own = load_enrolment(directory / f"{WATCH}.enrol")
    shutil.rmtree(broker / "data", ignore_errors=True)
    (broker / "data").mkdir(mode=0o700)
    with running(
        [mosquitto_path(), "-c", str(broker / "mosquitto.conf")], directory / "mosquitto.log"
    ) as process:
        _wait(process, own.broker, own)
        yield process


@contextmanager
def bare_broker(directory: Path, broker: Path | None) -> Iterator[int]:
    """Run mosquitto as it is, without access list or persistence, and yield its port; `broker`: with TLS by
    the keys there.
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
    with running([mosquitto_path(), "-c", str(conf)], directory / "bare.log") as process:
        own = load_enrolment(directory / f"{WATCH}.enrol") if broker else None
        _wait(process, f"mqtts://localhost:{port}" if broker else f"mqtt://{LOOPBACK_HOST}:{port}", own)
        yield port


def _wait(process: "subprocess.Popen[str]", url: str, own: Enrolment | None) -> None:
    until = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < until:
        try:
            Link(url, "probe", timeout_s=2.0, context=make_tls_context(own) if own else None).close(1.0)
            return
        except LinkError:
            time.sleep(0.05)
    raise EdgeflError(f"mosquitto did not answer at {url} within {START_S:g} s; run it by hand to see why")
