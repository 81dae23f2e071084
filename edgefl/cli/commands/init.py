"""`edgefl init`: asks up to four questions and writes a configuration."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from textwrap import indent
from typing import Any

import click

from edgefl.base.config import (
    DEFAULT_BROKER,
    DataConfig,
    FederationConfig,
    ModelConfig,
    PartitionConfig,
    PersonalizationConfig,
    SamplesConfig,
    parse_shape,
)
from edgefl.base.config.template import render_commented_toml
from edgefl.base.errors import ConfigError
from edgefl.base.system.files import write_atomic
from edgefl.base.system.progress import Progress
from edgefl.base.tasks.config import CLASSIFICATION, LOSSES_BY_KIND, REGRESSION, TaskConfig
from edgefl.cli.completion import complete_names, list_algorithm_names, list_dataset_names, list_model_names
from edgefl.cli.init.questions import Questions, as_count, as_name, choose_config_path, to_federation_name
from edgefl.cli.init.task import (
    USUAL_RATE,
    LearningTask,
    TrainingSettings,
    check_task,
    choose_augmentation,
    choose_model,
    choose_settings,
    find_task,
)
from edgefl.data.sources.options import parse_picture_size, split_column_names
from edgefl.learning.algorithms.recommendation import USUAL_ALGORITHM, recommend
from edgefl.watch.report.samples_text import format_short_inspection

TASK_ALGORITHM = "fedavg"
TASK_ALGORITHM_REASON = (
    "it works for every task, the other recommendations were measured on classifications only, and each "
    "device still chooses the model that it ships"
)
QUESTION_COUNTS = ("", "One question", "Two questions", "Three questions", "Four questions")


def make_device_ids(count: int) -> list[str]:
    """Return the ids that the commands for the devices have: pi-1, pi-2 and so on."""
    return [f"pi-{number}" for number in range(1, count + 1)]


def list_next_commands(
    path: Path, config: FederationConfig, task: LearningTask, csv_options: str = ""
) -> list[str]:
    """Return the commands that run the federation, in order.

    Args:
        path: the configuration file.
        config: its content.
        task: the learning task, whose device data become arguments of the devices.
        csv_options: options that describe the device data, with a space before each. Empty unless they are
            CSV.
    """
    config_option = "" if path == Path("federation.toml") else f" --config {shlex.quote(str(path))}"
    broker = "" if config.broker == DEFAULT_BROKER else f" --broker {shlex.quote(config.broker)}"
    device_data = task.device_data or ("pi-1.npz",)
    data = [
        *device_data,
        *(f"pi-{i}.npz" for i in range(len(device_data) + 1, min(config.min_clients, 4) + 1)),
    ]
    devices = [
        f"edgefl device start{broker} --id {client_id} --data {shlex.quote(source)}{csv_options}"
        for client_id, source in zip(make_device_ids(len(data)), data, strict=True)
    ]
    return [*([] if broker else ["edgefl broker start"]), f"edgefl aggregator start{config_option}", *devices]


@click.command(short_help="Answer up to four questions, get one federation.toml.")
@click.argument("target", type=click.Path(path_type=Path), default=Path("."))
@click.option(
    "--yes", "-y", is_flag=True, help="Ask no questions: use the defaults where no option is given."
)
@click.option(
    "--name", help="Question 1: name of the federation, a part of its topics  [default: the directory's name]"
)
@click.option(
    "--data",
    multiple=True,
    shell_complete=complete_names(list_dataset_names, or_file=True),
    help="Question 2: data of one device, as for `edgefl device start --data`, or a name of `edgefl "
    "datasets`. Repeat it for each device whose data you have, because devices often have different "
    "classes. The classes of all of them are counted.",
)
@click.option(
    "--algorithm",
    shell_complete=complete_names(list_algorithm_names),
    help="Question 3: a name of `edgefl algorithms`  [default: recommended for the data]",
)
@click.option(
    "--clients",
    help="Question 4: number of devices that must be online before the first round  [default: the number of "
    "--data, at least 2]",
)
@click.option(
    "--model",
    shell_complete=complete_names(list_model_names, or_file=True),
    help="A name of `edgefl models`, a .keras file or module:function  [default: chosen by the input shape]",
)
@click.option(
    "--input-shape",
    help="Shape of one sample, such as 28,28,1. Use it without --data, or to override the detected shape.",
)
@click.option(
    "--num-classes", type=click.IntRange(2), help="Number of classes  [default: the classes in the data]"
)
@click.option(
    "--rounds", type=click.IntRange(1), default=20, show_default=True, help="Number of training rounds."
)
@click.option("--broker", default=DEFAULT_BROKER, show_default=True, help="Address of the broker.")
@click.option(
    "--task",
    "kind",
    type=click.Choice(tuple(LOSSES_BY_KIND)),
    help="Kind of the task  [default: classification for classes, regression for other numbers, anomaly "
    "without labels]",
)
@click.option("--window", type=click.IntRange(0), default=0, help="CSV data: rows per window.")
@click.option("--label", default="", help="CSV data: name of the label column.")
@click.option(
    "--target",
    "--target-column",
    "target_columns",
    default="",
    help="CSV data: columns of numbers to predict, A,B.",
)
@click.option("--step", type=click.IntRange(0), default=0, help="CSV data: rows between windows.")
@click.option("--channels", default="", help="CSV data: columns to use, A,B,C.")
@click.option("--skip-empty", is_flag=True, help="CSV data: leave out windows with an empty cell.")
@click.option("--resize", default="", metavar="HxW", help="Folders of pictures: resize to H rows, W columns.")
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
    kind: str | None,
    window: int,
    label: str,
    target_columns: str,
    step: int,
    channels: str,
    skip_empty: bool,
    resize: str,
    as_json: bool,
) -> None:
    """Ask up to four questions and write TARGET, or TARGET/federation.toml. The file explains every key and
    its default.

    An option answers its question, which is then not asked. An existing file is never overwritten.

    \b
    Example:
      edgefl init kitchen
      edgefl init --yes --name kitchen --data pi-1.npz --data pi-2.npz --clients 2
    """
    from edgefl.learning.algorithms.registry import find_entry
    from edgefl.protocol.server.config_check import check_config
    from edgefl.protocol.wire.url import parse_urls

    def read_algorithm(name: str) -> str:
        find_entry(name)
        return name

    path = choose_config_path(target)
    parse_urls(broker)
    total = [name, data or input_shape or None, algorithm, clients].count(None) if not yes else 0
    questions = Questions(not yes, total)
    if questions.total:
        click.echo(
            f"{QUESTION_COUNTS[total]} for {path}. Press Enter for the default in brackets.\n", err=True
        )
    default = to_federation_name(
        (path.parent if path.name == "federation.toml" else path.with_suffix("")).resolve().name
    )
    federation_name = questions.answer(name, "Name of the federation", default, "--name", as_name)
    task, table = _ask_for_task(
        questions,
        data,
        model,
        input_shape,
        num_classes,
        kind,
        {
            "window": window,
            "step": step,
            "label": label,
            "target": split_column_names(target_columns),
            "channels": split_column_names(channels),
            "skip_empty": skip_empty,
            "resize": parse_picture_size(resize),
        },
    )
    recommended = USUAL_ALGORITHM
    if not task.config.is_classification:
        recommended = TASK_ALGORITHM
        if algorithm is None:
            click.echo(f"    {TASK_ALGORITHM} is recommended: {TASK_ALGORITHM_REASON}", err=True)
    elif algorithm is None and task.inspection is not None:
        recommendation = recommend([dict(device.class_counts) for device in task.inspection.devices])
        recommended = recommendation.algorithm
        click.echo(f"    {recommendation.algorithm} is recommended: {recommendation.reason}", err=True)
        if recommendation.caution:
            click.echo(f"    {recommendation.caution}", err=True)
    chosen_algorithm = questions.answer(
        algorithm,
        "Algorithm, a name of `edgefl algorithms`",
        recommended,
        "--algorithm",
        read_algorithm,
    )
    is_grouped = bool(task.dataset) and len(task.device_data) > 1
    default_count = str(max(2, len(task.device_data)))
    count = questions.answer(
        clients, "Devices that must be online before the first round", default_count, "--clients", as_count
    )
    partition = PartitionConfig()
    partition_keys = set[str]()
    if is_grouped:
        client_ids = tuple(make_device_ids(len(task.device_data)))
        partition = PartitionConfig(name="group", num_clients=len(client_ids), client_ids=client_ids)
        partition_keys = {"name", "num_clients", "client_ids"}
    elif task.dataset and not task.config.is_classification:
        partition = PartitionConfig(name="iid")
        partition_keys = {"name"}
    settings = choose_settings(table.name, task.samples / max(1, len(task.device_data)))
    # An anomaly task compares raw samples, so its model gets them as they are
    normalize = task.config.is_classification or task.config.kind == REGRESSION
    table = replace(table, options=settings.model_options, normalize=normalize)
    personalization = PersonalizationConfig()
    if settings.learning_rate is not None:
        personalization = PersonalizationConfig(learning_rate=settings.learning_rate)
    augmentation = choose_augmentation(task)
    if augmentation.is_on:
        click.echo(
            "    colour pictures: training shifts and mirrors them; if a mirrored picture belongs to another "
            "class, remove flip from [augmentation]",
            err=True,
        )
    samples = _choose_samples(task.samples_config, table, task.config)
    options = _choose_options(settings, chosen_algorithm, recommended, task.config)
    # Some algorithms, such as FedMix, have a rate of their own
    entry = find_entry(chosen_algorithm)
    has_usual_rate = entry.trains_one_model and entry.defaults.get("learning_rate") == USUAL_RATE
    range_test = normalize and "learning_rate" not in options and has_usual_rate
    config = FederationConfig(
        name=federation_name,
        rounds=rounds,
        range_test=range_test,
        min_clients=count,
        algorithm=chosen_algorithm,
        options=options,
        broker=broker,
        model=table,
        data=DataConfig(name=task.dataset or "digits"),
        partition=partition,
        personalization=personalization,
        task=task.config,
        samples=samples,
        augmentation=augmentation,
    )
    for warning in check_config(config):
        click.echo(f"warning: {warning}", err=True)
    chosen = {
        "federation": {"name", "rounds", "min_clients"},
        "model": {"name", "input_shape"},
        "algorithm": {"name"},
        "broker": {"url"},
        "data": {"name"} if task.dataset else set(),
        "partition": partition_keys,
    }
    chosen["samples"] = {key for key, value in samples.as_plan_entry().items() if value}
    if augmentation.is_on:
        chosen["augmentation"] = {"crop", "flip"}
    if settings.learning_rate is not None:
        chosen["personalization"] = {"learning_rate"}
    if task.config.is_classification:
        chosen["model"] = {"name", "input_shape", "num_classes"}
    else:
        chosen["task"] = {"kind", "outputs"} if task.config.kind == REGRESSION else {"kind"}
    if normalize:
        chosen["model"] |= {"normalize"}
    if range_test:
        chosen["federation"] |= {"range_test"}
    write_atomic(
        path,
        render_commented_toml(config, chosen, {"algorithm": find_entry(config.algorithm).options}).encode(),
    )
    csv_options = "".join(
        f" --{key} {shlex.quote(str(value))}"
        for key, value in (
            ("window", window),
            ("step", step),
            ("label", label),
            ("target", target_columns),
            ("resize", resize),
        )
        if value
    ) + (" --skip-empty" if skip_empty else "")
    commands = list_next_commands(path, config, task, csv_options)
    if as_json:
        answers = {
            "name": federation_name,
            "algorithm": config.algorithm,
            "model": table.name,
            "input_shape": list(table.input_shape),
            "task": task.config.kind,
        }
        counts = {"num_classes": table.num_classes, "rounds": rounds, "min_clients": count}
        click.echo(json.dumps({"path": str(path), **answers, **counts, "next": commands}))
        return
    kind_text = "" if task.config.is_classification else f", task {task.config.kind}"
    click.echo(
        f"wrote {path}: {table.name} with {config.algorithm}, {rounds} rounds{kind_text}\n\nnext, each in "
        "its own terminal:"
    )
    click.echo("".join(f"  {line}\n" for line in commands), nl=False)
    if task.dataset:
        if is_grouped:
            simulated = f"all {len(task.device_data)} devices"
        else:
            simulated = (
                f"{config.partition.num_clients} clients that share the data of {task.device_data[0]}"
                if task.device_data
                else "the federation"
            )
        click.echo(f"or simulate {simulated} on this machine:\n  edgefl simulate {shlex.quote(str(path))}")


def _choose_options(
    settings: TrainingSettings, algorithm: str, recommended: str, task: TaskConfig
) -> Mapping[str, Any]:
    """Return the options of the algorithm that suit the model and the number of samples."""
    return settings.algorithm_options if task.is_classification or algorithm == recommended else {}


def _choose_samples(samples: SamplesConfig, model: ModelConfig, task: TaskConfig) -> SamplesConfig:
    """Return the table [samples] for a model, which may scale its input itself, and print what it decides."""
    from edgefl.simulation.runs.pipeline import resolve_samples

    unscaled = FederationConfig(model=model, task=task, samples=replace(samples, scale=0.0))
    lines: list[str] = []
    with Progress() as progress:
        progress.update_live(f"looking at {model.name}")
        resolved = resolve_samples(unscaled, lines.append)
    for line in lines:
        click.echo(f"    {line}", err=True)
    return resolved if resolved.scale else samples


def _ask_for_task(
    questions: Questions,
    data: tuple[str, ...],
    model: str | None,
    input_shape: str | None,
    num_classes: int | None,
    kind: str | None,
    csv: dict[str, object],
) -> tuple[LearningTask, ModelConfig]:
    def read(text: str) -> tuple[LearningTask, ModelConfig]:
        with Progress() as progress:
            progress.update_live(f"reading {', '.join(data) or text}")
            shape = None if input_shape is None else parse_shape(input_shape)
            task = find_task(data or (text.strip(),), num_classes, shape, kind, **csv)
        click.echo(f"    {task.description}", err=True)
        if task.inspection is not None:
            click.echo(indent(format_short_inspection(task.inspection), "    "), err=True)
        return task, check_task(task, model or choose_model(task.input_shape, task.config.kind))

    if input_shape is not None and not data:
        shape = parse_shape(input_shape)
        task_config = TaskConfig(kind=kind or CLASSIFICATION)
        if task_config.is_classification and num_classes is None:
            raise ConfigError("--input-shape without --num-classes, expected both: they replace the data")
        if not task_config.is_classification and num_classes is not None:
            raise ConfigError(
                f"--num-classes with --task {kind}, expected it only for a classification; leave it out"
            )
        task = LearningTask(
            input_shape=shape,
            num_classes=task_config.count_outputs(shape, num_classes or 0),
            config=task_config,
        )
        table = check_task(task, model or choose_model(shape, task_config.kind))
        return questions.answer("", "", "", "--data", lambda _: (task, table))
    question = "Data of one device (.npz, folder, CSV, module:function), or a name of `edgefl datasets`"
    return questions.answer(data[0] if data else None, question, "digits", "--data", read)
