"""Ports of this machine for the servers of tests."""

import socket

from mqtt_broker.broker.dev_broker import LOOPBACK_HOST, reserve_port

_RESERVATIONS: list[socket.socket] = []


def choose_port(host: str = LOOPBACK_HOST) -> int:
    """Return a port that no other program is given until this process ends.

    A server with SO_REUSEADDR can listen on it.
    """
    reservation = reserve_port(host)
    _RESERVATIONS.append(reservation)
    return int(reservation.getsockname()[1])
