"""How monitors reach a broker: the options that they share, a link that only reads, and which federation is
meant.
"""

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from edgefl.config import DEFAULT_BROKER
from edgefl.errors import LinkError, WireError
from edgefl.transport.link import Link, Message
from edgefl.wire.messages import STOPPED_PHASE, State
from edgefl.wire.strict_json import decode_json
from edgefl.wire.topics import FederationTopics, check_federation, parse_topic

DISCOVERY_WAIT_S = 0.5
BURST_PAUSE_S = 0.6
MIN_AWAKE_S = 0.1
"""How long a `BurstPause` lasts, and how long the thread is awake at least in between."""
Command = TypeVar("Command", bound=Callable[..., Any])


def add_broker_options(federation: str) -> Callable[[Command], Command]:
    """Return a decorator that adds --broker, --enrol and --federation to a command.

    Args:
        federation: help text of the default federation.
    """

    def add(command: Command) -> Command:
        for option in (
            click.option("--federation", default="", help=f"Which federation  [default: {federation}]"),
            click.option(
                "--enrol",
                type=click.Path(path_type=Path, dir_okay=False),
                help="The file of `edgefl broker watcher`: address and keys.",
            ),
            click.option(
                "--broker",
                default="",
                help="mqtt://HOST:PORT, several with commas  [default: the enrolment's, else "
                f"{DEFAULT_BROKER}]",
            ),
        ):
            command = option(command)
        return command

    return add


class BurstPause:
    """Pauses a link's network thread after a burst of messages, while other messages wait in the socket.

    It is for monitors of hundreds of devices that refresh once per second. Waking up for each message would
    take a third of the time that the messages take.
    """

    def __init__(self) -> None:
        self._paused_at = 0.0

    def __call__(self) -> None:
        """Rest, unless the last rest has only just ended."""
        if time.monotonic() - self._paused_at > MIN_AWAKE_S:
            time.sleep(BURST_PAUSE_S)
            self._paused_at = time.monotonic()


def open_link(broker: str, enrol: Path | None, *, in_bursts: bool = False) -> Link:
    """Return a link that only reads.

    Args:
        in_bursts: pause after bursts. Messages then arrive up to 0.6 s late.

    Raises:
        LinkError: the broker cannot be reached, or refuses the connection.
        ConfigError: the file is not an enrolment.
    """
    # Cryptography, which not every broker needs
    from edgefl.security.enrolment import load_enrolment, make_tls_context

    enrolment = load_enrolment(enrol) if enrol else None
    url = broker or (enrolment.broker if enrolment else DEFAULT_BROKER)
    return Link(
        url,
        f"edgefl-watch-{secrets.token_hex(8)}",
        context=make_tls_context(enrolment) if enrolment else None,
        after_message=BurstPause() if in_bursts else lambda: None,
    )


def find_federations(link: Link) -> dict[str, str]:
    """Return the federations of which the broker keeps a state, phase by name, sorted."""
    topic = FederationTopics("+").state
    link.subscribe(topic)
    phases: dict[str, str] = {}
    until = time.monotonic() + DISCOVERY_WAIT_S
    while (left := until - time.monotonic()) > 0:
        event = link.get(left)
        if not isinstance(event, Message) or not event.payload:
            continue
        try:
            phases[parse_topic(event.topic).federation] = decode_json(State, event.payload).phase
        except WireError:
            continue
        until = max(until, time.monotonic() + 0.1)
    link.unsubscribe(topic)
    return dict(sorted(phases.items()))


def choose_federation(link: Link, name: str) -> str:
    """Return a federation's name: the given name, or the only federation on the broker, or the only one that
    runs.

    Raises:
        LinkError: the broker has no federation, or several. The error lists them.
    """
    if name:
        return check_federation(name)
    phases = find_federations(link)
    running = [federation for federation, phase in phases.items() if phase not in ("done", STOPPED_PHASE)]
    for names in (running, list(phases)):
        if len(names) == 1:
            return names[0]
    if not phases:
        raise LinkError(
            f"no federation is on {link.url}; start one with `edgefl aggregator start`, or name it with "
            "--federation"
        )
    listing = ", ".join(f"{federation} ({phase})" for federation, phase in phases.items())
    raise LinkError(f"{len(phases)} federations are on {link.url}: {listing}; choose one with --federation")
