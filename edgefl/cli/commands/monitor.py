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

from edgefl.base.errors import LinkError
from edgefl.base.names import check_federation
from edgefl.base.system.signals import Stopped, raise_on_signal
from edgefl.protocol.transport.link import Message
from edgefl.watch.monitor.connection import add_broker_options, open_link


def has_reader() -> bool:
    """Return whether standard output still has a reader.

    Without this check, `edgefl watch | head` would never end while the broker is quiet.
    """
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return not any(flags & (select.POLLERR | select.POLLHUP) for _, flags in poll.poll(0))
    except (OSError, ValueError, AttributeError):  # no descriptor, as under a test runner, or no such call
        return True


@click.command(short_help="Print the messages of a federation as lines.")
@click.argument("topic", default="#")
@add_broker_options("all")
@click.option(
    "--count", type=click.IntRange(0), default=0, help="Exit after this many messages  [default: no limit]"
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0),
    default=0.0,
    help="Exit after this many seconds  [default: no limit]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def watch(
    topic: str, broker: str, enrol: Path | None, federation: str, count: int, timeout_s: float, as_json: bool
) -> None:
    """Print the messages of a federation, decoded, one per line, until Ctrl-C. Models and updates are shown
    by their sizes.

    TOPIC is the end of a federation's topics, with MQTT wildcards: state, clusters, verdict, round/+/summary,
    device/+/status, device/pi-1/#. A star marks retained messages. Messages that do not follow the protocol
    are marked.

    Example: edgefl watch 'device/+/metrics' --json | jq .message.values.loss
    """
    from edgefl.watch.monitor.message_lines import (
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
            # `| head` has ended: the rest of the buffer must not be written at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except Stopped:
            pass
        finally:
            link.close(1.0)


@click.command(short_help="Show a federation live in the terminal.")
@add_broker_options("the only one on the broker")
@click.option(
    "--once",
    is_flag=True,
    help="Print one table and exit. This is the default when standard output is not a terminal.",
)
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(0.1),
    default=1.0,
    show_default=True,
    help="With --once or --json: seconds to listen.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and exit.")
def monitor(
    broker: str, enrol: Path | None, federation: str, once: bool, wait_s: float, as_json: bool
) -> None:
    """Show a federation live: the round and its deadline, the devices and why a device is not in the round,
    the accuracy over clients, clusters and bytes.

    After the federation has ended, the monitor shows the verdict, even when it is started later. The verdict
    says what each device has gained.

    The monitor only reads. On a terminal it waits for the first federation of the broker. In a pipe, or with
    --once, it prints one table. The table shows the retained
    messages of the broker and the messages that arrive while the monitor listens.

    Keys: q quits, / filters, s sorts by the next column (S by the previous one), r reverses the order, d or
    Enter opens a device.

    Example: edgefl monitor --broker mqtt://192.168.1.10:1883
    """
    from edgefl.watch.monitor.connection import choose_federation, wait_for_federation
    from edgefl.watch.monitor.feed import Feed

    # Textual draws on stderr
    live = not (once or as_json) and all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    if live:
        from edgefl.watch.monitor.terminal import (
            Monitor,  # before the connection, so that a missing extra shows
        )
    # A separate link, because a link that reads in bursts may report a second federation too late
    with contextlib.closing(open_link(broker, enrol)) as lookup_link:
        federation = (
            wait_for_federation(lookup_link, federation, lambda line: click.echo(line, err=True))
            if live
            else choose_federation(lookup_link, federation)
        )
    link = open_link(broker, enrol, in_bursts=live)
    try:
        feed = Feed(link, federation)
        if live:
            if problem := Monitor(feed.pump, feed.snapshot, lambda: link.is_connected).run():
                raise LinkError(problem)
            return
        with raise_on_signal():
            feed.pump_for(wait_s)
        tree = feed.snapshot()
        if not (tree["phase"] or tree["devices"]):
            raise LinkError(
                f"no message of the federation {federation!r} is on {link.url}, expected one within "
                f"{wait_s:g} s; check its name, raise --wait, or start it with `edgefl aggregator start`"
            )
        print_once(tree, as_json)
    except Stopped:
        pass
    finally:
        link.close(1.0)


def print_once(tree: Mapping[str, Any], as_json: bool) -> None:
    """Print a snapshot as JSON, or as a table that fits the terminal.

    Args:
        tree: the snapshot, see `edgefl.watch.monitor.view`.
        as_json: print one JSON object instead of the table.
    """
    from edgefl.watch.monitor.table import format_snapshot

    if as_json:
        click.echo(json.dumps(tree, allow_nan=False))
        return
    width = shutil.get_terminal_size((120, 24)).columns
    for line in format_snapshot(tree, width):
        click.echo(line.rstrip())
