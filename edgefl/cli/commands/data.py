"""`edgefl datasets`, `edgefl partitions`: what there is, where it is from, and who gets what."""

import json
from pathlib import Path
from typing import Any

import click

from edgefl.cli.completion import dataset_names, known, partition_names
from edgefl.config import DataConfig, PartitionConfig
from edgefl.data import PARTITIONS, list_datasets, load_data, make_allotments
from edgefl.data.datasets.catalog import dataset_options, source_entry
from edgefl.data.options import parse_options
from edgefl.data.partitions.heatmap import class_counts, heat_text, summary, turn_counts, write_png
from edgefl.data.partitions.registry import partition_entry
from edgefl.system.progress import Telling


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def datasets(as_json: bool) -> None:
    """List the data sets: what they are, licence, options, how to get them, and whether they are here.

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
        click.echo(f"{'':22}options: {_spelled(row['options'])}")


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@click.pass_context
def partitions(context: click.Context, as_json: bool) -> None:
    """List the partitions of a data set over clients: options with defaults, and source.

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
        click.echo(f"{row['name']:12} {row['source']}")
        click.echo(f"{'':12} options: {_spelled(row['options'])}")


@partitions.command()
@click.option(
    "--data",
    shell_complete=known(dataset_names, or_file=True),
    default="digits",
    show_default=True,
    help="A name of `edgefl datasets`, or npz:PATH.",
)
@click.option(
    "--partition",
    shell_complete=known(partition_names),
    default="dirichlet",
    show_default=True,
    help="A name of `edgefl partitions`.",
)
@click.option("--clients", default=10, show_default=True, help="How many clients share the data.")
@click.option(
    "-o",
    "--option",
    "pairs",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option of the partition (may be given again).",
)
@click.option(
    "-d",
    "--data-option",
    "data_pairs",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option of the data set, as -d classes=0,1,2.",
)
@click.option("--num-train", default=0, help="Draw so many training samples first; 0 takes all.")
@click.option("--num-test", default=0, help="Draw so many test samples first; 0 takes all.")
@click.option("--seed", default=1, show_default=True, help="Of the draws.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the map of all clients as PNG (needs matplotlib).",
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
    """Draw a partition and show who has which classes.

    \b
    Example:
      edgefl partitions show --partition p-majority -o p=0.8 --out heat.png
    """
    options = parse_options(f"[partition] {partition}", partition_entry(partition).defaults, pairs)
    data_options = parse_options(f"[data] {data}", dataset_options(source_entry(data)), data_pairs)
    with Telling() as tell:
        tell.at(f"reading {data}, sharing it out")
        dataset = load_data(DataConfig(data, num_train, num_test, data_options), seed, scale=False)
        allotments = make_allotments(dataset, PartitionConfig(partition, clients, options), seed)
    train, test = (class_counts(dataset, allotments, part) for part in ("train", "test"))
    turns = turn_counts(allotments)
    clusters = [own.truth for own in allotments.values()]
    title = f"{data}, {partition}({_spelled(options)}), {clients} clients, seed {seed}"
    if out:
        write_png(out, train, title)
    figures = summary(train, test, dataset)
    if as_json:
        counts: dict[str, Any] = {
            "clients": list(allotments),
            "train": train.tolist(),
            "test": test.tolist(),
            "clusters": clusters,
        }
        click.echo(json.dumps({"title": title, "note": dataset.note, "summary": figures, **counts}))
        return
    click.echo(title)
    for line in (f"note: {dataset.note}",) if dataset.note else ():
        click.echo(line)
    for line in heat_text(train, list(allotments), clusters, "class"):
        click.echo(line)
    for line in [] if turns is None else heat_text(turns, list(allotments), clusters, "steps turned"):
        click.echo(line)
    sizes = " and ".join(
        f"{_span(figures[f'{part}_samples'])} {word}"
        for part, word in (("train", "training"), ("test", "test"))
    )
    click.echo(
        f"{clients} clients, each with (least/median/most) {sizes} samples of {_span(figures['classes'])} "
        "classes"
    )
    click.echo(
        "used: {} of {} training samples, {} of {} test samples".format(
            *figures["train_used"], *figures["test_used"]
        )
    )


def _span(values: list[float]) -> str:
    return "/".join(f"{value:g}" for value in values)


def _spelled(options: dict[str, Any]) -> str:
    def value(item: Any) -> str:
        return (
            ",".join(map(str, item)) or "all"
            if isinstance(item, tuple)
            else str(item).lower()
            if isinstance(item, bool)
            else str(item)
        )

    return ", ".join(f"{key}={value(item)}" for key, item in options.items()) or "none"
