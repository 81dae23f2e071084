"""`edgefl dashboard`: serves the page that shows a federation in a browser."""

import contextlib
import json
import threading
from pathlib import Path

import click

from edgefl.watch.monitor.connection import add_broker_options, open_link


@click.command(short_help="Show a federation live in a browser.")
@add_broker_options("the running one, or the first to start")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="Port of the page. 0 uses a free port.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. Any other address lets other machines see the page without a password.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the address of the page as JSON.")
def dashboard(broker: str, enrol: Path | None, federation: str, port: int, host: str, as_json: bool) -> None:
    """Show a federation in a browser: rounds, curves, clusters, gates and devices. The dashboard only reads,
    and works without the Internet.

    \b
    Example:
      edgefl dashboard --broker mqtt://192.168.1.10:1883 --port 8080
    """
    from edgefl.base.names import check_federation
    from edgefl.base.system.signals import Stopped, raise_on_signal
    from edgefl.watch.dashboard.follower import Follower, find_only_federation
    from edgefl.watch.dashboard.latest_snapshot import LatestSnapshot
    from edgefl.watch.dashboard.server import DashboardServer, is_loopback

    if federation:
        check_federation(federation)
    latest = LatestSnapshot()
    with contextlib.suppress(Stopped), raise_on_signal(), contextlib.ExitStack() as ends:
        server = DashboardServer(latest, host, port)
        ends.callback(server.server_close)
        # A separate link, because a link that reads in bursts may report a second federation too late
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
            json.dumps({"url": server.url})
            if as_json
            else f"{server.url}  shows {link.url}; press Ctrl-C to stop"
        )
        if not is_loopback(host):
            click.echo(
                f"anyone who can reach port {server.server_address[1]} of this machine sees the federation; "
                "there is no password",
                err=True,
            )
        while True:
            follower.run_once()
