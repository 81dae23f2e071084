"""The commands `edgefl aggregator ...`: lead a federation, pause and resume clients."""

import json
import secrets
import time
from dataclasses import asdict
from pathlib import Path

import click

from edgefl.base.system.logs import LogOptions, add_log_options
from edgefl.base.system.progress import Progress
from edgefl.base.system.signals import Stopped, raise_on_signal
from mqtt_broker.integrations.tool_options import ToolOptions, add_tool_options, check_tools

VOUCHER_NOTICE_S = 14 * 86400.0
OUT_OPTION = click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Directory of the aggregator, its --out."
)
CLIENTS_ARGUMENT = click.argument("client_ids", metavar="ID...", nargs=-1, required=True)


@click.group(short_help="Run and manage the aggregator.")
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
    help="Configuration of the federation, see `edgefl init`.",
)
@click.option(
    "--broker",
    "url",
    help="URL of the broker, mqtt://HOST:PORT, or several URLs separated by commas. Append ?protocol=5 for "
    "MQTT 5  [default: the configuration's]",
)
@click.option("--plan", type=click.Path(path_type=Path), help="Directory of the plan  [default: build it]")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Directory for state and result  [default: ./NAME-out]"
)
@click.option(
    "--take-over",
    is_flag=True,
    help="Take over even if another aggregator for this federation appears to be running.",
)
@click.option(
    "--security",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of `edgefl broker init`.",
)
@click.option("--fresh", is_flag=True, help="Start a new federation even if --out contains one.")
@add_tool_options
@add_log_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON. Progress goes to stderr.")
def start_aggregator(
    config: Path,
    url: str | None,
    plan: Path | None,
    out: Path | None,
    take_over: bool,
    security: Path | None,
    fresh: bool,
    tools: ToolOptions,
    log_level: str,
    log_format: str,
    as_json: bool,
) -> None:
    """Lead a federation: wait for devices, run the rounds and the personalization, and print the verdict.

    The result is DIR/result.json. After a kill, another start with the same --out continues the federation.

    Example: edgefl aggregator start --config federation.toml --broker mqtt://192.168.1.10:1883 --out run-1
    """
    from edgefl.base.config import load_config
    from edgefl.base.round_scalars import extract_round_scalars
    from edgefl.base.storage.aggregator_directory import AggregatorFiles
    from edgefl.program.plan.int8 import describe_missing_int8
    from edgefl.protocol.security.enrolled_devices import list_ending_vouchers
    from edgefl.protocol.security.enrolment import load_enrolment
    from edgefl.protocol.server.config_check import check_config
    from edgefl.protocol.wire.messages import Summary
    from edgefl.protocol.wire.url import hide_password, parse_urls
    from edgefl.watch.loggers import describe_run, open_logs
    from mqtt_broker.aggregator.journal import has_federation, make_private_directory
    from mqtt_broker.aggregator.plan_source import (
        build_plan_in_child,
        describe_scaling_model,
        list_differing_options,
        open_built_plan,
    )
    from mqtt_broker.aggregator.service import LOGGER, Aggregator
    from mqtt_broker.broker.access_list import check_access_list
    from mqtt_broker.integrations.observer import serve_tools

    settings = load_config(config)
    check_tools(tools, settings)
    if security:
        check_access_list(security)
    url = url or (load_enrolment(security / "aggregator.enrol").broker if security else settings.broker)
    parse_urls(url)
    out = out or Path(f"{settings.name}-out")
    resumed = has_federation(out) and not fresh
    warnings = () if resumed else check_config(settings)
    make_private_directory(out)
    log_settings = LogOptions(log_level, log_format)
    with Progress(log=log_settings, log_fields={"federation": settings.name}) as progress, raise_on_signal():
        for warning in warnings:
            LOGGER.warning(warning)
        try:
            differing = plan is not None and not resumed
            if plan is None and resumed:
                plan = AggregatorFiles(out).plan
            elif plan is None:
                plan = AggregatorFiles(out).plan
                progress.update_live("looking for the broker")
                _check_broker(url, security)
                building = f"building the plan ({settings.model.name}, {settings.algorithm})"
                LOGGER.info(building)
                progress.update_live(building)
                build_plan_in_child(config, plan)
            built_plan, initial = open_built_plan(plan, settings)
            for line in list_differing_options(built_plan.spec, settings) if differing else ():
                LOGGER.warning(line)
            if not resumed and (missing := describe_missing_int8(built_plan.template)):
                LOGGER.warning(missing)
            if scaling := describe_scaling_model(built_plan.spec, settings):
                LOGGER.info(scaling)
            progress.update_live("")
            LOGGER.info(f"plan {built_plan.id[:8]}; federation {settings.name!r} at {hide_password(url)}")
            if security and settings.privacy.secure_aggregation:
                ending = list_ending_vouchers(security, time.time() + VOUCHER_NOTICE_S)
                if ending:
                    named = ", ".join(ending) if len(ending) <= 5 else f"{', '.join(ending[:5])} and others"
                    LOGGER.warning(
                        f"the authority's vouchers for {named} expired, or expire within 14 days; renew them "
                        "with `edgefl broker vouch`"
                    )
            with (
                open_logs(
                    tools.logs,
                    settings.name,
                    key=str(out.resolve()),
                    resumed=resumed,
                    about=describe_run(settings),
                ) as log,
                serve_tools(tools, url, settings.name, security),
            ):

                def log_round(summary: Summary) -> None:
                    log(summary.round, extract_round_scalars(asdict(summary)))

                service = Aggregator(
                    config=settings,
                    plan=built_plan,
                    initial=initial,
                    out=out,
                    security=security,
                    show_progress=progress.update_live,
                    on_round_closed=log_round,
                )
                result = service.run(url, take_over=take_over, fresh=fresh)
                log.write_verdict(settings.rounds + 1, result["verdict"])
        except Stopped as stopped:
            LOGGER.info("stopped")
            if stopped.is_interrupt:  # SIGTERM of a service manager is not a failure
                raise click.Abort from None
            return
    if as_json:
        click.echo(json.dumps(result))


