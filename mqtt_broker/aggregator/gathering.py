"""Waiting for devices before a round is opened."""

import time
from collections.abc import Callable

from edgefl.errors import RoundError
from mqtt_broker.aggregator.exchange import Exchange


def wait_for(
    exchange: Exchange,
    held: Callable[[], frozenset[str]],
    note: Callable[[str], None],
    count: int,
    timeout_s: float | None,
    *,
    with_paused: bool = False,
) -> None:
    """Wait until so many devices are online and not paused; RoundError after `timeout_s`.

    The time does not run while one is paused (`held`: by whom leads the federation), since it comes back. One
    that refuses may not.
    """
    until = None if timeout_s is None else time.monotonic() + timeout_s
    told = ""
    while True:
        available = len(exchange.presence.available(held()))
        paused = len(exchange.presence.online()) - available
        if available + paused * with_paused >= count:
            return
        if (
            line := f"waiting for devices: {available} of {count} online"
            + (f", {paused} paused" if paused else "")
        ) != told:
            note(line)
            told = line
        if timeout_s is not None and paused > len(exchange.presence.refusing()):
            until = time.monotonic() + timeout_s
        if until is not None and time.monotonic() > until:
            raise RoundError(
                f"no device came online within {timeout_s:g} s, expected {count}; look at the devices' logs"
            )
        exchange.pump(0.5)
