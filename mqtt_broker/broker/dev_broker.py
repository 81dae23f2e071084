"""The dev broker: mosquitto if it is installed, otherwise amqtt in its 3.1.1 mode.

By default it listens on the loopback address only.
"""

import asyncio
import contextlib
import importlib.util
import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgefl.base.errors import ConfigError, LinkError
from edgefl.protocol.transport.link import Link
from mqtt_broker.broker.mosquitto_config import MAX_QUEUED_BYTES, choose_limits

LOOPBACK_HOST = "127.0.0.1"
ANY_HOST = "0.0.0.0"
# The limits per message are those of the deployment, so that the dev broker rejects an oversize packet too
DEV_CONF_TEMPLATE = """memory_limit {memory_limit}
listener {port} {host}
allow_anonymous true
persistence false
max_packet_size 262144
max_queued_messages 100000
max_queued_bytes {max_queued_bytes}
persistent_client_expiration 1h
max_inflight_messages 20
set_tcp_nodelay true
log_dest stderr
log_type error
log_type warning
"""


def choose_kind(kind: str) -> str:
    """Return the kind of broker to run, `mosquitto` or `amqtt`.

    Args:
        kind: `mosquitto`, `amqtt`, or `auto` for mosquitto if it is installed and amqtt otherwise.

    Raises:
        ConfigError: the requested kind is not installed.
    """
    if kind == "auto":
        kind = "mosquitto" if find_mosquitto() else "amqtt"
    if kind == "mosquitto" and not find_mosquitto():
        raise ConfigError("mosquitto is not on PATH; `apt install mosquitto`, or pass --kind amqtt")
    if kind == "amqtt" and importlib.util.find_spec("amqtt") is None:
        raise ConfigError("amqtt is not installed; `apt install mosquitto`, or pip install -e '.[broker]'")
    return kind


def find_mosquitto() -> str | None:
    """Return the path of mosquitto, or None."""
    # Debian installs it into a directory that is not on the PATH of an ordinary account
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


def reserve_port(host: str = LOOPBACK_HOST) -> socket.socket:
    """Return a socket that reserves a free port of an address until it is closed.

    The system does not assign the port to another program that asks for any free port. A server that sets
    SO_REUSEADDR, as brokers do, can listen on it. Without a reservation another program may get the port
    before the server listens.
    """
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind((host, 0))
    return reservation


def check_port(port: int, host: str = LOOPBACK_HOST) -> None:
    """Check that a server can listen on a port of an address.

    Args:
        port: TCP port.
        host: address to listen on.

    Raises:
        LinkError: the port is in use, or the address is not one of this machine.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            broker = (
                f", a broker answers there already; use mqtt://{find_local_address(host)}:{port}, or"
                if _has_broker(port, host)
                else ";"
            )
            raise LinkError(
                f"port {port} of {host} cannot be used: {error.strerror}{broker} give --port 0 for a free one"
            ) from error


def find_local_address(host: str) -> str:
    """Return the address at which this machine reaches a server that listens on `host`."""
    return LOOPBACK_HOST if host == ANY_HOST else host


def _has_broker(port: int, host: str) -> bool:
    try:
        Link(
            f"mqtt://{find_local_address(host)}:{port}", f"edgefl-probe-{secrets.token_hex(4)}", timeout_s=1.0
        ).close(1.0)
    except LinkError:
        return False
    return True


def wait_until_up(
    port: int, is_alive: Callable[[], bool], timeout_s: float = 10.0, host: str = LOOPBACK_HOST
) -> None:
    """Wait until a broker answers on a port.

    Args:
        is_alive: returns whether the broker's process still runs.
        timeout_s: longest wait in seconds.
        host: address that the broker listens on.

    Raises:
        LinkError: the broker ended, or did not answer within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while is_alive() and time.monotonic() < deadline:
        with contextlib.suppress(LinkError):
            Link(f"mqtt://{find_local_address(host)}:{port}", "edgefl-probe", timeout_s=1.0).close(1.0)
            return
        time.sleep(0.02)
    raise LinkError(
        f"the broker did not answer on port {port} within {timeout_s:g} s; choose another with --port, or "
        "another --kind"
    )


