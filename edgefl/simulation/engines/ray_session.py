"""A connection to Ray: to the cluster at RAY_ADDRESS, or to a local Ray that is started and stopped here."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from logging import ERROR
from tempfile import TemporaryDirectory

import ray

from edgefl.errors import EdgeflError

_CONNECT_TIMEOUT_S = 10.0


@contextmanager
def open_ray_session(num_cpus: int) -> Iterator[None]:
    """Connect to Ray for the duration of the context. An existing connection stays open.

    Without RAY_ADDRESS a local Ray with `num_cpus` CPUs is started, without dashboard and usage reports.
    Its files are removed at the end.

    Raises:
        EdgeflError: Ray cannot be reached or started.
    """
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = os.environ.get("RAY_ADDRESS", "")
    # a directory of Ray's sockets, whose paths may have 107 bytes: TMPDIR may be too long for that
    with TemporaryDirectory(
        prefix="edgefl-ray-", dir=os.environ.get("RAY_TMPDIR", "/tmp"), ignore_cleanup_errors=True
    ) as directory:
        try:
            if address in ("", "local"):
                ray.init(
                    "local",
                    num_cpus=num_cpus,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=ERROR,
                    _temp_dir=directory,
                )
            else:
                _reach(address)
                ray.init(address, log_to_driver=False, logging_level=ERROR)
        except Exception as error:  # Ray raises the base class when its processes do not start within 30 s
            raise EdgeflError(
                f"cannot connect to Ray at {address or 'this machine'}: {error}; is it up, with the same "
                "Python and Ray? RAY_ADDRESS is the HOST:PORT that `ray start --head` names; unset it for a "
                "Ray of this machine"
            ) from error
        try:
            yield
        finally:
            ray.shutdown()


def _reach(address: str) -> None:
    """Knock at HOST:PORT first, for Ray itself tries for many minutes. OSError when nobody answers."""
    host, separator, port = address.rpartition("://")[2].rpartition(":")
    if separator and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()
