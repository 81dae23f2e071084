"""`edgefl device ...`."""

import json
import sys
from pathlib import Path

import click

from edgefl.stopping import Stopped, stoppable


@click.group(short_help="The service of one board.")
def device() -> None:
    """Take part in a federation.

    Example: edgefl device start --broker mqtt://192.168.1.10:1883 --id pi-1 --data shard.npz --state /var/lib/edgefl
    """


@device.command(short_help="Join, train, personalize, export.")
@click.option("--broker", required=True, help="mqtt://HOST:PORT, or mqtts://USER:PASSWORD@HOST:PORT")
@click.option("--id", "client_id", required=True, help="This client's name: a-z, 0-9, - and _.")
@click.option("--data", type=click.Path(path_type=Path), required=True, help="The shard: .npz with x and y. It stays here.")
@click.option("--state", type=click.Path(path_type=Path), required=True, help="What this device keeps; its model ends in DIR/model.")
@click.option("--federation", default="", help="Which federation  [default: the one that runs on the broker]")
@click.option(
    "--learner", type=click.Choice(["litert", "keras", "numpy"]), default="litert", show_default=True, help="keras needs TensorFlow."
)
@click.option("--threads", type=click.IntRange(1, 64), default=1, show_default=True)
@click.option("--keepalive", type=click.IntRange(2, 3600), default=20, show_default=True, help="Seconds between signs of life.")
@click.option("--wait", "wait_s", type=click.FloatRange(0), default=0.0, help="Seconds to wait for a federation  [default: no limit]")
@click.option("--export/--no-export", default=True, show_default=True, help="Make model.tflite at the end.")
@click.option("--json", "as_json", is_flag=True, help="Print what was made as JSON; progress goes to stderr.")
def start(
    broker: str, client_id: str, data: Path, state: Path, federation: str, learner: str, threads: int, keepalive: int, wait_s: float,
    export: bool, as_json: bool,
) -> None:  # fmt: skip
    """Join a federation with this device's own data, and end with an int8 model of its own.

    A repeated start with the same --state goes on where it was.

    Example: edgefl device start --broker mqtt://192.168.1.10:1883 --id pi-1 --data shard.npz --state /var/lib/edgefl
    """
    from devices.service import Device, Settings

    def note(line: str) -> None:
        click.echo(line, err=True)

    settings = Settings(broker, client_id, data, state, federation, learner, threads, keepalive, wait_s, export)
    with stoppable():
        try:
            made = Device(settings, note).run()
        except Stopped:
            note("stopped")
            return
    if as_json:
        click.echo(json.dumps({**made, "tensorflow_loaded": "tensorflow" in sys.modules}))
    else:
        click.echo(f"model: {made['model']}" if made["model"] else f"done; the mixture is in {state}")
