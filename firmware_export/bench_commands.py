"""`python -m firmware_export bench-int8`: what int8 costs the clients of federations, both routes in
one run.
"""

import json
from pathlib import Path
from typing import Any

import click

from edgefl.system.files import write_atomic
from edgefl.system.progress import Telling
from firmware_export.bench_int8 import KINDS, MODELS, run_int8_bench


@click.command(
    name="bench-int8",
    epilog="Example: python -m firmware_export bench-int8 --clients 6 --rounds 4 --out runs/int8",
)
@click.option(
    "--data",
    "data",
    multiple=True,
    type=click.Choice(list(MODELS)),
    help="Only on this (may be given again).",
)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(list(KINDS)),
    help="Only mixtures of this kind (may be given again).",
)
@click.option("--clients", type=click.IntRange(2), default=6, show_default=True, help="Of each federation.")
@click.option("--rounds", type=click.IntRange(1), default=4, show_default=True)
@click.option(
    "--weights",
    type=click.Choice(["8", "4", "3"]),
    default="8",
    show_default=True,
    help="Bits of dense weights, device route.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Keeps the mixtures, and int8.json.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def bench_int8(
    data: tuple[str, ...],
    kinds: tuple[str, ...],
    clients: int,
    rounds: int,
    weights: str,
    out: Path,
    as_json: bool,
) -> None:
    """Accuracy of every client's mixture in float and in int8: by the device route, and by TensorFlow's
    converter.

    A run that was interrupted goes on: a federation that is in --out is not played again.
    """
    with Telling() as tell:
        result = run_int8_bench(
            kinds or KINDS, data or tuple(MODELS), clients, rounds, int(weights), out, tell
        )
    text = json.dumps(result, indent=1)
    write_atomic(out / "int8.json", text.encode())
    click.echo(text if as_json else render(result))


def render(result: dict[str, Any]) -> str:
    """Return the table: losses in points, mean and worst client of each federation."""
    lines = [f"{result['machine']}; {', '.join(f'{k} {v}' for k, v in result['versions'].items())}"]
    lines.append(
        f"{'data':14} {'kind':8} {'float':>6} {'device: mean':>13} {'worst':>6} {'converter: mean':>16} "
        f"{'worst':>6} {'as float':>9}"
    )
    for row in result["federations"]:
        lines.append(
            f"{row['data']:14} {row['kind']:8} {row['float']:6.2f} {row['device_mean']:13.2f} "
            f"{row['device_worst']:6.2f} {row['converter_mean']:16.2f} {row['converter_worst']:6.2f} "
            f"{row['agreement']:9.4f}"
        )
        if row["mixing"]:
            lines.append(
                "  as float, mixing "
                + ", ".join(f"{formula} {share:.4f}" for formula, share in row["mixing"].items())
            )
    return "\n".join(lines)
