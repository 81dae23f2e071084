"""`edgefl broker ...` and `edgefl aggregator ...`."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from edgefl.stopping import Stopped, stoppable
from mqtt_broker.example_commands import examples
from mqtt_broker.pause_commands import pause, resume, status
from mqtt_broker.tool_options import Tools, check_tools, tool_options


@click.group(short_help="An MQTT broker of one's own.")
def broker() -> None:
    """Run an MQTT broker on this machine.

    Example: edgefl broker start --port 1883
    """


@broker.command("start", short_help="Start a broker on loopback.")
@click.option("--port", type=click.IntRange(0, 65535), default=1883, show_default=True, help="0: a free one.")
@click.option("--kind", type=click.Choice(["auto", "mosquitto", "amqtt"]), default="auto", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print url and kind as JSON.")
def start_broker(port: int, kind: str, as_json: bool) -> None:
    """Run a broker on 127.0.0.1 until SIGTERM or Ctrl-C: mosquitto when it is installed, else amqtt.

    It prints its url once it answers. It is for trying out: no passwords, and other machines do not see it.

    Example: edgefl broker start --port 0 --kind amqtt
    """
    from mqtt_broker.embedded import run_broker

    def started(url: str, chosen: str) -> None:
        click.echo(json.dumps({"url": url, "kind": chosen}) if as_json else f"{url} ({chosen})")

    run_broker(kind, port, started)


@broker.command("init", short_help="Keys and configuration of a broker for real boards.")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--host", "hosts", multiple=True, required=True, help="The name or address by which devices reach it; may be given again.")
@click.option("--port", type=click.IntRange(1, 65535), default=8883, show_default=True)
@click.option("--bind", default="", help="Listen on this address only  [default: all]")
@click.option(
    "--days", type=click.IntRange(1, 3650), default=730, show_default=True, help="How long certificates of broker and aggregator count."
)
@click.option("--json", "as_json", is_flag=True, help="Print what was made as JSON.")
def init_broker(directory: Path, hosts: tuple[str, ...], port: int, bind: str, days: int, as_json: bool) -> None:
    """Make an authority, the broker's and the aggregator's keys, mosquitto.conf, its access list and a systemd unit.

    Example: edgefl broker init broker --host aggregator.local
    """
    from edgefl.security.authority import create
    from mqtt_broker.embedded import find_mosquitto
    from mqtt_broker.production import write_configuration

    create(directory, hosts, port, days)
    write_configuration(directory, port, find_mosquitto() or "/usr/sbin/mosquitto", bind)
    url = f"mqtts://{hosts[0]}:{port}"
    if as_json:
        click.echo(json.dumps({"directory": str(directory), "url": url, "configuration": str(directory / "mosquitto.conf")}))
        return
    click.echo(f"made {directory}: authority, keys, mosquitto.conf, acl, mosquitto.service; keep {directory / 'ca.key'} secret")
    click.echo(f"start      mosquitto -c {directory / 'mosquitto.conf'}")
    unit = "/etc/systemd/system/edgefl-broker.service"
    click.echo(f"for good   sudo cp {directory / 'mosquitto.service'} {unit} && sudo systemctl enable --now edgefl-broker")
    click.echo(f"a board    edgefl device enrol pi-1 --security {directory} -o pi-1.enrol")
    click.echo(f"lead       edgefl aggregator start --config federation.toml --security {directory}")
    click.echo(f"watch      edgefl broker watcher --security {directory} -o watcher.enrol")


@broker.command("watcher", short_help="Keys that may read and not write.")
@click.option(
    "--security", type=click.Path(path_type=Path, file_okay=False), default=Path("broker"), show_default=True,
    help="The directory of `edgefl broker init`.",
)  # fmt: skip
@click.option("-o", "--out", type=click.Path(path_type=Path, dir_okay=False), default=Path("watcher.enrol"), show_default=True)
@click.option("--days", type=click.IntRange(1, 3650), default=730, show_default=True, help="How long its certificate counts.")
def watcher(security: Path, out: Path, days: int) -> None:
    """Write one file for monitors: whoever has it may read what is said of rounds and devices, no model and no update, and write nothing.

    It may be copied to several machines. `edgefl device revoke watcher` takes its rights away.

    Example: edgefl broker watcher --security broker -o watcher.enrol
    """
    from edgefl.errors import ConfigError
    from edgefl.security.authority import enrol_watcher
    from edgefl.security.enrolment import save_enrolment
    from mqtt_broker.production import knows_watcher

    if out.exists():
        raise ConfigError(f"{out} is there already; give another -o, or remove it")
    if not knows_watcher(security):
        raise ConfigError(
            f"{security / 'acl'} has no account for watchers; copy that part from the acl that `edgefl broker init` makes anew"
        )
    save_enrolment(enrol_watcher(security, days), out)
    click.echo(f"made {out}: whoever has it may watch")
    click.echo(f"  edgefl monitor --enrol {out}")


broker.add_command(examples)


@click.group(short_help="The service that leads a federation.")
def aggregator() -> None:
    """Lead a federation over MQTT.

    Example: edgefl aggregator start --config federation.toml
    """


@aggregator.command("start", short_help="Start the aggregator.")
@click.option("--config", type=click.Path(path_type=Path), required=True, help="The federation's TOML file.")
@click.option("--broker", "url", help="mqtt://HOST:PORT, several with commas; ?protocol=5 after it: MQTT 5  [default: the configuration's]")
@click.option("--plan", type=click.Path(path_type=Path), help="A plan that is built already  [default: build it]")
@click.option("--out", type=click.Path(path_type=Path), help="Where state and result go  [default: ./NAME-out]")
@click.option("--take-over", is_flag=True, help="Lead although another aggregator of this name is said to run.")
@click.option("--security", type=click.Path(path_type=Path, file_okay=False), help="The directory of `edgefl broker init`.")
@click.option("--fresh", is_flag=True, help="Begin anew although --out holds a federation.")
@click.option(
    "--workers", type=click.IntRange(0, 64), default=0, show_default=True, help="So many processes take the uploads; 0: this one."
)
@tool_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON; progress goes to stderr.")
def start_aggregator(
    config: Path, url: str | None, plan: Path | None, out: Path | None, take_over: bool, security: Path | None, fresh: bool,
    workers: int, tools: Tools, as_json: bool,
) -> None:  # fmt: skip
    """Wait for devices, lead the rounds, have each device personalize, write DIR/result.json, and end.

    Killed and started again with the same --out, it goes on where it was.

    Example: edgefl aggregator start --config federation.toml --broker mqtt://192.168.1.10:1883 --out run-1
    """
    from edgefl.config import load_config
    from edgefl.loggers import about_run, open_logs
    from edgefl.loggers.scalars import round_scalars
    from edgefl.security.enrolment import load_enrolment
    from edgefl.staleness import check_rounds
    from edgefl.wire.messages import Summary
    from edgefl.wire.url import parse_urls, without_password
    from mqtt_broker.aggregator import Aggregator
    from mqtt_broker.journal import holds_federation
    from mqtt_broker.observer import observed
    from mqtt_broker.plan_source import build_in_child, open_plan

    def note(line: str) -> None:
        click.echo(line, err=True)

    settings = load_config(config)
    check_rounds(settings)
    check_tools(tools, settings)
    url = url or (load_enrolment(security / "aggregator.enrol").broker if security else settings.broker)
    parse_urls(url)
    out = out or Path(f"{settings.name}-out")
    resumed = holds_federation(out) and not fresh
    with stoppable():
        try:
            if plan is None and resumed:
                plan = out / "plan"
            elif plan is None:
                plan = out / "plan"
                note(f"building the plan ({settings.model.name}, {settings.algorithm})")
                build_in_child(config, plan)
            made, initial = open_plan(plan, settings)
            note(f"plan {made.id[:8]}; federation {settings.name!r} at {without_password(url)}")
            with (
                open_logs(tools.logs, settings.name, key=str(out.resolve()), resumed=resumed, about=about_run(settings)) as log,
                observed(tools, url, settings.name, security, note),
            ):

                def closed(summary: Summary) -> None:
                    log(summary.round, round_scalars(asdict(summary)))

                leading = Aggregator(settings, made, initial, out, note, security, workers, closed)
                result = leading.run(url, take_over=take_over, fresh=fresh)
        except Stopped:
            note("stopped")
            return
    if as_json:
        click.echo(json.dumps(result))


for command in (pause, resume, status):
    aggregator.add_command(command)
