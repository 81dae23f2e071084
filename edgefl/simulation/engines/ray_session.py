"""Connects to the Ray cluster at RAY_ADDRESS, or starts and stops a local Ray."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from logging import ERROR
from tempfile import TemporaryDirectory

import ray

from edgefl.base.errors import EdgeflError

_CONNECT_TIMEOUT_S = 10.0


@contextmanager
def open_ray_session(num_cpus: int) -> Iterator[None]:
    """Connect to Ray for the duration of the context. An existing connection stays open.

    Without RAY_ADDRESS, this starts a local Ray without dashboard and usage reports. Its files are removed at
    the end.

    Args:
        num_cpus: number of CPUs of a local Ray.

    Raises:
        EdgeflError: Ray cannot be reached or started.
    """
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = os.environ.get("RAY_ADDRESS", "")
    # Paths of Ray's sockets have at most 107 bytes, so a long TMPDIR cannot be used.
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
        except Exception as error:  # Ray raises `Exception` if its processes do not start within 30 s
            raise EdgeflError(
                f"cannot connect to Ray at {address or 'this machine'}: {error}; check that it runs with the "
                "same versions of Python and Ray, set RAY_ADDRESS to the HOST:PORT that `ray start --head` "
                "prints, or unset it to use a local Ray"
            ) from error
        try:
            yield
        finally:
            ray.shutdown()


def _reach(address: str) -> None:
    """Connect to HOST:PORT once, because Ray itself would retry for many minutes.

    Raises:
        OSError: the connection failed.
    """
    host, separator, port = address.rpartition("://")[2].rpartition(":")
    if separator and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()
