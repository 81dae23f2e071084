"""`edgefl demo`: a whole federation on this machine, every part a process of its own, over real MQTT."""

import contextlib
import importlib.util
import json
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from edgefl.demo.processes import Child, Children
from edgefl.demo.table import client_row, table
from edgefl.errors import ConfigError, EdgeflError, StateError
from edgefl.system.progress import Telling
from edgefl.system.signals import Stopped, stoppable

ALGORITHM = "pfl-mfe"
FEDERATION = "demo"
LIMIT_S = 900.0
FREE_BYTES = 64_000_000
# Rounds, and samples to train on for each client (0: all), such that two cores need less than three minutes.
SCALES = {"digits": (10, 0), "fashion-mnist": (10, 500)}


@dataclass(frozen=True)
class Settings:
    """What the options say; `port` 0 takes a free one."""

    dataset: str
    clients: int
    rounds: int
    seed: int
    broker: str
    port: int
    out: Path

    @property
    def ids(self) -> list[str]:
        """Names of the clients, in order."""
        return [f"pi-{i + 1}" for i in range(self.clients)]


def toml(settings: Settings, url: str) -> str:
    """Return the federation's configuration file."""
    return f"""# Written by `edgefl demo`; `edgefl aggregator start --config` takes it as it is.
[federation]
name = "{FEDERATION}"
seed = {settings.seed}
rounds = {settings.rounds}
min_clients = {settings.clients}

[model]
name = "lenet5"
input_shape = [28, 28, 1]
num_classes = 10

[algorithm]
name = "{ALGORITHM}"

[broker]
url = "{url}"
"""


def write_shards(settings: Settings) -> None:
    """Share the data set out by Dirichlet(.5) and write one `.npz` a client."""
    from edgefl.config import PartitionConfig
    from edgefl.data import load_dataset, make_shards
    from edgefl.data.dataset import subsample
    from edgefl.data.npz import save_shard

    dataset = load_dataset(settings.dataset)
    each = SCALES[settings.dataset][1]
    if each:
        dataset = subsample(dataset, each * settings.clients, each * settings.clients, settings.seed)
    partition = PartitionConfig("dirichlet", settings.clients, {"alpha": 0.5, "min_samples": 20})
    shards = make_shards(dataset, partition, settings.seed)
    for name, shard in zip(settings.ids, shards.values(), strict=True):
        save_shard(settings.out / "shards" / f"{name}.npz", shard)


def prepare(out: Path) -> None:
    """Make the directory; ConfigError when it holds something, StateError when its disk is full."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(
            f"{out} is in use, expected a new or empty directory; give another --out, or remove it"
        )
    out.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(out).free
    if free < FREE_BYTES:
        raise StateError(
            f"{free / 1e6:.0f} MB free at {out}, expected {FREE_BYTES / 1e6:.0f}; give an --out on another "
            "disk"
        )


def federate(settings: Settings, children: Children) -> dict[str, Any]:
    """Start broker, aggregator and devices, wait for their end, and return the aggregator's result."""
    out = settings.out
    broker, lines = children.start(
        "broker", "broker", "start", "--port", str(settings.port), "--kind", settings.broker, "--json"
    )
    said = json.loads(children.wait_for_line(broker, lines, "mqtt://", 30))
    url: str = said["url"]
    config = out / "federation.toml"
    config.write_text(toml(settings, url))
    aggregator, _ = children.start(
        "aggregator",
        "aggregator",
        "start",
        "--config",
        str(config),
        "--out",
        str(out / "aggregator"),
        show=True,
    )
    devices = []
    for name in settings.ids:
        data = str(out / "shards" / f"{name}.npz")
        state = str(out / "devices" / name)
        child, _ = children.start(
            name,
            "device",
            "start",
            "--broker",
            url,
            "--federation",
            FEDERATION,
            "--id",
            name,
            "--data",
            data,
            "--state",
            state,
        )
        devices.append(child)
    wait(children, aggregator, devices)
    result: dict[str, Any] = json.loads((out / "aggregator" / "result.json").read_text())
    return result | {"broker": said["kind"]}


