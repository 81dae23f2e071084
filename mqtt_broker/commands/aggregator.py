"""`edgefl aggregator ...`: lead a federation, pause and resume clients."""

import json
import secrets
import time
from dataclasses import asdict
from pathlib import Path

import click

from edgefl.system.logs import LogOptions, log_options
from edgefl.system.progress import Telling
from edgefl.system.signals import Stopped, stoppable
from mqtt_broker.integrations.tool_options import Tools, check_tools, tool_options

VOUCHER_NOTICE_S = 14 * 86400.0
OUT = click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="The --out of `edgefl aggregator start`."
)
CLIENTS = click.argument("client_ids", metavar="ID...", nargs=-1, required=True)


@click.group(short_help="The service that leads a federation.")
def aggregator() -> None:
    """Lead a federation over MQTT.

    Example: edgefl aggregator start --config federation.toml
    """


@aggregator.command("start", short_help="Start the aggregator.")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    default=Path("federation.toml"),
    show_default=True,
    help="The federation's TOML file, see `edgefl init`.",
)
@click.option(
    "--broker",
    "url",
    help="mqtt://HOST:PORT, several with commas; ?protocol=5 after it: MQTT 5  [default: the "
    "configuration's]",
)
@click.option(
    "--plan", type=click.Path(path_type=Path), help="A plan that is built already  [default: build it]"
)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Where state and result go  [default: ./NAME-out]"
)
@click.option(
    "--take-over", is_flag=True, help="Lead although another aggregator of this name is said to run."
)
@click.option(
    "--security",
    type=click.Path(path_type=Path, file_okay=False),
    help="The directory of `edgefl broker init`.",
)
@click.option("--fresh", is_flag=True, help="Begin anew although --out holds a federation.")
@tool_options
@log_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON; progress goes to stderr.")
def start_aggregator(
    config: Path,
    url: str | None,
    plan: Path | None,
    out: Path | None,
    take_over: bool,
    security: Path | None,
    fresh: bool,
    tools: Tools,
    log_level: str,
    log_format: str,
    as_json: bool,
) -> None:
    """Wait for devices, lead the rounds, have each device personalize, write DIR/result.json, print the
    verdict, and end.

    Killed and started again with the same --out, it goes on where it was.

    Example: edgefl aggregator start --config federation.toml --broker mqtt://192.168.1.10:1883 --out run-1
    """
    from edgefl.config import load_config
    from edgefl.loggers import about_run, open_logs
    from edgefl.loggers.scalars import round_scalars
    from edgefl.security.enrolment import load_enrolment
    from edgefl.security.register import ending_vouchers
    from edgefl.server.config_check import check_config
    from edgefl.storage.aggregator_directory import AggregatorFiles
    from edgefl.wire.messages import Summary
    from edgefl.wire.url import parse_urls, without_password
    from mqtt_broker.aggregator.journal import holds_federation, make_private
    from mqtt_broker.aggregator.plan_source import build_in_child, differing_options, open_plan
    from mqtt_broker.aggregator.service import LOGGER, Aggregator
    from mqtt_broker.broker.access_list import check_access_list
    from mqtt_broker.integrations.observer import observed

    settings = load_config(config)
    check_tools(tools, settings)
    if security:
        check_access_list(security)
    url = url or (load_enrolment(security / "aggregator.enrol").broker if security else settings.broker)
    parse_urls(url)
    out = out or Path(f"{settings.name}-out")
    resumed = holds_federation(out) and not fresh
    warnings = () if resumed else check_config(settings)
    make_private(out)
    log_settings = LogOptions(log_level, log_format)
    with Telling(log=log_settings, log_fields={"federation": settings.name}) as progress, stoppable():
        for warning in warnings:
            LOGGER.warning(warning)
        try:
            differing = plan is not None and not resumed
            if plan is None and resumed:
                plan = AggregatorFiles(out).plan
            elif plan is None:
                plan = AggregatorFiles(out).plan
                progress.at("looking for the broker")
                _check_broker(url, security)
                building = f"building the plan ({settings.model.name}, {settings.algorithm})"
                LOGGER.info(building)
                progress.at(building)
                build_in_child(config, plan)
            made, initial = open_plan(plan, settings)
            for line in differing_options(made.spec, settings) if differing else ():
                LOGGER.warning(line)
            progress.at("")
            LOGGER.info(f"plan {made.id[:8]}; federation {settings.name!r} at {without_password(url)}")
            if security and settings.privacy.secure_aggregation:
                ending = ending_vouchers(security, time.time() + VOUCHER_NOTICE_S)
                if ending:
                    named = ", ".join(ending) if len(ending) <= 5 else f"{', '.join(ending[:5])} and others"
                    LOGGER.warning(
                        f"the authority's vouchers for {named} ended, or end within 14 days; renew them with "
                        "`edgefl broker vouch`"
                    )
            with (
                open_logs(
                    tools.logs,
                    settings.name,
                    key=str(out.resolve()),
                    resumed=resumed,
                    about=about_run(settings),
                ) as log,
                observed(tools, url, settings.name, security),
            ):

                def closed(summary: Summary) -> None:
                    log(summary.round, round_scalars(asdict(summary)))

                leading = Aggregator(settings, made, initial, out, security, progress.at, closed)
                result = leading.run(url, take_over=take_over, fresh=fresh)
                log.write_verdict(settings.rounds + 1, result["verdict"])
        except Stopped as stopped:
            LOGGER.info("stopped")
            if stopped.by_person:  # a service manager's SIGTERM is no failure
                raise click.Abort from None
            return
    if as_json:
        click.echo(json.dumps(result))


def _check_broker(url: str, security: Path | None) -> None:
    """Raise LinkError when no broker is there: before the plan is built, which takes many seconds."""
    from edgefl.security.enrolment import load_enrolment, tls_context
    from edgefl.transport.link import Link

    context = tls_context(load_enrolment(security / "aggregator.enrol")) if security else None
    Link(url, f"edgefl-aggregator-probe-{secrets.token_hex(4)}", context=context).close(1.0)


@aggregator.command(short_help="Leave clients out of the rounds to come.")
@OUT
@CLIENTS
def pause(out: Path, client_ids: tuple[str, ...]) -> None:
    """Pause clients: each finishes the task that it has, and is chosen for no other, the last phase's
    included, until it is resumed.

    Example: edgefl aggregator pause --out kitchen pi-7
    """
    from mqtt_broker.aggregator.pauses import pause_clients

    pause_clients(out, client_ids)
    click.echo(
        f"paused {', '.join(client_ids)}; let them take part again: edgefl aggregator resume --out {out} "
        f"{' '.join(client_ids)}"
    )


@aggregator.command(short_help="Let clients take part again.")
@OUT
@CLIENTS
def resume(out: Path, client_ids: tuple[str, ...]) -> None:
    """End the pauses of `edgefl aggregator pause`.

    Example: edgefl aggregator resume --out kitchen pi-7
    """
    from mqtt_broker.aggregator.pauses import resume_clients

    resume_clients(out, client_ids)
    click.echo(f"resumed {', '.join(client_ids)}")


@aggregator.command(short_help="Which clients are paused.")
@OUT
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def status(out: Path, as_json: bool) -> None:
    """Say which clients are paused in this directory.

    Example: edgefl aggregator status --out kitchen
    """
    from mqtt_broker.aggregator.pauses import check_directory, paused_clients

    check_directory(out)
    paused = sorted(paused_clients(out))
    click.echo(json.dumps({"paused": paused}) if as_json else f"paused: {', '.join(paused) or 'nobody'}")
