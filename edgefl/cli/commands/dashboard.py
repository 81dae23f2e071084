"""`edgefl dashboard`."""

import contextlib
import json
import threading
from pathlib import Path

import click

from edgefl.monitor.connection import add_broker_options, open_link


@click.command(short_help="A federation, live in a browser.")
@add_broker_options("the one that runs, or the first that turns up")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="Where the page is; 0 takes a free port.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on; any but this lets others in, without a password.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the page's address as JSON.")
def dashboard(broker: str, enrol: Path | None, federation: str, port: int, host: str, as_json: bool) -> None:
    """Show a federation in a browser: rounds, curves, clusters, gates, devices. It only reads, and works
    without the Internet.

    \b
    Example:
      edgefl dashboard --broker mqtt://192.168.1.10:1883 --port 8080
    """
    from edgefl.dashboard.follower import Follower, find_only_federation
    from edgefl.dashboard.latest_snapshot import LatestSnapshot
    from edgefl.dashboard.server import DashboardServer, is_loopback
    from edgefl.system.signals import Stopped, raise_on_signal
    from edgefl.wire.topics import check_federation

    if federation:
        check_federation(federation)
    latest = LatestSnapshot()
    with contextlib.suppress(Stopped), raise_on_signal(), contextlib.ExitStack() as ends:
        server = DashboardServer(latest, host, port)
        ends.callback(server.server_close)
        # With a link of its own: one that rests between bursts may hear of the second too late
        if not federation:
            with contextlib.closing(open_link(broker, enrol)) as lookup_link:
                federation = find_only_federation(lookup_link)
        link = open_link(broker, enrol, in_bursts=True)
        ends.callback(link.close, 1.0)
        follower = Follower(link, federation, latest)
        threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
        ends.callback(server.shutdown)
        ends.callback(latest.close)
        click.echo(
            json.dumps({"url": server.url}) if as_json else f"{server.url}  shows {link.url}; Ctrl-C ends it"
        )
        if not is_loopback(host):
            click.echo(
                f"whoever can reach port {server.server_address[1]} of this machine sees the federation; "
                "there is no password",
                err=True,
            )
        while True:
            follower.run_once()