def _check_broker(url: str, security: Path | None) -> None:
    """Raise LinkError if no broker answers. Building the plan takes many seconds, so this comes first."""
    from edgefl.protocol.security.enrolment import load_enrolment, make_tls_context
    from edgefl.protocol.transport.link import Link

    context = make_tls_context(load_enrolment(security / "aggregator.enrol")) if security else None
    Link(url, f"edgefl-aggregator-probe-{secrets.token_hex(4)}", context=context).close(1.0)


@aggregator.command(short_help="Exclude clients from the next rounds.")
@OUT_OPTION
@CLIENTS_ARGUMENT
def pause(out: Path, client_ids: tuple[str, ...]) -> None:
    """Pause clients until they are resumed.

    A paused client finishes its current task. It receives no other task, not even in the last phase.

    Example: edgefl aggregator pause --out kitchen pi-7
    """
    from mqtt_broker.aggregator.pauses import pause_clients

    pause_clients(out, client_ids)
    click.echo(
        f"paused {', '.join(client_ids)}; to include them again: edgefl aggregator resume --out {out} "
        f"{' '.join(client_ids)}"
    )


@aggregator.command(short_help="Include paused clients again.")
@OUT_OPTION
@CLIENTS_ARGUMENT
def resume(out: Path, client_ids: tuple[str, ...]) -> None:
    """End the pauses of `edgefl aggregator pause`.

    Example: edgefl aggregator resume --out kitchen pi-7
    """
    from mqtt_broker.aggregator.pauses import resume_clients

    resume_clients(out, client_ids)
    click.echo(f"resumed {', '.join(client_ids)}")


@aggregator.command(short_help="List the paused clients.")
@OUT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def status(out: Path, as_json: bool) -> None:
    """Print the paused clients of an aggregator.

    Example: edgefl aggregator status --out kitchen
    """
    from mqtt_broker.aggregator.pauses import check_directory, read_paused_clients

    check_directory(out)
    paused = sorted(read_paused_clients(out))
    click.echo(json.dumps({"paused": paused}) if as_json else f"paused: {', '.join(paused) or 'none'}")
