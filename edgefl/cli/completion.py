"""`edgefl completion`: prints the script that makes a shell complete commands, options and names."""

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

SHELLS = ("bash", "zsh", "fish")
COMPLETION_VARIABLE = "_EDGEFL_COMPLETE"


def complete_names(
    names: Callable[[], Iterable[str]], *, or_file: bool = False
) -> Callable[..., list[CompletionItem]]:
    """Return a `shell_complete` callback for an option whose value is a name.

    Args:
        names: returns the names. It is called on each completion, so that a command starts without it.
        or_file: complete file names when no name matches.
    """

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        with contextlib.suppress(Exception):  # an error would garble the half-typed line
            items = [CompletionItem(name) for name in names() if name.startswith(incomplete)]
            return items or ([CompletionItem(incomplete, type="file")] if or_file else [])
        return []

    return complete


def list_algorithm_names() -> Iterable[str]:
    """Return the names of `edgefl algorithms`."""
    from edgefl.learning.algorithms.registry import REGISTRY

    return REGISTRY


def list_dataset_names() -> Iterable[str]:
    """Return the names of `edgefl datasets`, with `npz:` for files of the user."""
    from edgefl.data.datasets.catalog import DATASETS, NPZ_PREFIX

    return [NPZ_PREFIX if name.startswith(NPZ_PREFIX) else name for name in DATASETS]


def list_model_names() -> Iterable[str]:
    """Return the names of `edgefl models`."""
    from edgefl.program.models.zoo.catalog import list_models

    return list_models()


def list_partition_names() -> Iterable[str]:
    """Return the names of `edgefl partitions`."""
    from edgefl.data.partitions.registry import PARTITIONS

    return PARTITIONS


@click.command(short_help="Print a completion script for a shell.")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a completion script for a shell. It completes commands, options and the names of algorithms, data
    sets, models and partitions.

    \b
    Example:
      edgefl completion bash > ~/.local/share/bash-completion/completions/edgefl
      edgefl completion fish > ~/.config/fish/completions/edgefl.fish
      edgefl completion zsh > ~/.edgefl.zsh      # .zshrc: source ~/.edgefl.zsh
    """
    script: Any = get_completion_class(shell)
    click.echo(script(ctx.find_root().command, {}, "edgefl", COMPLETION_VARIABLE).source())