def write_conf(directory: Path, port: int, host: str = LOOPBACK_HOST) -> Path:
    """Write the mosquitto.conf of a dev broker and return its path.

    Args:
        directory: directory of the file. It must exist.
        host: address to listen on.

    Raises:
        OSError: the file cannot be written.
    """
    conf = directory / "mosquitto.conf"
    values = {"memory_limit": choose_limits().memory_mb * 2**20, "max_queued_bytes": MAX_QUEUED_BYTES}
    conf.write_text(DEV_CONF_TEMPLATE.format(port=port, host=host, **values))
    return conf


def run_mosquitto(port: int, on_started: Callable[[str], None], host: str = LOOPBACK_HOST) -> None:
    """Replace this process by mosquitto. Every signal to it, including SIGKILL, then ends the broker.

    Args:
        on_started: receives the broker's URL when the broker answers. It is called in another process.
        host: address to listen on.
    """
    program = find_mosquitto()
    broker_pid = os.getpid()
    assert program is not None
    directory = Path(tempfile.mkdtemp(prefix="edgefl-broker-"))
    directory.chmod(0o755)
    conf = write_conf(directory, port, host)
    if os.fork() == 0:
        # The grandchild reports that the broker answers, and removes the directory. mosquitto itself has no
        # child process to wait for
        if os.fork() == 0:
            with contextlib.suppress(LinkError, OSError):
                wait_until_up(port, lambda: _is_running(broker_pid), host=host)
                on_started(f"mqtt://{find_local_address(host)}:{port}")
            shutil.rmtree(directory, ignore_errors=True)
        os._exit(0)
    os.wait()
    os.execv(program, [program, "-c", str(conf)])


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def run_amqtt(port: int, on_started: Callable[[str], None], host: str = LOOPBACK_HOST) -> None:
    """Run amqtt in this process until SIGTERM or SIGINT.

    Args:
        on_started: receives the broker's URL when the broker answers.
        host: address to listen on.
    """
    logging.getLogger("amqtt").setLevel(logging.CRITICAL)
    logging.getLogger("transitions").setLevel(logging.CRITICAL)
    asyncio.run(_serve_amqtt(port, on_started, host))


async def _serve_amqtt(port: int, on_started: Callable[[str], None], host: str) -> None:
    from amqtt.broker import Broker

    config: dict[str, Any] = {
        "listeners": {"default": {"type": "tcp", "bind": f"{host}:{port}"}},
        "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
    }
    broker = Broker(config)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    await broker.start()
    try:
        on_started(f"mqtt://{find_local_address(host)}:{port}")
        await ended.wait()
    finally:
        await broker.shutdown()


def run_broker(
    kind: str, port: int, on_started: Callable[[str, str], None], host: str = LOOPBACK_HOST
) -> None:
    """Run a broker until SIGTERM or SIGINT.

    Args:
        kind: `mosquitto`, `amqtt`, or `auto` for mosquitto if it is installed and amqtt otherwise.
        port: TCP port of the broker. 0 chooses a free port.
        on_started: receives the broker's URL and kind as soon as the broker answers.
        host: address to listen on. The broker has no authentication: any machine that reaches the address can
            read and write all messages.

    Raises:
        ConfigError: the kind is not installed.
        LinkError: the port is in use.
    """
    kind = choose_kind(kind)
    run = run_mosquitto if kind == "mosquitto" else run_amqtt
    with reserve_port(host) if port == 0 else contextlib.nullcontext() as reservation:
        if reservation is not None:
            reservation.set_inheritable(True)  # mosquitto replaces this process and must keep the reservation
            port = int(reservation.getsockname()[1])
        check_port(port, host)
        run(port, lambda url: on_started(url, kind), host)
