"""The command `edgefl device install`, which writes a systemd unit that runs `edgefl device start`."""

import getpass
import json
import math
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from edgefl.base.errors import ConfigError

# OOMPolicy: a new plan runs in a child process first. The device continues if the kernel kills the child for
# lack of memory.
# MemoryDenyWriteExecute is not set, because a runtime may compile its kernels. A forbidden call fails with
# EPERM, which a library may handle.
DEVICE_UNIT_TEMPLATE = """# {board}. Written by: edgefl device install
# The account {user} runs the device and owns its state. It reads its enrolment and its data, which only this account should be able to.
[Unit]
Description=edgefl device {client_id}
After=network-online.target time-sync.target
Wants=network-online.target

[Service]
User={user}
ExecStart={command}
{folder}
Restart=on-failure
RestartSec=10
TimeoutStopSec=30
OOMPolicy=continue
Nice=10
{memory}{state_directory}{devices}
NoNewPrivileges=true
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=true
ProtectKernelTunables=true
ProtectKernelModules=true
ProtectControlGroups=true
RestrictSUIDSGID=true
LockPersonality=true
UMask=0077
CapabilityBoundingSet=
RestrictNamespaces=true
RestrictRealtime=true
ProtectHostname=true
ProtectKernelLogs=true
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
ProtectClock=true

[Install]
WantedBy=multi-user.target
"""  # noqa: E501
STATES_DIRECTORY = Path("/var/lib")
SYSTEMD_DIRECTORY = Path("/etc/systemd/system")
INSTALL_OPTIONS = ("out", "user", "board", "as_json")


def quote_argument(argument: str) -> str:
    """Return an argument quoted for ExecStart=. systemd does not expand specifiers and variables in it.

    Raises:
        ConfigError: the argument contains a control character.
    """
    plain = _check_line(argument).replace("%", "%%").replace("$", "$$")
    if re.fullmatch(r"[\w@%+=:,./$-]+", plain, re.ASCII):
        return plain
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _check_line(text: str) -> str:
    if re.search(r"[\x00-\x1f]", text):
        raise ConfigError(
            f"the argument {text!r} has a control character, which a unit cannot contain; change it, or "
            "rename the file"
        )
    return text


def format_path_setting(key: str, path: str) -> str:
    """Return a line of a unit whose value is a path.

    Args:
        key: name of the setting.
        path: the path. Specifiers in it are not expanded.

    Raises:
        ConfigError: the path contains a control character.
    """
    escaped = _check_line(path).replace("%", "%%")
    return f"{key}={escaped}" if " " not in path else f'{key}="{escaped}"'


def render_device_unit(
    client_id: str, arguments: list[str], state: Path, user: str, board: str, memory_mb: int, folder: str = ""
) -> str:
    """Return the text of a systemd unit.

    Args:
        arguments: the command.
        state: absolute path of the state directory.
        user: the account that runs the service.
        board: name of the board.
        memory_mb: memory limit in MB of 2^20 bytes, 0 for no limit.
        folder: folder from which a data function of the owner is imported, or empty. Such a function may
            read a sensor, so the devices of the machine stay visible to it.
    """
    in_var_lib = state != STATES_DIRECTORY and state.is_relative_to(STATES_DIRECTORY)
    state_setting = (
        format_path_setting("StateDirectory", str(state.relative_to(STATES_DIRECTORY)))
        if in_var_lib
        else format_path_setting("ReadWritePaths", str(state))
    )
    return DEVICE_UNIT_TEMPLATE.format(
        board=board,
        client_id=client_id,
        user=user,
        command=" ".join(map(quote_argument, arguments)),
        folder=format_path_setting("WorkingDirectory", folder or "/"),
        memory=f"MemoryMax={memory_mb}M\n" if memory_mb else "",
        devices="" if folder else "\nPrivateDevices=true",
        state_directory=f"{state_setting}\nStateDirectoryMode=0700" if in_var_lib else state_setting,
    )


def check_account(user: str) -> str:
    """Return the name of an account if it can stand in a unit.

    Raises:
        ConfigError: the name has other characters than the names of accounts.
    """
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,255}", user):
        raise ConfigError(
            f"--user is {user!r}, expected the name of an account: a-z, A-Z, 0-9, _, . and -; create one "
            "with `useradd`"
        )
    return user


def list_start_arguments(context: click.Context, start: click.Command, data: str) -> list[str]:
    """Return the options of `edgefl device start` that the user passed, as command line arguments.

    Paths are absolute, because a service starts in /.

    Args:
        context: the context of `edgefl device install`.
        start: the command `edgefl device start`.
        data: value of --data with an absolute path.
    """
    arguments: list[str] = []
    for option in start.params:
        value = context.params.get(option.name or "")
        source = context.get_parameter_source(option.name or "")
        if (
            source is not ParameterSource.COMMANDLINE
            or not isinstance(option, click.Option)
            or option.name in INSTALL_OPTIONS
        ):
            continue
        if option.is_flag:
            arguments.append(
                option.opts[0] if value or not option.secondary_opts else option.secondary_opts[0]
            )
            continue
        values: tuple[Any, ...] = tuple(value or ()) if option.multiple else (value,)
        for item in values:
            arguments += [
                option.opts[0],
                data if option.name == "data" else str(item.resolve() if isinstance(item, Path) else item),
            ]
    return arguments


