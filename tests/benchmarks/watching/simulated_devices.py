"""The messages of many devices and their aggregator, sent by one process over one connection. The benchmarks
of monitor and dashboard use them.

    python -m tests.benchmarks.watching.simulated_devices mqtt://localhost:1883 --devices 500

Nothing is trained. All figures are random. Each device publishes its status (retained) and its metrics once a
period, and takes part in rounds: task, announcement, receipt, metrics. A few devices are offline, paused,
slow or rejected. Clusters are published after each round.
"""

import math
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass

import click
import numpy as np

from edgefl import __version__
from edgefl.protocol.transport.link import Link
from edgefl.protocol.wire.messages import Begin, Clusters, Metrics, Receipt, State, Status, Summary, Task
from edgefl.protocol.wire.strict_json import encode_json
from edgefl.protocol.wire.topics import FederationTopics

PLAN = "0" * 64
GROUPS = 4
SIZE = 60_000
ScheduledMessage = tuple[float, str, bytes, bool]
"""Time in the round in seconds, topic, payload, and whether the message is retained."""


@dataclass(frozen=True)
class Fleet:
    """The simulated fleet.

    Attributes:
        federation: name of the federation.
        devices: number of devices.
        period_s: seconds between two statuses or metrics of a device.
        round_s: seconds of a round.
        rounds: number of rounds that the aggregator announces.
        seed: random seed.
    """

    federation: str = "fleet"
    devices: int = 500
    period_s: float = 5.0
    round_s: float = 20.0
    rounds: int = 1000
    seed: int = 1

    @property
    def ids(self) -> tuple[str, ...]:
        """The client ids."""
        return tuple(f"pi-{i:03d}" for i in range(self.devices))


def get_fate(index: int) -> str:
    """Return the behaviour of a device, which is the same in all rounds. Most devices answer in time."""
    return {7: "offline", 17: "paused", 27: "slow", 37: "rejected"}.get(index % 50, "fine")


def list_round_messages(fleet: Fleet, session: str, number: int, now: float) -> list[ScheduledMessage]:
    """Return all messages of a round that opens at `now` (seconds since 1970), sorted by time."""
    return sorted(_generate_round(fleet, session, number, now), key=lambda due: due[0])


def compute_message_rate(fleet: Fleet) -> float:
    """Return the messages a second from the second round on."""
    return len(list_round_messages(fleet, "", 2, 0.0)) / fleet.round_s


def _generate_round(fleet: Fleet, session: str, number: int, now: float) -> Iterator[ScheduledMessage]:
    topics = FederationTopics(fleet.federation)
    rng = np.random.default_rng([fleet.seed, number])
    deadline_s = 0.9 * fleet.round_s
    ids = fleet.ids
    fates = {client_id: get_fate(i) for i, client_id in enumerate(ids)}
    tasked = [client_id for client_id in ids if fates[client_id] not in ("offline", "paused")]
    state = State(
        federation=fleet.federation,
        session=session,
        phase="federate",
        round=number,
        rounds=fleet.rounds,
        cohort_size=len(tasked),
        deadline_s=deadline_s,
        plan=PLAN,
        ts=now,
    )
    yield 0.0, topics.state, encode_json(state), True
    nonce = secrets.token_hex(8)
    accepted = 0
    losses = 2.0 / math.sqrt(number) + rng.normal(0, 0.05, len(ids))
    task = encode_json(
        Task(
            session=session,
            round=number,
            phase="federate",
            plan=PLAN,
            models={"global": PLAN},
            scalars={},
            seed=1,
            deadline_s=deadline_s,
            codec="fp32",
            max_staleness=0,
            budget_s=0.0,
            nonce=nonce,
            ts=now,
        )
    )
    for i, client_id in enumerate(ids):
        yield from _generate_periodic(fleet, topics, client_id, i, number, float(losses[i]), now)
        if client_id not in tasked:
            continue
        yield 0.1, topics.format_device(client_id, "task"), task, False
        if fates[client_id] == "slow":
            continue
        upload_s = float(rng.uniform(0.1, 0.8)) * deadline_s
        sha256 = f"{number:032x}{i:032x}"
        values = {"loss": float(losses[i]), "seconds": upload_s}
        begin = Begin(
            client_id=client_id,
            session=session,
            round=number,
            plan=PLAN,
            sha256=sha256,
            size=SIZE,
            count=1,
            chunk_bytes=245760,
            num_samples=40 + i,
            metrics=values,
            nonce=nonce,
            ts=now + upload_s,
        )
        yield upload_s, topics.format_upload(client_id, sha256, "begin"), encode_json(begin), False
        outcome, reason = (
            ("rejected", "global/fc1/kernel is not finite; restart it")
            if fates[client_id] == "rejected"
            else ("ok", "")
        )
        accepted += outcome == "ok"
        yield (
            upload_s + 0.02,
            topics.format_device(client_id, "receipt"),
            encode_json(
                Receipt(
                    round=number,
                    sha256=sha256,
                    outcome=outcome,
                    missing=(),
                    reason=reason,
                    nonce=nonce,
                    ts=now + upload_s,
                )
            ),
            False,
        )
    dropped = tuple(client_id for client_id in tasked if fates[client_id] != "fine")
    scores = np.clip(1 - losses / 2.5, 0, 1)
    low, high = np.percentile(scores, (10, 90)).tolist()
    summary = Summary(
        round=number,
        phase="federate",
        updates=accepted,
        loss=float(losses.mean()),
        accuracy_mean=float(scores.mean()),
        accuracy_p10=low,
        accuracy_p90=high,
        bytes_up=accepted * SIZE,
        bytes_down=len(tasked) * SIZE,
        seconds=deadline_s,
        dropped=dropped,
        ts=now + deadline_s,
    )
    yield deadline_s, topics.format_summary(number), encode_json(summary), False
    assignment = {client_id: (i + number * (i % 10 == 0)) % GROUPS for i, client_id in enumerate(ids)}
    yield (
        deadline_s + 0.05,
        topics.clusters,
        encode_json(
            Clusters(
                session=session,
                round=number,
                assignment=assignment,
                layer="",
                clients=(),
                matrix=(),
                linkage=(),
                cut=math.nan,
                ts=now,
            )
        ),
        True,
    )


