"""The `edgefl` command. Packages add commands through the entry-point group `edgefl.commands`; only the one asked for is imported."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import entry_points

import click

from edgefl import __version__
from edgefl.config import nearest
from edgefl.errors import ConfigError, EdgeflError

GROUP = "edgefl.commands"
CORE = {
    "algorithms": "edgefl.algorithms.commands:algorithms",
    "audit": "edgefl.audit.commands:audit",
    "bench": "edgefl.bench.commands:bench",
    "compare": "edgefl.runs.commands:compare",
    "datasets": "edgefl.data.commands:datasets",
    "demo": "edgefl.demo:demo",
    "doctor": "edgefl.doctor.commands:doctor",
    "models": "edgefl.models.commands:models",
    "monitor": "edgefl.monitor.commands:monitor",
    "partitions": "edgefl.data.commands:partitions",
    "plan": "edgefl.plan.commands:plan",
    "privacy": "edgefl.privacy.commands:privacy",
    "reproduce": "edgefl.reproduce.commands:reproduce",
    "simulate": "edgefl.runs.commands:simulate",
    "watch": "edgefl.monitor.commands:watch",
}
EXTRAS = {
    "tensorflow": "aggregator", "keras": "aggregator", "scipy": "aggregator", "sklearn": "aggregator", "amqtt": "broker",
    "tflite_micro": "export", "matplotlib": "plots", "ray": "ray", "PIL": "images", "dp_accounting": "dp",
    "tensorboardX": "tensorboard", "mlflow": "mlflow", "prometheus_client": "prometheus",
    "textual": "monitor", "rich": "monitor",
}  # fmt: skip
START = """edgefl federates small networks over boards; each board ends with its own int8 model.

  edgefl demo                                                      a whole federation on this machine
  edgefl simulate federation.toml                                  many clients in one process or N
  edgefl broker start                                              an MQTT broker
  edgefl aggregator start --config federation.toml                 lead the rounds
  edgefl device start --broker mqtt://HOST:1883 --id pi-1 --data shard.npz --state DIR
  edgefl export --state DIR -o model/                              the board's model again

All commands: edgefl --help. One command: edgefl COMMAND --help."""


def sources() -> dict[str, str]:
    """Return where each command lives, `module:attribute` by name; an entry point cannot replace a command of the core."""
    return {point.name: point.value for point in entry_points(group=GROUP)} | CORE


class Commands(click.Group):
    """A group that imports a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, sorted."""
        return sorted(sources())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command; ConfigError for a name that no package registers."""
        known = sources()
        if cmd_name not in known:
            raise ConfigError(f"no command {cmd_name!r}; {nearest(cmd_name, sorted(known))}")
        module, _, attribute = known[cmd_name].partition(":")
        command = getattr(import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise ConfigError(f"{known[cmd_name]} is a {type(command).__name__}, expected a click command; fix the package it is from")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one line a command; one that cannot be imported says what it lacks and hides no other."""
        rows = []
        for name in self.list_commands(ctx):
            try:
                command = self.get_command(ctx, name)
                rows.append((name, command.get_short_help_str(100) if command else ""))
            except (ImportError, AttributeError, EdgeflError) as error:
                rows.append((name, f"(not usable here: {error})"))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(cls=Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="edgefl")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Federate small networks over boards; each board ends with its own int8 model.

    Example: edgefl demo --clients 4 --out demo-out
    """
    if ctx.invoked_subcommand is None:
        click.echo(START)


def lacking(error: ModuleNotFoundError) -> str:
    """Return what to install for a module that is not there."""
    top = (error.name or "").partition(".")[0]
    if top in EXTRAS:
        return f"this command needs {top}, which this environment lacks; install the extra: pip install -e '.[{EXTRAS[top]}]'"
    return f"{error}; install edgefl again, or the package that registers this command"


def run(args: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; an error on purpose becomes one message on stderr."""
    try:
        result = cli.main(list(args) if args is not None else None, prog_name="edgefl", standalone_mode=False)
        return result if isinstance(result, int) and not isinstance(result, bool) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except (EdgeflError, ModuleNotFoundError, OSError) as error:
        if os.environ.get("EDGEFL_DEBUG"):
            raise
        text = lacking(error) if isinstance(error, ModuleNotFoundError) else str(error)
        click.echo(f"edgefl: {text}", err=True)
        return 1


def main() -> None:
    """Console entry point."""
    sys.exit(run())