def wait(children: Children, aggregator: Child, devices: list[Child]) -> None:
    """Return when aggregator and devices have ended well; EdgeflError when one has not."""
    until = time.monotonic() + LIMIT_S
    ended = (aggregator, *devices)
    while running := [child for child in ended if child.process.poll() is None]:
        children.check(ended=ended)
        if time.monotonic() > until:
            raise EdgeflError(
                f"the federation did not end within {LIMIT_S:.0f} s; the logs are in {children.logs}"
            )
        with contextlib.suppress(subprocess.TimeoutExpired):
            running[0].process.wait(0.2)
    children.check(ended=ended)


def collect(settings: Settings, result: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Copy each model to clients/ID/ and write summary.json; returns the summary."""
    by_id = {client["id"]: client for client in result["clients"]}
    for name in settings.ids:
        target = settings.out / "clients" / name
        target.mkdir(parents=True, exist_ok=True)
        source = settings.out / "devices" / name / "model"
        if name not in by_id or not (source / "model.tflite").exists():
            raise EdgeflError(f"{name} ended without a model; its log is {settings.out / 'logs' / name}.log")
        for file in sorted(source.iterdir()):
            shutil.copy2(file, target / file.name)
    summary = {
        "dataset": settings.dataset,
        "algorithm": ALGORITHM,
        "rounds": settings.rounds,
        "seconds": round(seconds, 1),
        "broker": result["broker"],
        "seed": settings.seed,
        "clients": [client_row(by_id[name]) for name in settings.ids],
    }
    (settings.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    return summary


@click.command(short_help="A whole federation on this machine.")
@click.option(
    "--dataset",
    type=click.Choice(list(SCALES)),
    default="digits",
    show_default=True,
    help="What is shared out.",
)
@click.option("--clients", type=click.IntRange(2, 16), default=4, show_default=True, help="Device processes.")
@click.option("--rounds", type=click.IntRange(1), help="Rounds of federated averaging  [default: 10]")
@click.option(
    "--out", type=click.Path(path_type=Path), help="A new directory  [default: runs/demo-DATE-TIME]"
)
@click.option(
    "--seed", type=click.IntRange(0), default=1, show_default=True, help="What all draws come from."
)
@click.option(
    "--broker",
    type=click.Choice(["auto", "mosquitto", "amqtt"]),
    default="auto",
    show_default=True,
    help="auto: mosquitto if it is here.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="The broker's port  [default: a free one]"
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON; progress goes to stderr.")
def demo(
    dataset: str,
    clients: int,
    rounds: int | None,
    out: Path | None,
    seed: int,
    broker: str,
    port: int,
    as_json: bool,
) -> None:
    """Run a broker, an aggregator and some device processes here.

    They federate LeNet-5 over MQTT, personalize it by PFL-MFE, and each device quantizes its own mixture to
    int8.

    Example: edgefl demo --dataset fashion-mnist --clients 4 --out demo-out
    """
    for module in ("sklearn", "tensorflow"):
        if importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
    out = out or Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    settings = Settings(dataset, clients, rounds or SCALES[dataset][0], seed, broker, port, out)
    prepare(out)
    started = time.monotonic()
    try:
        with Telling() as tell, stoppable(), Children(out / "logs", tell) as children:
            tell.doing(f"sharing {dataset} out to {clients} clients")
            write_shards(settings)
            tell.at("")
            result = federate(settings, children)
    except Stopped:
        click.echo(f"stopped; the processes of the demo have ended, what they wrote is in {out}", err=True)
        raise click.Abort from None
    summary = collect(settings, result, time.monotonic() - started)
    if as_json:
        click.echo(json.dumps(summary))
        return
    click.echo(
        f"\n{dataset}, {clients} clients, {settings.rounds} rounds, {summary['seconds']:.0f} s, broker "
        f"{summary['broker']}\n"
    )
    click.echo(table(summary["clients"]))
    click.echo(
        f"\nsummary  {out / 'summary.json'}\nmodels   {out / 'clients'}/*/model.tflite\nlogs     "
        f"{out / 'logs'}"
    )
