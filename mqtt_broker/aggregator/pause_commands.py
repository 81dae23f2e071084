"""`edgefl aggregator pause | resume | status`."""

import json
from pathlib import Path

import click

OUT = click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="The --out of `edgefl aggregator start`."
)
CLIENTS = click.argument("client_ids", metavar="ID...", nargs=-1, required=True)


@click.command(short_help="Leave clients out of the rounds to come.")
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


@click.command(short_help="Let clients take part again.")
@OUT
@CLIENTS
def resume(out: Path, client_ids: tuple[str, ...]) -> None:
    """End the pauses of `edgefl aggregator pause`.

    Example: edgefl aggregator resume --out kitchen pi-7
    """
    from mqtt_broker.aggregator.pauses import resume_clients

    resume_clients(out, client_ids)
    click.echo(f"resumed {', '.join(client_ids)}")


@click.command(short_help="Which clients are paused.")
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
