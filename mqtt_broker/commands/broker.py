"""The commands `edgefl broker ...`: the dev broker, and keys and configuration for deployment."""

import json
from pathlib import Path

import click

from mqtt_broker.commands.examples import examples

CA_OPTION = click.option(
    "--ca",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of ca.key  [default: the directory of the other keys]",
)


@click.group(short_help="Run and configure an MQTT broker.")
def broker() -> None:
    """Run and configure an MQTT broker.

    Example: edgefl broker start --port 1883
    """


@broker.command("start", short_help="Start a dev broker.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=1883,
    show_default=True,
    help="Port of the broker. 0 chooses a free port.",
)
@click.option(
    "--kind",
    type=click.Choice(["auto", "mosquitto", "amqtt"]),
    default="auto",
    show_default=True,
    help="auto uses mosquitto if it is installed.",
)
@click.option(
    "--bind",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. With 0.0.0.0 other machines can reach the broker.",
)
@click.option("--json", "as_json", is_flag=True, help="Print URL and kind as JSON.")
def start_broker(port: int, kind: str, bind: str, as_json: bool) -> None:
    """Run a broker for experiments until SIGTERM or Ctrl-C.

    The broker is mosquitto if it is installed, otherwise amqtt. The command prints the URL when the broker
    answers. The broker has no authentication. By default other machines cannot reach it, see --bind.

    Example: edgefl broker start --bind 0.0.0.0
    """
    from mqtt_broker.broker.dev_broker import LOOPBACK_HOST, run_broker

    if bind != LOOPBACK_HOST:
        click.echo(
            f"anyone who can reach {bind} can read and write all messages; for keys per board use `edgefl "
            "broker init`",
            err=True,
        )

    def print_url(url: str, chosen: str) -> None:
        click.echo(json.dumps({"url": url, "kind": chosen}) if as_json else f"{url} ({chosen})")

    run_broker(kind, port, print_url, bind)


@broker.command("init", short_help="Make keys and configuration for deployment.")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--host",
    "hosts",
    multiple=True,
    required=True,
    help="Name or address of the broker for devices. Can be repeated.",
)
@click.option(
    "--port", type=click.IntRange(1, 65535), default=8883, show_default=True, help="Port of the broker."
)
@click.option("--bind", default="", help="Listen on this address only  [default: all]")
@click.option(
    "--days",
    type=click.IntRange(1, 3650),
    default=730,
    show_default=True,
    help="Days for which the certificates of broker and aggregator are valid.",
)
@CA_OPTION
@click.option(
    "--user",
    default="",
    help="Account of the broker  [default: mosquitto if root runs this command, else yours]",
)
@click.option(
    "--memory-mb",
    type=click.IntRange(64),
    help="Memory limit of the broker in MB of 2^20 bytes  [default: half of this machine's memory]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def init_broker(
    directory: Path,
    hosts: tuple[str, ...],
    port: int,
    bind: str,
    days: int,
    ca: Path | None,
    user: str,
    memory_mb: int | None,
    as_json: bool,
) -> None:
    """Make keys and configuration of a broker for deployment.

    The directory receives an authority, the keys of broker and aggregator, mosquitto.conf, its access list
    and a systemd unit. With --ca the authority's key goes into another directory, such as a USB stick. Only
    the commands that enrol, revoke or vouch for devices need it.

    Example: edgefl broker init broker --host aggregator.local
    """
    from edgefl.protocol.security.authority import create_key_directory
    from mqtt_broker.broker.dev_broker import find_mosquitto
    from mqtt_broker.broker.mosquitto_config import (
        BrokerLimits,
        check_printable,
        choose_account,
        choose_limits,
        write_configuration,
    )

    check_printable(DIRECTORY=directory, bind=bind, ca=ca or "")
    account = choose_account(directory, user)
    limits = BrokerLimits(memory_mb) if memory_mb else choose_limits()
    create_key_directory(directory, hosts, port, days, ca)
    write_configuration(directory, port, find_mosquitto() or "/usr/sbin/mosquitto", bind, account, limits, ca)
    if account == "root":
        click.echo(
            "the broker runs as root; pass --user with an account of fewer rights, and a directory that the "
            "account can reach",
            err=True,
        )
    url = f"mqtts://{hosts[0]}:{port}"
    key = (ca or directory) / "ca.key"
    if as_json:
        made = {"directory": str(directory), "url": url, "configuration": str(directory / "mosquitto.conf")}
        click.echo(
            json.dumps({**made, "authority_key": str(key), "user": account, "memory_mb": limits.memory_mb})
        )
        return
    click.echo(
        f"made {directory}: authority, keys, mosquitto.conf, acl, mosquitto.service; keep {key} secret"
    )
    click.echo(f"account    {account} runs the broker with at most {limits.memory_mb} MB of messages")
    click.echo(f"start      mosquitto -c {directory / 'mosquitto.conf'}")
    unit = "/etc/systemd/system/edgefl-broker.service"
    click.echo(
        f"install    sudo cp {directory / 'mosquitto.service'} {unit} && sudo systemctl enable --now "
        "edgefl-broker"
    )
    click.echo(f"enrol      edgefl device enrol pi-1 --security {directory} -o pi-1.enrol")
    click.echo(f"lead       edgefl aggregator start --config federation.toml --security {directory}")
    click.echo(f"monitor    edgefl broker watcher --security {directory} -o watcher.enrol")


