"""`edgefl watch` and `edgefl monitor`."""

import contextlib
import json
import os
import select
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from edgefl.errors import LinkError
from edgefl.monitor.connection import add_broker_options, open_link
from edgefl.system.signals import Stopped, raise_on_signal
from edgefl.transport.link import Message
from edgefl.wire.topics import check_federation


def has_reader() -> bool:
    """Return whether anybody reads what this program prints: at a quiet broker `| head` would else
    never end.
    """
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return not any(flags & (select.POLLERR | select.POLLHUP) for _, flags in poll.poll(0))
    except (OSError, ValueError, AttributeError):  # no descriptor, as under a test runner, or no such call
        return True


@click.command(short_help="Messages of a federation as lines.")
@click.argument("topic", default="#")
@add_broker_options("all")
@click.option(
    "--count", type=click.IntRange(0), default=0, help="End after so many messages  [default: no limit]"
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0),
    default=0.0,
    help="End after so many seconds  [default: no limit]",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def watch(
    topic: str, broker: str, enrol: Path | None, federation: str, count: int, timeout_s: float, as_json: bool
) -> None:
    """Print what is said on topics, decoded, a line a message, until Ctrl-C; of models and updates only their
    sizes.

    TOPIC is a part of a federation's topics, with MQTT's wildcards: state, clusters, verdict,
    round/+/summary, device/+/status, device/pi-1/#. A star marks what the broker had kept from before. What
    is none of the protocol is shown as such.

    Example: edgefl watch 'device/+/metrics' --json | jq .message.values.loss
    """
    from edgefl.monitor.message_lines import (
        build_topic_filter,
        decode_message,
        format_json_line,
        format_text_line,
    )

    if federation:
        check_federation(federation)
    subscription = build_topic_filter(topic, federation)
    link = open_link(broker, enrol)
    shown = 0
    until = time.monotonic() + timeout_s
    with raise_on_signal():
        try:
            link.subscribe(subscription)
            while (not count or shown < count) and (not timeout_s or time.monotonic() < until):
                event = link.get(min(0.5, until - time.monotonic()) if timeout_s else 0.5)
                if not isinstance(event, Message):
                    if not has_reader():
                        break
                    continue
                message = decode_message(event.topic, event.payload, event.oversize)
                print(
                    (format_json_line if as_json else format_text_line)(message, time.time(), event.retained),
                    flush=True,
                )
                shown += 1
        except BrokenPipeError:
            # `| head` has what it wanted; what is left in the buffer must not be written at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except Stopped:
            pass
        finally:
            link.close(1.0)


@click.command(short_help="A federation live in the terminal.")
@add_broker_options("the only one on the broker")
@click.option(
    "--once", is_flag=True, help="Print what is known as a table, and end; so it is without a terminal."
)
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(0.1),
    default=1.0,
    show_default=True,
    help="Seconds to listen, with --once.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what is known as JSON, and end.")
def monitor(
    broker: str, enrol: Path | None, federation: str, once: bool, wait_s: float, as_json: bool
) -> None:
    """Show a federation live: round and deadline, devices and why one is not in the round, accuracy spread,
    clusters, bytes.

    When the federation has ended it shows the verdict, also if it is started later: what each device has
    gained.

    It only reads. In a pipe, or with --once, it prints a table of what a broker keeps and of what is said
    while it listens.

    Keys: q quits, / filters, s sorts by the next column (S by the one before), r turns the order around, d or
    Enter opens a device.

    Example: edgefl monitor --broker mqtt://192.168.1.10:1883
    """
    from edgefl.monitor.connection import choose_federation
    from edgefl.monitor.feed import Feed

    # Textual draws on stderr
    live = not (once or as_json) and all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    if live:
        from edgefl.monitor.terminal import Monitor  # says what to install before anything is connected
    # with a link of its own: one that rests between bursts may hear of a second federation too late
    with contextlib.closing(open_link(broker, enrol)) as lookup_link:
        federation = choose_federation(lookup_link, federation)
    link = open_link(broker, enrol, in_bursts=live)
    try:
        feed = Feed(link, federation)
        if live:
            if problem := Monitor(feed.pump, feed.snapshot, lambda: link.is_connected).run():
                raise LinkError(problem)
            return
        with raise_on_signal():
            feed.pump_for(wait_s)
        print_once(feed.snapshot(), as_json)
    except Stopped:
        pass
    finally:
        link.close(1.0)


def print_once(tree: Mapping[str, Any], as_json: bool) -> None:
    """Print a snapshot, as wide as the terminal or 120 columns."""
    from edgefl.monitor.table import format_snapshot

    if as_json:
        click.echo(json.dumps(tree, allow_nan=False))
        return
    width = shutil.get_terminal_size((120, 24)).columns
    for line in format_snapshot(tree, width):
        click.echo(line.rstrip())
