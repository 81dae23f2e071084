"""The command `edgefl device record`."""

import json
from pathlib import Path

import click

from edgefl.base.errors import ConfigError
from edgefl.base.system.logs import LogOptions, add_log_options
from edgefl.base.system.progress import Progress
from edgefl.base.system.signals import raise_on_signal


@click.command(short_help="Record sensor topics as training data.")
@click.option("--broker", required=True, help="mqtt://HOST:PORT, or mqtts://USER:PASSWORD@HOST:PORT")
@click.option(
    "--topic",
    required=True,
    help="Topic of the readings. + and # are allowed. Each sensor has separate windows.",
)
@click.option(
    "--label-topic",
    default="",
    help="Topic of the labels. Its wildcards name the sensor. Without wildcards it labels all sensors.",
)
@click.option("--label", help="Label of all windows, in place of --label-topic.")
@click.option(
    "--target-topic",
    default="",
    help="Topic of a number to predict, in place of --label-topic. A window gets the number at its last "
    "reading.",
)
@click.option("--unlabelled", is_flag=True, help="Record without labels, to find anomalies.")
@click.option(
    "--classes",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with one class name per line, if labels are names.",
)
@click.option("--channels", default="", help="Channels to record, A,B,C  [default: all]")
@click.option("--window", type=click.IntRange(1), required=True, help="Number of readings per window.")
@click.option(
    "--step",
    type=click.IntRange(0),
    default=0,
    help="Number of readings between the starts of two windows  [default: --window]",
)
@click.option(
    "--capacity",
    type=click.IntRange(1),
    required=True,
    help="Number of windows in the file. New windows replace the oldest.",
)
@click.option(
    "--count",
    type=click.IntRange(0),
    default=0,
    help="Stop after this number of new windows  [default: at SIGTERM or Ctrl-C]",
)
@click.option(
    "--save",
    "save_s",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="Seconds between writes of the file.",
)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Output file, an .npz for --data.",
)
@add_log_options
@click.option(
    "--json", "as_json", is_flag=True, help="Print the counts as JSON at the end. Progress goes to stderr."
)
def record(
    broker: str,
    topic: str,
    label_topic: str,
    label: str | None,
    target_topic: str,
    unlabelled: bool,
    classes: Path | None,
    channels: str,
    window: int,
    step: int,
    capacity: int,
    count: int,
    save_s: float,
    out: Path,
    log_level: str,
    log_format: str,
    as_json: bool,
) -> None:
    """Record sensor messages as training data for `edgefl device start --data`.

    A reading is JSON: a number, a list with one number for each channel, or an object of numbers. Readings
    stay on this board. Another start with the same -o continues the recording.

    Example: edgefl device record --broker mqtt://localhost:1883 --topic 'sensors/+/accel' --label-topic
    'sensors/+/activity' --window 128 --capacity 2000 -o ring.npz
    """
    from devices.readings import SensorTopics, format_counts
    from devices.recorder import Recorder, RecordSettings
    from edgefl.data.sources.classes import read_class_list
    from edgefl.data.sources.ring import CLASS_LABELS, NO_LABELS, TARGET_LABELS

    choices = {
        "--label-topic": bool(label_topic),
        "--label": label is not None,
        "--target-topic": bool(target_topic),
        "--unlabelled": unlabelled,
    }
    if sum(choices.values()) != 1:
        passed = " and ".join(name for name, is_passed in choices.items() if is_passed)
        raise ConfigError(
            f"{passed or 'none'} of {', '.join(choices)} given, expected one of them; pass --unlabelled for "
            "windows without labels"
        )
    if classes and (target_topic or unlabelled):
        raise ConfigError(
            f"--classes with {'--target-topic' if target_topic else '--unlabelled'}, expected it with labels "
            "only; leave it out"
        )
    if out.suffix != ".npz":
        raise ConfigError(f"-o is {out}, expected a name that ends in .npz; change it")
    settings = RecordSettings(
        broker=broker,
        topics=SensorTopics(topic, label_topic or target_topic),
        window=window,
        step=step or window,
        capacity=capacity,
        out=out,
        label=label,
        channels=tuple(name.strip() for name in channels.split(",") if name.strip()),
        classes=read_class_list(classes) if classes else (),
        save_s=save_s,
        count=count,
        labels=NO_LABELS if unlabelled else TARGET_LABELS if target_topic else CLASS_LABELS,
    )
    with Progress(log=LogOptions(log_level, log_format)), raise_on_signal():
        counts = Recorder(settings).run()
    click.echo(json.dumps(counts) if as_json else format_counts(counts))
