"""`edgefl init`."""

import json
import shlex
from pathlib import Path
from textwrap import indent

import click

from edgefl.algorithms.recommendation import USUAL_ALGORITHM, recommend
from edgefl.cli.completion import algorithm_names, dataset_names, known, model_names
from edgefl.config import DEFAULT_BROKER, DataConfig, FederationConfig, ModelConfig, PartitionConfig, as_shape
from edgefl.config.template import commented
from edgefl.errors import ConfigError
from edgefl.init.questions import Questions, as_count, as_name, place, plain_name
from edgefl.init.task import Task, check_task, find_task, model_for
from edgefl.report.samples_text import short_text
from edgefl.system.files import write_atomic
from edgefl.system.progress import Telling

COUNTS = ("", "One question", "Two questions", "Three questions", "Four questions")


def next_commands(path: Path, config: FederationConfig, task: Task) -> list[str]:
    """Return the commands that run the federation, in order."""
    where = "" if path == Path("federation.toml") else f" --config {shlex.quote(str(path))}"
    broker = "" if config.broker == DEFAULT_BROKER else f" --broker {shlex.quote(config.broker)}"
    own = task.own or ("pi-1.npz",)
    data = [*own, *(f"pi-{i}.npz" for i in range(len(own) + 1, min(config.min_clients, 4) + 1))]
    devices = [
        f"edgefl device start{broker} --id pi-{i} --data {shlex.quote(each)}"
        for i, each in enumerate(data, 1)
    ]
    return [*([] if broker else ["edgefl broker start"]), f"edgefl aggregator start{where}", *devices]


