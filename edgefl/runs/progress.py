"""What a long run tells of itself on stderr."""

import time

import click

from edgefl.simulate import Record
from edgefl.types import ServerState


class RoundProgress:
    """Tells of rounds on stderr, a line every `every_s` seconds at most, with the time that is left."""

    def __init__(self, rounds: int, label: str = "", every_s: float = 2.0) -> None:
        self._label = label
        self._rounds, self._every_s, self._told, self._seconds, self._began = rounds, every_s, 0.0, 0.0, 0.0

    def __call__(self, state: ServerState, record: Record) -> None:
        """Take the round that is over."""
        self._seconds = record.seconds if not self._seconds else 0.8 * self._seconds + 0.2 * record.seconds
        now = time.monotonic()
        if now - self._told < self._every_s and record.round < self._rounds:
            return
        self._told = now
        left = self._seconds * (self._rounds - record.round)
        phase = "" if record.phase == "federate" else f" {record.phase}"
        told = f"loss {record.loss:.4f}, {record.seconds:.1f} s; {clock(left)} left"
        click.echo(f"{self._label}round {record.round}/{self._rounds}{phase}: {told}", err=True)

    def ending(self, done: int, clients: int) -> None:
        """Take a client that has ended."""
        now = time.monotonic()
        if done == 1:
            self._began = now
        if done < clients and now - self._told < self._every_s:
            return
        self._told = now
        left = f"; {clock((now - self._began) / (done - 1) * (clients - done))} left" if done > 1 else ""
        click.echo(f"{self._label}personalize: {done} of {clients} clients{left}", err=True)


def clock(seconds: float) -> str:
    """Return a duration for a person: 8 s, 3 min, 2 h 05 min."""
    minutes, hours = round(seconds / 60), int(seconds // 3600)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if hours == 0 else f"{hours} h {round(seconds / 60) % 60:02d} min"