@broker.command("watcher", short_help="Make keys for monitors, which may only read.")
@click.option(
    "--security",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("broker"),
    show_default=True,
    help="Directory of `edgefl broker init`.",
)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("watcher.enrol"),
    show_default=True,
    help="Path of the enrolment file.",
)
@click.option(
    "--days",
    type=click.IntRange(1, 3650),
    default=730,
    show_default=True,
    help="Days for which the certificate is valid.",
)
@CA_OPTION
def watcher(security: Path, out: Path, days: int, ca: Path | None) -> None:
    """Write one enrolment file for monitors.

    With the file a monitor can read messages about rounds and devices, but no models and no updates. It
    cannot write. The file may be copied to several machines. `edgefl device revoke watcher` revokes it.

    Example: edgefl broker watcher --security broker -o watcher.enrol
    """
    from edgefl.base.errors import ConfigError
    from edgefl.protocol.security.authority import enrol_watcher
    from edgefl.protocol.security.enrolment import save_enrolment
    from mqtt_broker.broker.mosquitto_config import has_watcher_account

    if out.exists():
        raise ConfigError(f"{out} already exists; pass another -o, or remove it")
    if not has_watcher_account(security):
        raise ConfigError(
            f"{security / 'acl'} has no account for watchers; copy that part from a new acl that `edgefl "
            "broker init` makes in an empty directory"
        )
    save_enrolment(enrol_watcher(security, days, ca), out)
    click.echo(f"made {out}: anyone who has this file can watch")
    click.echo(f"  edgefl monitor --enrol {out}")


@broker.command("vouch", short_help="Renew the vouchers for the devices' signing keys.")
@click.option(
    "--security",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("broker"),
    show_default=True,
    help="Directory of `edgefl broker init`.",
)
@CA_OPTION
@click.option(
    "--days",
    type=click.IntRange(1, 3650),
    default=90,
    show_default=True,
    help="Days for which the new vouchers are valid.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the devices as JSON.")
def vouch(security: Path, ca: Path | None, days: int, as_json: bool) -> None:
    """Renew the authority's vouchers for the signing keys of all devices that are not revoked.

    With secure aggregation a device accepts the keys of another device only while a voucher of the authority
    is valid. The aggregator stores the vouchers. Devices need no change, and a running aggregator reads the
    new vouchers. The shorter the vouchers are valid, the sooner the key of a revoked device becomes useless,
    even to a dishonest aggregator.

    Example: edgefl broker vouch --security broker --days 90
    """
    from edgefl.protocol.security.authority import renew_vouchers

    ids = renew_vouchers(security, days, ca)
    click.echo(
        json.dumps({"devices": ids, "days": days})
        if as_json
        else f"vouched for {len(ids)} devices for {days} days"
    )


broker.add_command(examples)
