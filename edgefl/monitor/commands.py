"""`edgefl watch` and `edgefl monitor`."""

import os
import select
import sys
import time
from pathlib import Path

import click

from edgefl.monitor.connection import broker_options, open_link
from edgefl.mqtt import Message
from edgefl.stopping import Stopped, stoppable
from edgefl.wire.topics import check_federation


def has_reader() -> bool:
    """Return whether anybody reads what this program prints: at a quiet broker `| head` would else never end."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return not any(flags & (select.POLLERR | select.POLLHUP) for _, flags in poll.poll(0))
    except (OSError, ValueError, AttributeError):  # no descriptor, as under a test runner, or no such call
        return True


@click.command(short_help="Messages of a federation as lines.")
@click.argument("topic", default="#")
@broker_options("all")
@click.option("--count", type=click.IntRange(0), default=0, help="End after so many messages  [default: no limit]")
@click.option("--timeout", "timeout_s", type=click.FloatRange(0), default=0.0, help="End after so many seconds  [default: no limit]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def watch(topic: str, broker: str, enrol: Path | None, federation: str, count: int, timeout_s: float, as_json: bool) -> None:
    """Print what is said on topics, decoded, a line a message, until Ctrl-C; of models and updates only their sizes.

    TOPIC is a part of a federation's topics, with MQTT's wildcards: state, clusters, round/+/summary, device/+/status, device/pi-1/#.
    A star marks what the broker had kept from before. What is none of the protocol is shown as such.

    Example: edgefl watch 'device/+/metrics' --json | jq .message.values.loss
    """
    from edgefl.monitor.watch import decoded, json_line, text_line, topic_filter

    if federation:
        check_federation(federation)
    wanted = topic_filter(topic, federation)
    link = open_link(broker, enrol)
    shown, until = 0, time.monotonic() + timeout_s
    with stoppable():
        try:
            link.subscribe(wanted)
            while (not count or shown < count) and (not timeout_s or time.monotonic() < until):
                event = link.get(min(0.5, until - time.monotonic()) if timeout_s else 0.5)
                if not isinstance(event, Message):
                    if not has_reader():
                        break
                    continue
                found = decoded(event.topic, event.payload, event.oversize)
                print((json_line if as_json else text_line)(found, time.time(), event.retained), flush=True)
                shown += 1
        except BrokenPipeError:  # `| head` has what it wanted; what is left in the buffer must not be written at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except Stopped:
            pass
        finally:
            link.close(1.0)
