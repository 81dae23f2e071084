"""The command group `edgefl device`."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from devices.commands.boards import boards, pause, resume, status
from devices.commands.detect import detect
from devices.commands.record import record
from devices.install import make_install_command
from devices.learners import LEARNERS
from edgefl.base.errors import ConfigError
from edgefl.base.system.logs import LogOptions, add_log_options
from edgefl.base.system.progress import Progress
from edgefl.base.system.signals import Stopped, raise_on_signal
from edgefl.data.sources import DataSource
from edgefl.data.sources.options import add_data_options

SECURITY_OPTION = click.option(
    "--security",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("broker"),
    show_default=True,
    help="The directory of `edgefl broker init`.",
)
CA_OPTION = click.option(
    "--ca",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of ca.key  [default: the value of --security]",
)


def add_sharing_options(where: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the options that limit what a device may send.

    Args:
        where: text at the end of the help of each option.
    """

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        least = click.option(
            "--least-clients",
            type=click.IntRange(0, 4096),
            default=0,
            help="Take part only in masked rounds with at least this many clients. Implies "
            f"--masked-only{where}.",
        )
        masked = click.option(
            "--masked-only", is_flag=True, help=f"Train only for tasks with secure aggregation{where}."
        )
        return masked(least(command))

    return add


@click.group(short_help="Run and manage the service of this board.")
def device() -> None:
    """Run a device of a federation, and manage its keys.

    Example: edgefl device start --broker mqtt://192.168.1.10:1883 --id pi-1 --data shard.npz --state
    /var/lib/edgefl
    """


@device.command(short_help="Join, train, personalize, export.")
@click.option(
    "--broker",
    help="mqtt://HOST:PORT or mqtts://USER:PASSWORD@HOST:PORT, or several with commas. Append "
    "?protocol=5 for MQTT 5  [default: from the enrolment, else mqtt://localhost:1883]",
)
@click.option("--id", "client_id", help="Client id: a-z, 0-9, - and _.  [default: from the enrolment]")
@click.option(
    "--enrol", type=click.Path(path_type=Path), help="File of `edgefl device enrol` with id, broker and keys."
)
@add_data_options(
    "Samples: an .npz file, a folder of classes, CSV, or your MODULE:FUNCTION. They never leave this device.",
    required=True,
)
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    help="State directory. The model is written to DIR/model  [default: ./ID]",
)
@click.option(
    "--federation", default="", help="Name of the federation  [default: the only one on the broker]"
)
@click.option(
    "--learner",
    type=click.Choice(list(LEARNERS)),
    default="litert",
    show_default=True,
    help="keras needs TensorFlow.",
)
@click.option(
    "--algorithm",
    "algorithms",
    multiple=True,
    help="Your algorithm MODULE:NAME, which a plan may use in addition to those of `edgefl algorithms`. Can "
    "be repeated.",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    help="With --learner keras, your model MODULE:FUNCTION or FILE.keras, which a plan may use. Can be "
    "repeated.",
)
@click.option(
    "--threads",
    type=click.IntRange(1, 64),
    help="Number of computing threads  [default: from `edgefl device boards`]",
)
@click.option(
    "--keepalive",
    type=click.IntRange(2, 3600),
    default=20,
    show_default=True,
    help="MQTT keepalive in seconds.",
)
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(0),
    default=0.0,
    help="Seconds to wait for a federation  [default: no limit]",
)
@click.option(
    "--only-when",
    multiple=True,
    type=click.Choice(["idle", "mains"]),
    help="Accept tasks only while other programs use less than half of each core, or on mains. Repeatable.",
)
@click.option(
    "--between", help="Accept tasks only in these hours of each day, in local time, such as 22:00-06:00."
)
@add_sharing_options("")
@click.option("--export/--no-export", default=True, show_default=True, help="Write model.tflite at the end.")
@add_log_options
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON. Progress goes to stderr.")
def start(
    broker: str | None,
    client_id: str | None,
    enrol: Path | None,
    source: DataSource,
    state: Path | None,
    federation: str,
    learner: str,
    algorithms: tuple[str, ...],
    models: tuple[str, ...],
    threads: int | None,
    keepalive: int,
    wait_s: float,
    only_when: tuple[str, ...],
    between: str | None,
    masked_only: bool,
    least_clients: int,
    export: bool,
    log_level: str,
    log_format: str,
    as_json: bool,
) -> None:
    """Join a federation with this device's own data, and export a personal int8 model at the end.

    Another start with the same --state continues where the device stopped.

    --data has four forms. The first is an .npz file with x and y, such as the file of `edgefl device record`.
    The second is a folder DIR/CLASS/FILE with .npy, .png, .jpg or .wav files. The third is a .csv file with a
    header, or a folder of such files, with --window and --label. The fourth is a function MODULE:NAME that
    returns (x, y).

    Classes with names are numbered in the order of their names. If a board may lack a class, put the same
    classes.txt into the folder on every board, with one name per line.

    Example: edgefl device start --broker mqtt://192.168.1.10:1883 --id pi-1 --data shard.npz --state
    /var/lib/edgefl
    """
    from devices.boards import detect_machine
    from devices.conditions import Conditions, parse_window
    from devices.plan_check import AllowedCode
    from devices.service import LOGGER, run_device
    from devices.settings import DeviceSettings
    from edgefl.base.config import DEFAULT_BROKER
    from edgefl.base.names import check_client_id
    from edgefl.protocol.device.order import SharingRules
    from edgefl.protocol.security.enrolment import load_enrolment

    enrolment = load_enrolment(enrol) if enrol else None
    if enrolment and client_id not in (None, enrolment.client_id):
        raise ConfigError(
            f"--id is {client_id!r}, expected {enrolment.client_id!r}, the id in {enrol}; omit --id, or "
            f"enrol {client_id!r}"
        )
    broker, client_id = (
        (broker or enrolment.broker, enrolment.client_id) if enrolment else (broker, client_id)
    )
    if not client_id:
        raise ConfigError(
            "no --id; pass a name such as pi-1, or --enrol with the file of `edgefl device enrol`"
        )
    broker = broker or DEFAULT_BROKER
    state = state or Path(check_client_id(client_id))
    conditions = Conditions(
        "idle" in only_when, "mains" in only_when, parse_window(between) if between else None
    )
    threads = threads or detect_machine().board.threads
    sharing = SharingRules(masked_only, least_clients)
    if enrolment:
        sharing = sharing.combine(SharingRules(enrolment.masked_only, enrolment.least_clients))
    settings = DeviceSettings(
        broker=broker,
        client_id=client_id,
        data=source,
        state=state,
        federation=federation,
        learner=learner,
        threads=threads,
        keepalive_s=keepalive,
        wait_s=wait_s,
        export=export,
        enrolment=enrolment,
        conditions=conditions,
        allowed=AllowedCode(algorithms, models),
        sharing=sharing,
    )
    log = LogOptions(log_level, log_format)
    with Progress(log=log, log_fields={"client_id": client_id}), raise_on_signal():
        try:
            made = run_device(settings)
        except Stopped as stopped:
            LOGGER.info("stopped")
            if stopped.is_interrupt:  # The SIGTERM of a service manager is not a failure
                raise click.Abort from None
            return
    if as_json:
        click.echo(json.dumps({**made, "tensorflow_loaded": "tensorflow" in sys.modules}))
    else:
        click.echo(f"model: {made['model']}" if made["model"] else f"done; the mixture is in {state}")


