"""`edgefl datasets` and `edgefl partitions`: list data sets and partitions, and show a drawn partition."""

import json
from pathlib import Path
from typing import Any

import click

from edgefl.base.config import DataConfig, PartitionConfig
from edgefl.base.errors import ConfigError
from edgefl.base.options import parse_options
from edgefl.base.system.progress import Progress
from edgefl.cli.completion import complete_names, list_dataset_names, list_partition_names
from edgefl.data import PARTITIONS, list_datasets, load_data, make_client_partitions
from edgefl.data.datasets.catalog import find_dataset, list_dataset_options
from edgefl.data.partitions.heatmap import (
    count_classes,
    count_turns,
    plot_heatmap,
    render_heatmap,
    summarize_partition,
)
from edgefl.data.partitions.registry import find_partition


@click.command(short_help="List the data sets.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def datasets(as_json: bool) -> None:
    """List the data sets: description, licence, source, options, and whether each is on this machine.

    \b
    Example:
      edgefl datasets
    """
    rows = list_datasets()
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    for row in rows:
        click.echo(f"{row['name']:14} {'here  ' if row['here'] else 'absent'}  {row['about']}")
        click.echo(f"{'':22}licence: {row['licence']}; {row['home']}")
        click.echo(f"{'':22}options: {_format_options(row['options'])}")


@click.group(invoke_without_command=True, short_help="List and show partitions of a data set over clients.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@click.pass_context
def partitions(context: click.Context, as_json: bool) -> None:
    """List the partitions of a data set over clients, with source, options and defaults.

    \b
    Example:
      edgefl partitions
      edgefl partitions show --partition dirichlet --clients 10 -o alpha=0.1
    """
    if context.invoked_subcommand:
        return
    rows: list[dict[str, Any]] = [
        {"name": name, "source": entry.source, "options": entry.defaults}
        for name, entry in PARTITIONS.items()
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    for row in rows:
        click.echo(f"{row['name']:16} {row['source']}")
        click.echo(f"{'':16} options: {_format_options(row['options'])}")


@partitions.command()
@click.option(
    "--data",
    shell_complete=complete_names(list_dataset_names, or_file=True),
    default="digits",
    show_default=True,
    help="A name of `edgefl datasets`, or npz:PATH.",
)
@click.option(
    "--partition",
    shell_complete=complete_names(list_partition_names),
    default="dirichlet",
    show_default=True,
    help="A name of `edgefl partitions`.",
)
@click.option("--clients", default=10, show_default=True, help="Number of clients.")
@click.option(
    "-o",
    "--option",
    "pairs",
    multiple=True,
    metavar="KEY=VALUE",
    help="Option of the partition. Can be repeated.",
)
@click.option(
    "-d",
    "--data-option",
    "data_pairs",
    multiple=True,
    metavar="KEY=VALUE",
    help="Option of the data set, such as -d classes=0,1,2. Can be repeated.",
)
@click.option("--num-train", default=0, help="Draw this many training samples first. 0 uses all.")
@click.option("--num-test", default=0, help="Draw this many test samples first. 0 uses all.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Random seed.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the heat map of all clients as PNG (needs matplotlib).",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with all counts.")
def show(
    data: str,
    partition: str,
    clients: int,
    pairs: tuple[str, ...],
    data_pairs: tuple[str, ...],
    num_train: int,
    num_test: int,
    seed: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Draw a partition and show which client has which classes.

    \b
    Example:
      edgefl partitions show --partition p-majority -o p=0.8 --out heat.png
    """
    options = parse_options(f"[partition] {partition}", find_partition(partition).defaults, pairs)
    data_options = parse_options(f"[data] {data}", list_dataset_options(find_dataset(data)), data_pairs)
    with Progress() as progress:
        progress.update_live(f"reading {data} and partitioning it")
        dataset = load_data(
            DataConfig(name=data, num_train=num_train, num_test=num_test, options=data_options),
            seed,
            scale=False,
        )
        client_partitions = make_client_partitions(
            dataset, PartitionConfig(name=partition, num_clients=clients, options=options), seed
        )
    train, test = (count_classes(dataset, client_partitions, part) for part in ("train", "test"))
    turns = count_turns(client_partitions)
    clusters = [client_partition.truth for client_partition in client_partitions.values()]
    title = f"{data}, {partition}({_format_options(options)}), {clients} clients, seed {seed}"
    if out and not dataset.has_classes:
        raise ConfigError(f"--out draws the classes of each client, but {data} has no classes; leave it out")
    if out:
        plot_heatmap(out, train, title)
    figures = summarize_partition(train, test, dataset)
    if as_json:
        counts: dict[str, Any] = {
            "clients": list(client_partitions),
            "train": train.tolist(),
            "test": test.tolist(),
            "clusters": clusters,
        }
        click.echo(json.dumps({"title": title, "note": dataset.note, "summary": figures, **counts}))
        return
    click.echo(title)
    for line in (f"note: {dataset.note}",) if dataset.note else ():
        click.echo(line)
    if dataset.has_classes:
        for line in render_heatmap(train, list(client_partitions), clusters, "class"):
            click.echo(line)
    for line in (
        [] if turns is None else render_heatmap(turns, list(client_partitions), clusters, "steps turned")
    ):
        click.echo(line)
    sizes = " and ".join(
        f"{_format_range(figures[f'{part}_samples'])} {kind}"
        for part, kind in (("train", "training"), ("test", "test"))
    )
    click.echo(
        f"{clients} clients, each with (least/median/most) {sizes} samples"
        + (f" of {_format_range(figures['classes'])} classes" if dataset.has_classes else "")
    )
    click.echo(
        "used: {} of {} training samples, {} of {} test samples".format(
            *figures["train_used"], *figures["test_used"]
        )
    )


def _format_range(values: list[float]) -> str:
    return "/".join(f"{value:g}" for value in values)


def _format_options(options: dict[str, Any]) -> str:
    def format_value(key: str, item: Any) -> str:
        return (
            ",".join(map(str, item)) or ("none" if key == "resize" else "all")
            if isinstance(item, tuple)
            else str(item).lower()
            if isinstance(item, bool)
            else str(item)
        )

    return ", ".join(f"{key}={format_value(key, item)}" for key, item in options.items()) or "none"