def _generate_periodic(
    fleet: Fleet, topics: FederationTopics, client_id: str, index: int, number: int, loss: float, now: float
) -> Iterator[ScheduledMessage]:
    """Yield a device's statuses and metrics of a round."""
    kind = get_fate(index)
    due_s = (index / fleet.devices) * fleet.period_s if number > 1 else 0.0
    paused = "on battery" if kind == "paused" else ""
    while due_s < fleet.round_s:
        status = Status(
            client_id=client_id,
            boot_id=f"{index:016x}",
            online=kind != "offline",
            born=now,
            num_samples=40 + index,
            version=__version__,
            ts=now + due_s,
            paused=paused,
        )
        yield due_s, topics.format_device(client_id, "status"), encode_json(status), True
        if kind != "offline":
            values = {"loss": loss, "accuracy": max(0.0, 1 - loss / 2.5)} | {
                f"gate_{k}": (k + 1) / 10 for k in range(GROUPS)
            }
            metrics = Metrics(
                client_id=client_id,
                round=number,
                values=values,
                rss_mb=45.0 + index % 7,
                peak_rss_mb=70.0,
                temperature_c=40.0 + index % 20 + due_s,
                seconds=3.0,
                ts=now + due_s,
            )
            yield due_s, topics.format_device(client_id, "metrics"), encode_json(metrics), False
        due_s += fleet.period_s


def speak(url: str, fleet: Fleet, seconds: float) -> int:
    """Publish rounds for `seconds`, and return the number of messages.

    Raises:
        LinkError: the connection fails.
    """
    link = Link(url, f"edgefl-fleet-{secrets.token_hex(8)}")
    session = secrets.token_hex(8)
    published = 0
    deadline = time.monotonic() + seconds
    number = 0
    try:
        while time.monotonic() < deadline:
            number = number + 1
            opened = time.monotonic()
            for due_s, topic, payload, retained in list_round_messages(fleet, session, number, time.time()):
                if (wait_s := min(opened + due_s, deadline) - time.monotonic()) > 0:
                    # Without a subscription this only waits, and raises if the link breaks
                    link.get(wait_s)
                if time.monotonic() >= deadline:
                    break
                link.publish(topic, payload, qos=0, retain=retained)
                published += 1
            if (wait_s := min(opened + fleet.round_s, deadline) - time.monotonic()) > 0:
                link.get(wait_s)
    finally:
        link.close()
    return published


@click.command()
@click.argument("broker")
@click.option("--federation", default=Fleet.federation, show_default=True)
@click.option("--devices", type=click.IntRange(1, 2000), default=Fleet.devices, show_default=True)
@click.option(
    "--period",
    type=click.FloatRange(0.1),
    default=Fleet.period_s,
    show_default=True,
    help="Seconds between a device's statuses.",
)
@click.option(
    "--round",
    "round_s",
    type=click.FloatRange(1.0),
    default=Fleet.round_s,
    show_default=True,
    help="Seconds of a round.",
)
@click.option(
    "--seconds", type=click.FloatRange(1.0), default=60.0, show_default=True, help="How long to speak."
)
def main(broker: str, federation: str, devices: int, period: float, round_s: float, seconds: float) -> None:
    """Publish the messages of many devices."""
    published = speak(
        broker, Fleet(federation=federation, devices=devices, period_s=period, round_s=round_s), seconds
    )
    click.echo(f"{published} messages of {devices} devices in {seconds:g} s")


if __name__ == "__main__":
    main()