device.add_command(record)
device.add_command(detect)


@device.command("enrol", short_help="Make the keys of a board.")
@click.argument("client_id")
@SECURITY_OPTION
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Output file for the board  [default: ID.enrol]",
)
@click.option(
    "--days",
    type=click.IntRange(1, 3650),
    default=730,
    show_default=True,
    help="Number of days that the certificate is valid.",
)
@CA_OPTION
@add_sharing_options(", whatever options the board starts with")
def enrol_device(
    client_id: str,
    security: Path,
    out: Path | None,
    days: int,
    ca: Path | None,
    masked_only: bool,
    least_clients: int,
) -> None:
    """Write the enrolment of a board.

    The file contains the board's certificate and keys, the broker's address and authority, and the
    aggregator's public key.

    Example: edgefl device enrol pi-7 --security broker -o pi-7.enrol
    """
    from edgefl.protocol.security.authority import create_enrolment
    from edgefl.protocol.security.enrolment import save_enrolment

    out = out or Path(f"{client_id}.enrol")
    if out.exists():
        raise ConfigError(f"{out} already exists; pass another -o, or remove {out}")
    made = create_enrolment(security, client_id, days, ca)
    save_enrolment(replace(made, masked_only=masked_only, least_clients=least_clients), out)
    click.echo(
        f"made {out}: it identifies {client_id}; copy it to the board, and remove it from this machine"
    )
    click.echo(f"  scp {out} {client_id}.local:")
    click.echo(f"  edgefl device start --enrol {out.name} --data shard.npz --state state      (on the board)")


@device.command("revoke", short_help="Revoke the rights of a board.")
@click.argument("client_id")
@SECURITY_OPTION
@CA_OPTION
def revoke_device(client_id: str, security: Path, ca: Path | None) -> None:
    """Put a board's certificate on the revocation list. A running aggregator then ignores the board.

    The broker reads the list only for new connections. Restart the broker to end the board's current
    connection.

    Example: edgefl device revoke pi-7 --security broker
    """
    from edgefl.protocol.security.authority import revoke_enrolment

    revoke_enrolment(security, client_id, ca)
    click.echo(f"revoked {client_id}: a running aggregator now ignores it")
    click.echo(
        "  systemctl restart edgefl-broker      (ends its connection; all other devices reconnect by "
        "themselves)"
    )


for command in (boards, pause, resume, status, make_install_command(start)):
    device.add_command(command)