def make_install_command(start: click.Command) -> click.Command:
    """Return the command `install`, which has all options of `start`.

    Args:
        start: the command `edgefl device start`.
    """

    @click.pass_context
    def install(context: click.Context, /, **options: Any) -> None:
        """Write a hardened systemd unit that runs `edgefl device start`, and print how to enable it.

        The options are those of `edgefl device start`. Without -o the unit is printed. Nothing is enabled
        or started.

        Example: edgefl device install --enrol pi-7.enrol --data shard.npz --state /var/lib/edgefl -o .
        """
        from devices.boards import PROCESS_SHARE, detect_machine, find_board
        from devices.conditions import parse_window
        from edgefl.base.names import check_client_id
        from edgefl.base.system.files import write_atomic
        from edgefl.data.sources.options import parse_source_options
        from edgefl.protocol.security.enrolment import load_enrolment
        from edgefl.protocol.wire.url import parse_url

        enrolment = load_enrolment(options["enrol"]) if options["enrol"] else None
        client_id = enrolment.client_id if enrolment else options["client_id"]
        if not client_id:
            raise ConfigError(
                "no --id; pass a name such as pi-1, or --enrol with the file of `edgefl device enrol`"
            )
        check_client_id(client_id)
        if options["state"] is None:
            raise ConfigError(
                "no --state, expected a directory for this service alone; pass one, such as --state "
                f"{STATES_DIRECTORY / 'edgefl'}"
            )
        if options["broker"] and parse_url(options["broker"]).password:
            raise ConfigError(
                "--broker contains a password, which all accounts could read in the unit; enrol the board "
                "and pass --enrol"
            )
        if options["between"]:
            parse_window(options["between"])
        machine = detect_machine()
        state = options["state"].resolve()
        source = parse_source_options(options)
        board = find_board(options["board"]) if options["board"] else machine.board
        # The memory of this machine, or of the smallest model of another board. The system needs a quarter
        total_mb = (
            machine.memory_mb
            if board == machine.board and math.isfinite(machine.memory_mb)
            else board.ram_mb * 1.048576
        )
        arguments = [
            sys.executable,
            "-m",
            "edgefl",
            "device",
            "start",
            *list_start_arguments(context, start, source.data),
        ]
        user = check_account(options["user"] or os.environ.get("SUDO_USER") or getpass.getuser())
        if user == "root":
            click.echo("the unit runs as root; pass --user with an account that has fewer rights", err=True)
        # Code of the owner is imported from the current directory
        folder = source.folder or (str(Path.cwd()) if options["algorithms"] or options["models"] else "")
        text = render_device_unit(
            client_id, arguments, state, user, board.title, int(PROCESS_SHARE * total_mb / 1.048576), folder
        )
        name = f"edgefl-{client_id}.service"
        path = (options["out"] / name).resolve() if options["out"] else Path(name)
        commands = (
            []
            if path.parent == SYSTEMD_DIRECTORY
            else [f"sudo install -m 644 {shlex.quote(str(path))} {SYSTEMD_DIRECTORY / name}"]
        )
        commands += ["sudo systemctl daemon-reload", f"sudo systemctl enable --now {name}"]
        if not state.is_relative_to(STATES_DIRECTORY):
            commands = [f"mkdir -p {shlex.quote(str(state))}", *commands]
        if options["out"]:
            write_atomic(path, text.encode(), 0o644)
        if options["as_json"]:
            click.echo(
                json.dumps(
                    {
                        "name": name,
                        "path": str(path) if options["out"] else None,
                        "unit": text,
                        "commands": commands,
                    }
                )
            )
            return
        if not options["out"]:
            click.echo(text)
            click.echo(f"this is {name}; write it to a directory with -o DIR, and then run:", err=True)
        click.echo("\n".join(commands), err=not options["out"])

    install_options = [
        click.Option(
            ["-o", "--out"],
            type=click.Path(path_type=Path, file_okay=False),
            help="Directory to write the unit to.",
        ),
        click.Option(["--user"], help="Account that runs the service  [default: yours]"),
        click.Option(
            ["--board"],
            help="Board profile of `edgefl device boards`, for MemoryMax  [default: this machine]",
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="Print unit and commands as JSON."),
    ]
    start_options = [option for option in start.params if option.name not in INSTALL_OPTIONS]
    return click.Command(
        "install",
        callback=install,
        params=[*start_options, *install_options],
        help=install.__doc__,
        short_help="Write a systemd unit that runs the device at boot.",
    )
