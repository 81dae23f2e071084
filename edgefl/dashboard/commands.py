"""`edgefl dashboard`."""

import contextlib
import json
import secrets
import threading
from pathlib import Path

import click

from edgefl.errors import ConfigError


@click.command(short_help="A federation, live in a browser.")
@click.option(
    "--broker",
    help="mqtt://HOST:PORT or mqtts://USER:PASSWORD@HOST:PORT, several with commas; ?protocol=5 after: MQTT 5  [default: the enrolment's]",
)
@click.option("--enrol", type=click.Path(path_type=Path), help="A file with keys and the broker's address, for a broker with certificates.")
@click.option("--federation", default="", help="Which one  [default: the only one on the broker]")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Where the page is; 0 takes a free port.")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="The address to listen on; any but this lets others in, without a password."
)
@click.option("--json", "as_json", is_flag=True, help="Print the page's address as JSON.")
def dashboard(broker: str | None, enrol: Path | None, federation: str, port: int, host: str, as_json: bool) -> None:
    """Show a federation in a browser: rounds, curves, clusters, gates, devices. It only reads, and works without the Internet.

    \b
    Example:
      edgefl dashboard --broker mqtt://192.168.1.10:1883 --port 8080
    """
    from edgefl.dashboard.feed import Feed
    from edgefl.dashboard.follow import Follower, federations, the_only
    from edgefl.dashboard.server import Server, is_loopback
    from edgefl.mqtt import Link
    from edgefl.security.enrolment import load_enrolment, tls_context
    from edgefl.stopping import Stopped, stoppable
    from edgefl.wire.topics import check_federation

    enrolment = load_enrolment(enrol) if enrol else None
    url = broker or (enrolment.broker if enrolment else None)
    if not url:
        raise ConfigError("no --broker; give the broker's address, such as mqtt://192.168.1.10:1883, or --enrol with a file that has it")
    if federation:
        check_federation(federation)
    feed = Feed()
    with contextlib.suppress(Stopped), stoppable(), contextlib.ExitStack() as ends:
        server = Server(feed, host, port)
        ends.callback(server.server_close)
        link = Link(url, f"edgefl-dashboard-{secrets.token_hex(8)}", context=tls_context(enrolment) if enrolment else None)
        ends.callback(link.close, 1.0)
        follower = Follower(link, federation or the_only(federations(link), link.url), feed)
        threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
        ends.callback(server.shutdown)
        ends.callback(feed.close)
        click.echo(json.dumps({"url": server.url}) if as_json else f"{server.url}  shows {link.url}; Ctrl-C ends it")
        if not is_loopback(host):
            click.echo(
                f"whoever can reach port {server.server_address[1]} of this machine sees the federation; there is no password", err=True
            )
        while True:
            follower.step()
