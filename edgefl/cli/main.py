"""The `edgefl` command.

Packages add commands through the entry-point group `edgefl.commands`. Only the command that runs is imported.
"""

import errno
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import entry_points

import click
from click.shell_completion import CompletionItem

from edgefl import __version__
from edgefl.base.errors import ConfigError, EdgeflError
from edgefl.base.options import suggest_nearest
from edgefl.base.system.format import escape_unprintable
from edgefl.base.system.logs import format_journal_line, is_journal

ENTRY_POINT_GROUP = "edgefl.commands"
CORE_COMMANDS = {
    "algorithms": "edgefl.cli.commands.algorithms:algorithms",
    "audit": "edgefl.cli.commands.audit:audit",
    "bench": "edgefl.cli.commands.bench:bench",
    "completion": "edgefl.cli.completion:completion",
    "compare": "edgefl.cli.commands.runs:compare",
    "data": "edgefl.cli.commands.samples:data",
    "dashboard": "edgefl.cli.commands.dashboard:dashboard",
    "datasets": "edgefl.cli.commands.datasets:datasets",
    "demo": "edgefl.cli.commands.demo:demo",
    "doctor": "edgefl.cli.commands.doctor:doctor",
    "init": "edgefl.cli.commands.init:init",
    "models": "edgefl.cli.commands.models:models",
    "monitor": "edgefl.cli.commands.monitor:monitor",
    "partitions": "edgefl.cli.commands.datasets:partitions",
    "personalize": "edgefl.cli.commands.personalize:personalize",
    "plan": "edgefl.cli.commands.plan:plan",
    "privacy": "edgefl.cli.commands.privacy:privacy",
    "report": "edgefl.cli.commands.report:report",
    "reproduce": "edgefl.cli.commands.reproduce:reproduce",
    "simulate": "edgefl.cli.commands.runs:simulate",
    "tune": "edgefl.cli.commands.tune:tune",
    "watch": "edgefl.cli.commands.monitor:watch",
}
COMMAND_SUMMARIES = {
    "mqtt_broker.commands:aggregator": "Run and manage the aggregator.",
    "edgefl.cli.commands.algorithms:algorithms": "List the algorithms and their options.",
    "edgefl.cli.commands.audit:audit": "Measure what updates reveal about a client.",
    "edgefl.cli.commands.bench:bench": "Measure training steps and update codecs on this machine.",
    "mqtt_broker.commands:broker": "Run and configure an MQTT broker.",
    "edgefl.cli.commands.runs:compare": "Compare runs.",
    "edgefl.cli.completion:completion": "Print a completion script for a shell.",
    "edgefl.cli.commands.dashboard:dashboard": "Show a federation live in a browser.",
    "edgefl.cli.commands.samples:data": "Inspect samples, or partition a data set.",
    "edgefl.cli.commands.datasets:datasets": "List the data sets.",
    "edgefl.cli.commands.demo:demo": "Run a whole federation on this machine.",
    "devices.commands:device": "Run and manage the service of this board.",
    "edgefl.cli.commands.doctor:doctor": "Find problems and their remedies.",
    "firmware_export.commands:export": (
        "Quantize the model that a device ships to int8, with its own samples, on the device itself."
    ),
    "firmware_export.commands:infer": (
        "Run a .tflite on a shard and print its accuracy, its latency and the runtime."
    ),
    "edgefl.cli.commands.init:init": "Answer up to four questions, get one federation.toml.",
    "edgefl.cli.commands.models:models": "List the models and their options.",
    "edgefl.cli.commands.monitor:monitor": "Show a federation live in the terminal.",
    "edgefl.cli.commands.datasets:partitions": "List and show partitions of a data set over clients.",
    "edgefl.cli.commands.personalize:personalize": (
        "Make a personal model for a client that took part in no round."
    ),
    "edgefl.cli.commands.plan:plan": "Compile a Keras model, or inspect a compiled plan.",
    "edgefl.cli.commands.privacy:privacy": "Plan differential privacy for a federation.",
    "edgefl.cli.commands.report:report": "Write a run as one HTML page, or draw a paper's figure.",
    "edgefl.cli.commands.reproduce:reproduce": "Run a paper's experiment and compare the figures.",
    "edgefl.cli.commands.runs:simulate": "Simulate a federation of many clients.",
    "edgefl.cli.commands.tune:tune": "Search for the best options of Adaptive Expert Models.",
    "edgefl.cli.commands.monitor:watch": "Print the messages of a federation as lines.",
}
"""The line of each command of this distribution in `edgefl --help`, which then imports no command.

The help texts of the commands decide. A test compares them with this list.
"""
COMMAND_GROUPS = {
    "Start": ("init", "demo", "broker", "aggregator", "device", "doctor", "completion"),
    "Watch": ("monitor", "dashboard", "watch", "report"),
    "Models": ("export", "infer", "personalize", "models", "plan"),
    "Data": ("data", "datasets", "partitions"),
    "Research": ("simulate", "compare", "algorithms", "privacy", "audit", "bench", "reproduce", "tune"),
}
"""The commands of this distribution by the heading in `edgefl --help`, in the order of their use."""
OTHER_COMMANDS = "More"
"""The heading of the commands of other packages."""
LAB = "edgefl.lab"
"""The room that is not installed with the package."""
MODULE_EXTRAS = {
    "tensorflow": "aggregator",
    "keras": "aggregator",
    "scipy": "aggregator",
    "sklearn": "aggregator",
    "amqtt": "broker",
    "tflite_micro": "export",
    "jinja2": "plots",
    "matplotlib": "plots",
    "pandas": "plots",
    "ray": "ray",
    "PIL": "images",
    "dp_accounting": "dp",
    "tensorboardX": "tensorboard",
    "mlflow": "mlflow",
    "prometheus_client": "prometheus",
    "textual": "monitor",
    "rich": "monitor",
}
OS_ERROR_REMEDIES = {
    errno.ENOSPC: "free some space, or write to another disk",
    errno.EDQUOT: "free some of your space, or write to another disk",
    errno.ENOENT: "check the path",
    errno.EACCES: "give a path that this account may use, or change its permissions",
    errno.EPERM: "give a path that this account may use, or change its permissions",
    errno.EROFS: "write to another disk",
    errno.EISDIR: "give a file",
    errno.ENOTDIR: "give a path whose parents are directories",
    errno.EEXIST: "give another path, or remove it",
    errno.EMFILE: "allow more open files: ulimit -n",
    errno.ECONNREFUSED: "check that the server runs and that the address is right",
}
WELCOME_TEXT = """Train small networks on devices by federated learning.
Each device ends with its own int8 model.

  edgefl demo                                     a federation on this machine
  edgefl init                                     up to four questions, one file
  edgefl aggregator start                         start the aggregator
  edgefl device start --id pi-1 --data pi-1.npz   take part as a device
  edgefl monitor                                  watch the federation

All commands: edgefl --help. One command: edgefl COMMAND --help."""


