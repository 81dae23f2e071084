"""`edgefl plan build` and `edgefl plan inspect`."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from safetensors.numpy import save as save_tensors

from edgefl.base.config import FederationConfig, ModelConfig, load_config, parse_shape
from edgefl.base.errors import ConfigError
from edgefl.base.system.files import write_atomic
from edgefl.base.system.progress import Progress
from edgefl.base.system.stderr import suppress_stderr
from edgefl.cli.completion import complete_names, list_algorithm_names, list_model_names
from edgefl.program.plan.int8 import describe_missing_int8
from edgefl.program.plan.spec import INITIAL_FILE, load_plan, save_plan
from edgefl.protocol.server.config_check import check_config


@click.group(short_help="Compile a Keras model, or inspect a compiled plan.")
def plan() -> None:
    """Compile a Keras model for devices, and inspect a compiled plan.

    Example: edgefl plan build --model lenet5 --algorithm pfl-mfe -o plan/
    """


@plan.command(
    epilog="Example: edgefl plan build --model lenet5 --algorithm pfl-mfe --input-shape 28,28,1 "
    "--num-classes 10 -o plan/"
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="Read model, algorithm and seed from this federation.toml.",
)
@click.option(
    "--model",
    shell_complete=complete_names(list_model_names, or_file=True),
    help="A name of `edgefl models`, a .keras file or module:function.  [default: lenet5]",
)
@click.option(
    "--algorithm",
    shell_complete=complete_names(list_algorithm_names),
    help="Algorithm that trains the plan.  [default: fedavg]",
)
@click.option("--input-shape", help="Shape of one sample.  [default: 28,28,1]")
@click.option("--num-classes", type=int, help="Number of classes.  [default: 10]")
@click.option("--seed", type=int, help="Random seed of the initial weights.  [default: 1]")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="Output directory.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def build(
    config: Path | None,
    model: str | None,
    algorithm: str | None,
    input_shape: str | None,
    num_classes: int | None,
    seed: int | None,
    output: Path,
    as_json: bool,
) -> None:
    """Compile a plan, and write it with the initial weights of the model. Needs TensorFlow.

    Supported layers:

    \b
    - Dense, Conv1D, Conv2D, DepthwiseConv1D, DepthwiseConv2D,
      SeparableConv1D, SeparableConv2D
    - MaxPooling, AveragePooling and global poolings (1D, 2D)
    - ReLU, LeakyReLU, PReLU, ELU, Softmax and other activations, Dropout
    - BatchNormalization, GroupNormalization, LayerNormalization,
      RMSNormalization, UnitNormalization, Normalization
    - Add, Concatenate, Flatten, Reshape, Permute, RepeatVector, Rescaling
    - ZeroPadding, Cropping, UpSampling (nearest)
    - LSTM, GRU, SimpleRNN and Bidirectional of at most 32 steps

    Grouped and transposed convolutions and exact GELU are not supported. The error names the layer.
    LeakyReLU, ELU, PReLU, global max pooling and UpSampling train, but have no int8 form: a warning says so.
    """
    model_options = {
        "name": model,
        "input_shape": parse_shape(input_shape) if input_shape is not None else None,
        "num_classes": num_classes,
    }
    settings = load_config(config) if config else FederationConfig()
    changed: dict[str, Any] = {
        key: value for key, value in (("algorithm", algorithm), ("seed", seed)) if value is not None
    }
    if config and (changed or any(value is not None for value in model_options.values())):
        raise ConfigError(
            f"{config} already sets model, algorithm and seed; give either --config or the single options"
        )
    chosen: Any = {key: value for key, value in model_options.items() if value is not None}
    if chosen:
        changed["model"] = ModelConfig(**chosen)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    resolved = replace(settings, **changed)
    for warning in check_config(resolved):
        click.echo(f"warning: {warning}", err=True)
    with Progress() as progress, suppress_stderr():
        progress.update(
            f"compiling {resolved.model.name} for {resolved.algorithm}; TensorFlow takes some seconds"
        )
        from edgefl.learning.algorithms.plans import build_plan

        built, weights = build_plan(resolved)
    if warning := describe_missing_int8(built.template):
        click.echo(f"warning: {warning}", err=True)
    save_plan(built, output)
    write_atomic(output / INITIAL_FILE, bytes(save_tensors(dict(weights))))
    _report(output, as_json)


@plan.command(epilog="Example: edgefl plan inspect plan/ --json")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def inspect(directory: Path, as_json: bool) -> None:
    """Print the signatures, shapes, ops and sizes of a plan. Does not need TensorFlow."""
    _report(directory, as_json)


def _report(directory: Path, as_json: bool) -> None:
    from edgefl.program.plan.inspect import inspect_plan, render_plan

    report = inspect_plan(load_plan(directory))
    click.echo(json.dumps(report, indent=1) if as_json else render_plan(report))
