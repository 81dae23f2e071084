"""`edgefl doctor`: finds problems and names their remedies."""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from edgefl.base.names import check_federation
from edgefl.base.system.format import escape_unprintable
from edgefl.base.system.progress import Progress
from edgefl.cli.doctor.broker_checks import check_broker
from edgefl.cli.doctor.check_result import CheckResult
from edgefl.cli.doctor.host_checks import (
    check_board,
    check_clock,
    check_disk,
    check_enrolment,
    check_software,
)
from edgefl.protocol.security.enrolment import Enrolment, load_enrolment
from edgefl.protocol.wire.url import parse_urls

LEVEL_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
LEVEL_MARKS = {"ok": "ok   ", "warn": "warn ", "fail": "FAIL "}


@click.command(short_help="Find problems and their remedies.")
@click.option(
    "--broker",
    help="mqtt://HOST:PORT, several separated by commas. Append ?protocol=5 for MQTT 5  [default: the "
    "enrolment's, otherwise no broker is checked]",
)
@click.option("--enrol", type=click.Path(path_type=Path), help="File of `edgefl device enrol`.")
@click.option("--federation", default="", help="Check only this federation  [default: all on the broker]")
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    default=Path("."),
    help="State directory of the device  [default: the current directory]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(broker: str | None, enrol: Path | None, federation: str, state: Path, as_json: bool) -> None:
    """Check this machine, the broker and its federations: software, board, clock, disk, certificate, access,
    packet size.

    Exits with 1 if a check fails.

    \b
    Example:
      edgefl doctor --broker mqtt://192.168.1.10:1883
    """
    if federation:
        check_federation(federation)
    enrolment = load_enrolment(enrol) if enrol else None
    url = broker or (enrolment.broker if enrolment else None)
    if url:
        parse_urls(url)
    results = []
    checks = _run_checks(url, enrolment, federation, state)
    while result := _run_next(checks):
        results.append(result)
        if not as_json:
            mark = click.style(LEVEL_MARKS[result.level], LEVEL_COLOURS[result.level])
            click.echo(
                f"{mark} {result.check:10} {escape_unprintable(result.found)}"
                + (f"\n{'':17}{escape_unprintable(result.remedy)}" if result.remedy else "")
            )
    if as_json:
        click.echo(json.dumps({"findings": [asdict(result) for result in results]}))
    if any(result.level == "fail" for result in results):
        sys.exit(1)


def _run_next(checks: Iterator[CheckResult]) -> CheckResult | None:
    with Progress() as progress:  # closed before the result is printed to stdout
        progress.update_live("checking")
        return next(checks, None)


def _run_checks(
    url: str | None, enrolment: Enrolment | None, federation: str, state: Path
) -> Iterator[CheckResult]:
    yield from check_software()
    yield check_board()
    yield check_clock(time.time())
    yield check_disk(state)
    if enrolment:
        yield check_enrolment(enrolment)
    if url:
        yield from check_broker(url, enrolment, federation)