def find_commands() -> dict[str, str]:
    """Return the commands as `module:attribute` by name.

    An entry point cannot replace a command of the core.
    """
    return {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)} | CORE_COMMANDS


class LazyCommandGroup(click.Group):
    """A command group that imports a command only when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, sorted."""
        return sorted(find_commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name.

        Args:
            ctx: the context of the group.
            cmd_name: the name that the user typed.

        Returns:
            The command. None while a shell completes an unknown name, or a command that cannot be imported.

        Raises:
            ConfigError: no package registers this name, or the registered object is not a click command.
        """
        commands = find_commands()
        if cmd_name not in commands and ctx.resilient_parsing:  # a shell completes an unfinished line
            return None
        if cmd_name not in commands:
            raise ConfigError(f"no command {cmd_name!r}; {suggest_nearest(cmd_name, sorted(commands))}")
        module, _, attribute = commands[cmd_name].partition(":")
        try:
            command = getattr(import_module(module), attribute)
        except ModuleNotFoundError:
            if ctx.resilient_parsing:  # an error would be printed into the line that a shell completes
                return None
            raise
        if not isinstance(command, click.Command):
            raise ConfigError(
                f"{commands[cmd_name]} is a {type(command).__name__}, expected a click command; fix the "
                "package that registers it"
            )
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands that begin with `incomplete`.

        The items have no help texts, because these would need an import of every command.
        """
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [CompletionItem(name) for name in self.list_commands(ctx) if name.startswith(incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one line per command, by group.

        Only commands of other packages are imported. One that cannot be imported gets a line with the reason.
        """
        commands = find_commands()
        grouped = {name for names in COMMAND_GROUPS.values() for name in names}
        others = tuple(sorted(commands.keys() - grouped))
        for title, names in {**COMMAND_GROUPS, OTHER_COMMANDS: others}.items():
            rows = [(name, self._summarize(ctx, name, commands[name])) for name in names if name in commands]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def _summarize(self, ctx: click.Context, name: str, path: str) -> str:
        if path in COMMAND_SUMMARIES:
            return COMMAND_SUMMARIES[path]
        try:
            command = self.get_command(ctx, name)
            return command.get_short_help_str(100) if command else ""
        except (ImportError, AttributeError, EdgeflError) as error:
            return f"(not available: {error})"


@click.group(
    cls=LazyCommandGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="edgefl")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Train small networks on devices by federated learning. Each device ends with its own int8 model.

    Example: edgefl demo --clients 4 --out demo-out
    """
    if ctx.invoked_subcommand is None:
        click.echo(WELCOME_TEXT)


def explain_missing_module(error: ModuleNotFoundError) -> str:
    """Return the error message for a missing module: its name and how to get it."""
    if (error.name or "").startswith(LAB):
        return (
            "this is for research, and the installed package leaves it out; clone the repository of edgefl, "
            "run `make install` there, and repeat the command with .venv/bin/edgefl"
        )
    top = (error.name or "").partition(".")[0]
    if top in MODULE_EXTRAS:
        return (
            f"this command needs {top}, which this environment lacks; install the extra: pip install -e "
            f"'.[{MODULE_EXTRAS[top]}]'"
        )
    return f"{error}; install edgefl again, or the package that registers this command"


def explain_os_error(error: OSError) -> str:
    """Return the error message for an OSError: the reason, the file and, where known, a remedy."""
    reason = error.strerror or str(error)
    filename = f": {error.filename!r}" if error.filename else ""
    return reason + filename + (f"; {remedy}" if (remedy := OS_ERROR_REMEDIES.get(error.errno or 0)) else "")


def run_command(args: Sequence[str] | None = None) -> int:
    """Run one command.

    An error of edgefl or of the operating system becomes one line on stderr. With EDGEFL_DEBUG set it is
    raised instead.

    Args:
        args: the arguments of the command line, without the program name. None: those of this process.

    Returns:
        The exit code of the process: 1 after an error, 130 after Ctrl-C.
    """
    try:
        # NO_COLOR follows no-color.org. None leaves the choice to click, which colours only on a terminal.
        no_color = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        arguments = None if args is None else list(args)
        result = cli.main(
            arguments, prog_name="edgefl", standalone_mode=False, color=False if no_color else None
        )
        return result if isinstance(result, int) and not isinstance(result, bool) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except (EdgeflError, ModuleNotFoundError, OSError) as error:
        if os.environ.get("EDGEFL_DEBUG"):
            raise
        text = (
            explain_missing_module(error)
            if isinstance(error, ModuleNotFoundError)
            else explain_os_error(error)
            if isinstance(error, OSError)
            else str(error)
        )
        line = "edgefl: " + "\n".join(map(escape_unprintable, text.split("\n")))
        click.echo(format_journal_line(logging.ERROR, line) if is_journal() else line, err=True)
        return 1


def main() -> None:
    """Run the command line of this process and exit with its code."""
    sys.exit(run_command())
