"""`edgefl data`: inspects samples before training, and partitions a data set into sample files."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import ConfigError
from edgefl.base.system.files import SECRET_MODE, to_json_value, write_state
from edgefl.base.system.progress import Progress
from edgefl.cli.completion import complete_names, list_dataset_names, list_partition_names
from edgefl.data.inspection.records import ERROR, Inspection
from edgefl.data.sources.options import add_form_options

SAMPLES_REMEDY = "free some space, or give another path"


@click.group(short_help="Inspect samples, or partition a data set.")
def data() -> None:
    """Inspect the samples of devices, or partition a data set into sample files.

    \b
    Example:
      edgefl data split digits --clients 2 -o .
      edgefl data show pi-1.npz pi-2.npz
    """


@data.command(short_help="Show class balance, ranges and probable mistakes.")
@click.argument("sources", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write one HTML page that needs no other file: samples, ranges, class balance.",
)
@click.option("--window", type=click.IntRange(0), default=0, help="CSV: rows per window.")
@click.option(
    "--step",
    type=click.IntRange(0),
    default=0,
    help="CSV: rows from one window to the next  [default: --window]",
)
@click.option("--label", default="", help="CSV: name of the label column. Leave it out without labels.")
@click.option(
    "--target",
    "--target-column",
    "target_columns",
    default="",
    help="CSV: columns of numbers to predict, A,B.",
)
@click.option("--channels", default="", help="CSV: columns to use, A,B,C  [default: all numeric columns]")
@add_form_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def show(
    ctx: click.Context,
    sources: tuple[str, ...],
    html: Path | None,
    window: int,
    step: int,
    label: str,
    target_columns: str,
    channels: str,
    skip_empty: bool,
    resize: str,
    scale: float,
    as_json: bool,
) -> None:
    """Show class balance, ranges, duplicates, outliers and probable mistakes.

    FILE is a value of `edgefl device start --data`: an .npz file, a folder with one subfolder per class, a
    CSV file, or module:function. Give one FILE per device. The exit code is 1 if there is an error.

    \b
    Example:
      edgefl data show pi-1.npz pi-2.npz --html data.html
    """
    from edgefl.data.inspection.inspect import inspect_samples, name_devices
    from edgefl.data.sources import make_source, read_source
    from edgefl.data.sources.options import parse_picture_size, split_column_names
    from edgefl.watch.report.samples_text import format_inspection

    device_sources = [
        make_source(
            source_name,
            window=window,
            step=step,
            label=label,
            channels=split_column_names(channels),
            target=split_column_names(target_columns),
            scale=scale,
            skip_empty=skip_empty,
            resize=parse_picture_size(resize),
        )
        for source_name in sources
    ]
    devices: dict[str, Mapping[str, NDArray[Any]]] = {}
    with Progress() as progress:
        for name, source in zip(name_devices(sources), device_sources, strict=True):
            progress.update_live(f"reading {source.data}")
            devices[name] = read_source(source)
            if scale:
                devices[name] = {**devices[name], "scale": np.asarray(scale)}
        progress.update_live("inspecting the samples")
        inspection = inspect_samples(devices)
    if html is not None:
        from edgefl.watch.report.samples_page import render_samples_page

        write_state(html, render_samples_page(inspection).encode(), remedy=SAMPLES_REMEDY)
    if as_json:
        click.echo(json.dumps(to_json_value(strip_samples(inspection)), allow_nan=False))
    else:
        click.echo(format_inspection(inspection))
    if html is not None:
        click.echo(f"page     {html}", err=as_json)
    if any(finding.severity == ERROR for finding in inspection.findings):
        ctx.exit(1)


def strip_samples(inspection: Inspection) -> dict[str, Any]:
    """Return the inspection as a JSON tree without the example samples."""
    fields = asdict(inspection)
    for device in fields["devices"]:
        device["class_counts"] = {str(label): count for label, count in device["class_counts"]}
        del device["examples"]
    return fields


@data.command("split")
@click.argument("name", metavar="DATASET", shell_complete=complete_names(list_dataset_names, or_file=True))
@click.option("--clients", type=click.IntRange(1), default=2, show_default=True, help="Number of devices.")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("."),
    show_default=True,
    help="Folder for the files pi-1.npz, pi-2.npz, ...",
)
@click.option(
    "--partition",
    shell_complete=complete_names(list_partition_names),
    default="dirichlet",
    show_default=True,
    help="A name of `edgefl partitions`.",
)
@click.option(
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
@click.option(
    "--samples",
    type=click.IntRange(0),
    default=0,
    help="Average number of training samples per device. 0 uses the whole data set.",
)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Random seed.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def split_into_files(
    name: str,
    clients: int,
    out: Path,
    partition: str,
    pairs: tuple[str, ...],
    data_pairs: tuple[str, ...],
    samples: int,
    seed: int,
    as_json: bool,
) -> None:
    """Partition a data set into sample files, one per device.

    DATASET is a name of `edgefl datasets`, or npz:PATH. Each file contains training and test samples.
    With --partition group, a file has the name of its client if the data set names its clients.
    Existing files are never overwritten. Samples without classes need --partition iid, quantity or group.

    \b
    Example:
      edgefl data split digits --clients 2 -o .
    """
    from edgefl.base.config import DataConfig, PartitionConfig
    from edgefl.base.options import parse_options
    from edgefl.data import load_data, make_shards
    from edgefl.data.dataset import subsample
    from edgefl.data.datasets.catalog import find_dataset, list_dataset_options
    from edgefl.data.npz import encode_shard
    from edgefl.data.partitions.registry import find_partition

    options = parse_options(f"[partition] {partition}", find_partition(partition).defaults, pairs)
    data_options = parse_options(f"[data] {name}", list_dataset_options(find_dataset(name)), data_pairs)
    client_ids = tuple(f"pi-{number}" for number in range(1, clients + 1))
    if partition != "group":
        _refuse_existing(out, client_ids)
    with Progress() as progress:
        progress.update_live(f"reading {name}")
        dataset = load_data(DataConfig(name=name, options=data_options), seed, scale=False)
        if samples:
            num_samples = samples * clients
            tests = round(num_samples * len(dataset.y_test) / len(dataset.y_train))
            dataset = subsample(dataset, num_samples, max(clients, tests), seed)
        shards = make_shards(
            dataset, PartitionConfig(name=partition, num_clients=clients, options=options), seed
        )
        if partition == "group" and set(shards) <= set(dataset.group_names):
            client_ids = tuple(shards)
        _refuse_existing(out, client_ids)
        paths = [out / f"{client_id}.npz" for client_id in client_ids]
        progress.update_live(f"writing {clients} files")
        for path, shard in zip(paths, shards.values(), strict=True):
            content = encode_shard(
                shard,
                with_labels=shard.has_labels,
                classes=dataset.class_names,
                channels=dataset.channels,
            )
            write_state(path, content, SECRET_MODE, SAMPLES_REMEDY)
    rows = [
        {
            "path": str(path),
            "train": len(shard.y_train),
            "test": len(shard.y_test),
            "classes": len({*shard.y_train.tolist(), *shard.y_test.tolist()}) if dataset.has_classes else 0,
        }
        for path, shard in zip(paths, shards.values(), strict=True)
    ]
    if as_json:
        click.echo(json.dumps({"dataset": name, "partition": partition, "seed": seed, "files": rows}))
        return
    for row in rows:
        classes = f" of {row['classes']} classes" if dataset.has_classes else ""
        click.echo("{path}: {train:,} training and {test:,} test samples".format(**row) + classes)


def _refuse_existing(out: Path, client_ids: Iterable[str]) -> None:
    """Raise ConfigError if the file of a client exists already."""
    paths = (out / f"{client_id}.npz" for client_id in client_ids)
    if present := next((path for path in paths if path.exists()), None):
        raise ConfigError(f"{present} already exists; give another -o, or remove it")


@data.command(
    "deal", hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def refuse_old_name() -> None:
    """Name the new command. In version 0.1 `edgefl data split` was called `deal`."""
    raise click.UsageError("`edgefl data deal` is now `edgefl data split`; its options are the same")