@click.command(short_help="Four questions, one federation.toml.")
@click.argument("target", type=click.Path(path_type=Path), default=Path("."))
@click.option("--yes", "-y", is_flag=True, help="Ask nothing: take the default of all that no option says.")
@click.option(
    "--name", help="Question 1: the federation's name, a part of its topics  [default: the directory's]"
)
@click.option(
    "--data",
    multiple=True,
    shell_complete=known(dataset_names, or_file=True),
    help="Question 2: a device's data, as `edgefl device start --data` takes them, or a name of `edgefl "
    "datasets`. Devices often know different classes: say it once for each that is at hand, and the "
    "classes of all are counted.",
)
@click.option(
    "--algorithm",
    shell_complete=known(algorithm_names),
    help="Question 3: a name of `edgefl algorithms`.  [default: one that fits the data]",
)
@click.option(
    "--clients",
    help="Question 4: how many devices must be online before the first round.  [default: 2, or as many as "
    "--data]",
)
@click.option(
    "--model",
    shell_complete=known(model_names, or_file=True),
    help="A name of `edgefl models`, a .keras file or module:function  [default: one that fits the data]",
)
@click.option(
    "--input-shape",
    help="One sample's shape, as 28,28,1: without --data, or to override the likely one.",
)
@click.option(
    "--num-classes", type=click.IntRange(2), help="How many classes there are  [default: those in the data]"
)
@click.option("--rounds", type=click.IntRange(1), default=20, show_default=True, help="Rounds of training.")
@click.option("--broker", default=DEFAULT_BROKER, show_default=True, help="Where the broker listens.")
@click.option("--window", type=click.IntRange(0), default=0, help="Data in CSV: rows in a window.")
@click.option("--label", default="", help="Data in CSV: the column of labels.")
@click.option("--json", "as_json", is_flag=True, help="Print path, answers and next commands as JSON.")
def init(
    target: Path,
    yes: bool,
    name: str | None,
    data: tuple[str, ...],
    algorithm: str | None,
    clients: str | None,
    model: str | None,
    input_shape: str | None,
    num_classes: int | None,
    rounds: int,
    broker: str,
    window: int,
    label: str,
    as_json: bool,
) -> None:
    """Ask up to four questions and write TARGET, or TARGET/federation.toml: every key with what it does, and
    its default.

    An option is an answer, and its question is not asked. A file that is there is not touched.

    \b
    Example:
      edgefl init kitchen
      edgefl init --yes --name kitchen --data pi-1.npz --data pi-2.npz --clients 2
    """
    from edgefl.algorithms.registry import entry
    from edgefl.server.config_check import check_config
    from edgefl.wire.url import parse_urls

    def known_algorithm(name: str) -> str:
        entry(name)
        return name

    path = place(target)
    parse_urls(broker)
    total = [name, data or input_shape or None, algorithm, clients].count(None) if not yes else 0
    questions = Questions(not yes, total)
    if questions.total:
        click.echo(f"{COUNTS[total]} for {path}; Enter takes what is in brackets.\n", err=True)
    default = plain_name(
        (path.parent if path.name == "federation.toml" else path.with_suffix("")).resolve().name
    )
    named = questions.answer(name, "Name of the federation", default, "--name", as_name)
    task, table = _learned(
        questions, data, model, input_shape, num_classes, {"window": window, "label": label}
    )
    recommended = USUAL_ALGORITHM
    if algorithm is None and task.inspection is not None:
        found = recommend([dict(device.class_counts) for device in task.inspection.devices])
        recommended = found.algorithm
        click.echo(f"    {found.algorithm} is recommended: {found.reason}", err=True)
        if found.caution:
            click.echo(f"    {found.caution}", err=True)
    chosen_algorithm = questions.answer(
        algorithm,
        "Algorithm, a name of `edgefl algorithms`",
        recommended,
        "--algorithm",
        known_algorithm,
    )
    together = bool(task.dataset) and len(task.own) > 1
    most = str(max(2, len(task.own)))
    count = questions.answer(
        clients, "Devices that must be online before the first round", most, "--clients", as_count
    )
    config = FederationConfig(
        name=named,
        rounds=rounds,
        min_clients=count,
        algorithm=chosen_algorithm,
        broker=broker,
        model=table,
        data=DataConfig(task.dataset or "digits"),
        partition=PartitionConfig("group", len(task.own)) if together else PartitionConfig(),
    )
    for warning in check_config(config):
        click.echo(f"warning: {warning}", err=True)
    chosen = {
        "federation": {"name", "rounds", "min_clients"},
        "model": {"name", "input_shape", "num_classes"},
        "algorithm": {"name"},
        "broker": {"url"},
        "data": {"name"} if task.dataset else set(),
        "partition": {"name", "num_clients"} if together else set(),
    }
    write_atomic(path, commented(config, chosen, {"algorithm": entry(config.algorithm).options}).encode())
    commands = next_commands(path, config, task)
    if as_json:
        told = {
            "name": named,
            "algorithm": config.algorithm,
            "model": table.name,
            "input_shape": list(table.input_shape),
        }
        counts = {"num_classes": table.num_classes, "rounds": rounds, "min_clients": count}
        click.echo(json.dumps({"path": str(path), **told, **counts, "next": commands}))
        return
    click.echo(
        f"wrote {path}: {table.name} by {config.algorithm}, {rounds} rounds\n\nnext, each in a terminal of "
        "its own:"
    )
    click.echo("".join(f"  {line}\n" for line in commands), nl=False)
    if task.dataset:
        if together:
            what = f"all {len(task.own)} devices"
        else:
            what = (
                f"the data of {task.own[0]} dealt to {config.partition.num_clients} invented clients"
                if task.own
                else "all of it"
            )
        click.echo(f"or {what} here, simulated:\n  edgefl simulate {shlex.quote(str(path))}")


def _learned(
    questions: Questions,
    data: tuple[str, ...],
    model: str | None,
    input_shape: str | None,
    num_classes: int | None,
    csv: dict[str, object],
) -> tuple[Task, ModelConfig]:
    def read(text: str) -> tuple[Task, ModelConfig]:
        with Telling() as tell:
            tell.at(f"reading {', '.join(data) or text}")
            shape = None if input_shape is None else as_shape(input_shape)
            task = find_task(data or (text.strip(),), num_classes, shape, **csv)
        click.echo(f"    {task.said}", err=True)
        if task.inspection is not None:
            click.echo(indent(short_text(task.inspection), "    "), err=True)
        return task, check_task(task, model or model_for(task.input_shape))

    if input_shape is not None and not data:
        if num_classes is None:
            raise ConfigError("--input-shape without --num-classes, expected both: they stand for the data")
        task = Task(as_shape(input_shape), num_classes)
        return questions.answer(
            "", "", "", "--data", lambda _: (task, check_task(task, model or model_for(task.input_shape)))
        )
    question = "Data of one device (.npz, folder, CSV, module:function), or a name of `edgefl datasets`"
    return questions.answer(data[0] if data else None, question, "digits", "--data", read)
