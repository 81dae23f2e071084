"""`edgefl demo`: runs a federation on this machine, with one process per part and real MQTT."""

import importlib.util
import json
import time
from pathlib import Path

import click

from edgefl.base.storage.demo_directory import DemoFiles
from edgefl.base.storage.device_directory import DeviceFiles
from edgefl.base.system.progress import Progress
from edgefl.base.system.signals import Stopped, raise_on_signal
from edgefl.cli.demo.processes import Children
from edgefl.cli.demo.run import (
    CLIENT_SAMPLES,
    DEFAULT_ROUNDS,
    DemoSettings,
    collect_models,
    federate,
    filter_until_done,
    format_client_table,
    prepare_directory,
    write_shards,
)


@click.command(short_help="Run a whole federation on this machine.")
@click.option(
    "--dataset",
    type=click.Choice(list(CLIENT_SAMPLES)),
    default="digits",
    show_default=True,
    help="Data set that the clients share.",
)
@click.option(
    "--clients", type=click.IntRange(2, 16), default=4, show_default=True, help="Number of device processes."
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=DEFAULT_ROUNDS,
    show_default=True,
    help="Rounds of federated averaging.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), help="New output directory  [default: runs/demo-DATE-TIME]"
)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Random seed.")
@click.option(
    "--broker",
    type=click.Choice(["auto", "mosquitto", "amqtt"]),
    default="auto",
    show_default=True,
    help="Broker to run. auto uses mosquitto if it is installed.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port of the broker  [default: a free port]"
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON. Progress goes to stderr.")
def demo(
    dataset: str,
    clients: int,
    rounds: int,
    out: Path | None,
    seed: int,
    broker: str,
    port: int,
    as_json: bool,
) -> None:
    """Run a broker, an aggregator and some device processes on this machine.

    They federate LeNet-5 over MQTT and personalize it with PFL-MFE. Each device quantizes its own mixture to
    int8.

    Example: edgefl demo --dataset fashion-mnist --clients 4 --out demo-out
    """
    for module in ("sklearn", "tensorflow"):
        if importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
    out = out or Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    settings = DemoSettings(
        dataset=dataset, clients=clients, rounds=rounds, seed=seed, broker=broker, port=port, out=out
    )
    prepare_directory(out)
    files = DemoFiles(out)
    started = time.monotonic()
    try:
        with (
            Progress() as progress,
            raise_on_signal(),
            Children(logs=files.logs, echo=filter_until_done(progress)) as children,
        ):
            progress.update(f"partitioning {dataset} over {clients} clients")
            write_shards(settings)
            progress.update_live("")
            result = federate(settings, children)
    except Stopped:
        click.echo(f"stopped; the processes of the demo have ended, their files are in {out}", err=True)
        raise click.Abort from None
    summary = collect_models(settings, result, time.monotonic() - started)
    if as_json:
        click.echo(json.dumps(summary))
        return
    click.echo(
        f"\n{dataset}, {clients} clients, {settings.rounds} rounds, {summary['seconds']:.0f} s, broker "
        f"{summary['broker']}\n"
    )
    click.echo(format_client_table(summary["clients"]))
    click.echo(f"\n{summary['verdict']['sentence']}")
    click.echo(
        f"\nsummary  {files.summary}\nmodels   {files.clients}/*/{DeviceFiles(out).model.name}\n"
        f"logs     {files.logs}"
    )
