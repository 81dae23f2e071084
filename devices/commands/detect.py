"""The command `edgefl device detect`."""

import json
from pathlib import Path

import click

from edgefl.base.errors import ConfigError
from edgefl.base.system.files import to_json_value
from edgefl.base.system.logs import LogOptions, add_log_options
from edgefl.base.system.progress import Progress
from edgefl.base.system.signals import raise_on_signal


@click.command(short_help="Report anomalies in sensor topics.")
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="State directory of `edgefl device start`, with the exported model.",
)
@click.option(
    "--broker",
    default="",
    help="mqtt://HOST:PORT of the broker that gets the alarms  [default: from the enrolment, else none with "
    "--data]",
)
@click.option("--enrol", type=click.Path(path_type=Path), help="File of `edgefl device enrol` with the keys.")
@click.option("--id", "client_id", default="", help="Id of this device  [default: from --state]")
@click.option("--federation", default="", help="Name of the federation  [default: from --state]")
@click.option(
    "--topic",
    default="",
    help="Topic of the readings. + and # are allowed. Each sensor has separate windows.",
)
@click.option("--sensor-broker", default="", help="URL of the broker of the readings  [default: --broker]")
@click.option("--data", default="", help="Score this .npz file, folder or CSV once, in place of --topic.")
@click.option(
    "--window", type=click.IntRange(0), default=0, help="Readings or rows per window  [default: the model's]"
)
@click.option(
    "--step",
    type=click.IntRange(0),
    default=0,
    help="Readings or rows between the starts of two windows  [default: --window]",
)
@click.option("--label", default="", help="CSV: column of labels.")
@click.option("--channels", default="", help="Channels to use, A,B,C  [default: the model's]")
@click.option(
    "--scale",
    type=click.FloatRange(0),
    default=0.0,
    help="Number that divides the values  [default: the number in --state for readings, else the model's]",
)
@click.option(
    "--every",
    "interval_s",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="Shortest time in seconds between two messages while the alarm does not change.",
)
@click.option(
    "--count",
    type=click.IntRange(0),
    default=0,
    help="Stop after this number of windows  [default: at SIGTERM or Ctrl-C]",
)
@add_log_options
@click.option(
    "--json", "as_json", is_flag=True, help="Print the counts as JSON at the end. Progress goes to stderr."
)
def detect(
    state: Path,
    broker: str,
    enrol: Path | None,
    client_id: str,
    federation: str,
    topic: str,
    sensor_broker: str,
    data: str,
    window: int,
    step: int,
    label: str,
    channels: str,
    scale: float,
    interval_s: float,
    count: int,
    log_level: str,
    log_format: str,
    as_json: bool,
) -> None:
    """Run the exported anomaly detector of this board on new windows, and publish its alarms.

    The readings stay on this board. The message has the score, the threshold, the alarm and counts. It shows
    the state of this board to everyone who may read its messages.

    Example: edgefl device detect --state pi-1 --broker mqtt://localhost:1883 --topic 'sensors/+/accel'
    """
    from devices.detector import Detector, DetectSettings
    from devices.readings import SensorTopics
    from edgefl.data.sources import make_source
    from edgefl.protocol.security.enrolment import load_enrolment

    if bool(topic) == bool(data):
        raise ConfigError("--topic and --data are both given or both missing, expected one of them; pass one")
    enrolment = load_enrolment(enrol) if enrol else None
    if enrolment and client_id not in ("", enrolment.client_id):
        raise ConfigError(
            f"--id is {client_id!r}, expected {enrolment.client_id!r}, the id in {enrol}; omit --id"
        )
    broker = broker or (enrolment.broker if enrolment else "")
    if topic and not broker:
        raise ConfigError("--broker is missing, expected the URL of a broker; pass --broker or --enrol")
    names = tuple(name.strip() for name in channels.split(",") if name.strip())
    source = None
    if data:
        source = make_source(data, window=window, step=step, label=label, channels=names, scale=scale)
    settings = DetectSettings(
        state=state,
        broker=broker,
        sensor_broker=sensor_broker,
        topics=SensorTopics(topic) if topic else None,
        data=source,
        client_id=client_id or (enrolment.client_id if enrolment else ""),
        federation=federation,
        window=window,
        step=step,
        channels=names,
        scale=scale,
        interval_s=interval_s,
        count=count,
        enrolment=enrolment,
    )
    with Progress(log=LogOptions(log_level, log_format)), raise_on_signal():
        figures = Detector(settings).run()
    if as_json:
        click.echo(json.dumps(to_json_value(figures), allow_nan=False))
    else:
        click.echo(
            f"{figures['alarms']} alarms in {figures['windows']} windows, last score {figures['score']:.4g}, "
            f"threshold {figures['threshold']:.4g}"
        )
