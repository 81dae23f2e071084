"""Connects monitors to a broker: shared options, a read-only link, and the choice of a federation."""

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from edgefl.base.config import DEFAULT_BROKER
from edgefl.base.errors import LinkError, WireError
from edgefl.base.names import check_federation
from edgefl.protocol.transport.link import Link, Message
from edgefl.protocol.wire.messages import STOPPED_PHASE, State
from edgefl.protocol.wire.strict_json import decode_json
from edgefl.protocol.wire.topics import FederationTopics, parse_topic

DISCOVERY_WAIT_S = 0.5
BURST_PAUSE_S = 0.6
MIN_AWAKE_S = 0.1
"""Duration of a `BurstPause`, and minimum time between two of them."""
Command = TypeVar("Command", bound=Callable[..., Any])


def add_broker_options(federation: str) -> Callable[[Command], Command]:
    """Return a decorator that adds --broker, --enrol and --federation to a command.

    Args:
        federation: describes the default of --federation in the help text.
    """

    def add(command: Command) -> Command:
        for option in (
            click.option("--federation", default="", help=f"Name of the federation  [default: {federation}]"),
            click.option(
                "--enrol",
                type=click.Path(path_type=Path, dir_okay=False),
                help="Enrolment file from `edgefl broker watcher`, with address and keys.",
            ),
            click.option(
                "--broker",
                default="",
                help="mqtt://HOST:PORT, or several separated by commas  [default: the enrolment's, or "
                f"{DEFAULT_BROKER}]",
            ),
        ):
            command = option(command)
        return command

    return add


class BurstPause:
    """Pauses the network thread of a link after a message, so that messages arrive in bursts.

    Messages that arrive during a pause wait in the socket. Monitors that refresh once a second for hundreds
    of devices use it to save processor time. Without it, a third of the time spent on a message goes into
    waking up the thread.
    """

    def __init__(self) -> None:
        self._paused_at = 0.0

    def __call__(self) -> None:
        """Pause for `BURST_PAUSE_S`, unless the last pause ended at most `MIN_AWAKE_S` ago."""
        if time.monotonic() - self._paused_at > MIN_AWAKE_S:
            time.sleep(BURST_PAUSE_S)
            self._paused_at = time.monotonic()


def open_link(broker: str, enrol: Path | None, *, in_bursts: bool = False) -> Link:
    """Return a link for reading only.

    Args:
        broker: URLs of brokers, separated by commas. Empty selects the broker of the enrolment, or the
            default broker without an enrolment.
        enrol: the file that `edgefl broker watcher` wrote, or None for a broker without keys.
        in_bursts: reads messages in bursts, up to 0.6 s late. See `BurstPause`.

    Raises:
        LinkError: the broker is unreachable or refuses the connection.
        ConfigError: `enrol` is not an enrolment file, or other users can read it.
    """
    # This imports cryptography, which is slow to load and which not every broker needs.
    from edgefl.protocol.security.enrolment import load_enrolment, make_tls_context

    enrolment = load_enrolment(enrol) if enrol else None
    url = broker or (enrolment.broker if enrolment else DEFAULT_BROKER)
    return Link(
        url,
        f"edgefl-watch-{secrets.token_hex(8)}",
        context=make_tls_context(enrolment) if enrolment else None,
        after_message=BurstPause() if in_bursts else lambda: None,
    )


def find_federations(link: Link) -> dict[str, str]:
    """Return the phase of each federation on the broker, sorted by federation name.

    A federation is on the broker if the broker retains its state.

    Raises:
        LinkError: the link broke, or the broker refuses the subscription.
    """
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


def wait_for_federation(link: Link, name: str, show: Callable[[str], None]) -> str:
    """Return the name of the federation to watch, and wait for the first one if the broker has none yet.

    Args:
        name: name of a federation, or empty.
        show: receives one line before the wait.

    Raises:
        ConfigError: the name is not a valid federation name.
        LinkError: the link broke, or the broker has several federations. The message lists them.
    """
    if not name and not find_federations(link):
        show(f"no federation is on {link.url} yet; waiting for the first one")
        while not find_federations(link):
            pass  # Each search takes DISCOVERY_WAIT_S
    return choose_federation(link, name)


def choose_federation(link: Link, name: str) -> str:
    """Return the name of the federation to watch.

    Without a name, it is the only running federation on the broker, or the only federation.

    Args:
        link: a link to the broker.
        name: name of a federation, or empty.

    Raises:
        ConfigError: the name is not a valid federation name.
        LinkError: the broker has no federation, or several of them. The message lists them.
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
