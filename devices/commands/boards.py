"""The commands `edgefl device boards`, `pause`, `resume` and `status`."""

import json
import math
import sys
from dataclasses import asdict
from pathlib import Path

import click

STATE_OPTION = click.option(
    "--state", type=click.Path(path_type=Path), required=True, help="The --state of `edgefl device start`."
)


@click.command(short_help="List the board profiles.")
@click.option("--json", "as_json", is_flag=True, help="Print the profiles as JSON.")
def boards(as_json: bool) -> None:
    """List the board profiles with memory, cores, threads and TFLite runtime. A star marks this machine.

    Example: edgefl device boards
    """
    from devices.boards import BOARDS, GENERIC_BOARD, detect_machine

    machine = detect_machine()
    if as_json:
        shown = ("name", "title", "ram_mb", "cores", "threads", "runtimes", "source")
        profiles = [{key: getattr(board, key) for key in shown} for board in (*BOARDS, GENERIC_BOARD)]
        summary = asdict(machine) | {
            "board": machine.board.name,
            "runtime": machine.runtime,
            "can_quantize": machine.can_quantize,
        }
        summary["memory_mb"] = machine.memory_mb if math.isfinite(machine.memory_mb) else None
        click.echo(json.dumps({"here": summary, "boards": profiles}))
        return
    click.echo(f"  {'board':12} {'RAM MB':>6} {'cores':>5} {'threads':>7}  runtime (int8 export)")
    for board in (*BOARDS, GENERIC_BOARD):
        mark = "*" if board == machine.board else " "
        ram, cores = (str(figure or "-") for figure in (board.ram_mb, board.cores))
        runtimes = ", ".join(
            f"{bits}-bit {name} ({'yes' if bits == 64 else 'no'})" for bits, name in board.runtimes.items()
        )
        click.echo(f"{mark} {board.name:12} {ram:>6} {cores:>5} {board.threads:>7}  {runtimes}")
    memory = f", {machine.memory_mb:,.0f} MB" if math.isfinite(machine.memory_mb) else ""
    export = "yes" if machine.can_quantize else "no, export on a 64-bit machine"
    click.echo(
        f"* this machine: {machine.model or 'no device tree'}{memory}, {machine.cores} cores, "
        f"{machine.bits}-bit, {machine.runtime}, int8 export: {export}"
    )


@click.command(short_help="Pause a device.")
@STATE_OPTION
def pause(state: Path) -> None:
    """Pause the device that runs with this state directory.

    The device finishes its current task, stays connected and accepts no other task. It stays paused until
    `edgefl device resume`, also after a restart.

    Example: edgefl device pause --state state
    """
    from devices.availability import pause_device as pause_device

    pause_device(state)
    click.echo(f"paused; resume with: edgefl device resume --state {state}")


@click.command(short_help="End the pause of a device.")
@STATE_OPTION
def resume(state: Path) -> None:
    """End a pause that `edgefl device pause` began.

    Example: edgefl device resume --state state
    """
    from devices.availability import resume_device as resume_device

    resume_device(state)
    click.echo("the device accepts tasks again, if the conditions of `edgefl device start` hold")


@click.command(short_help="Show whether a device runs.")
@STATE_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the status as JSON.")
def status(state: Path, as_json: bool) -> None:
    """Show whether a device runs with this state directory, its pause and its last finished round.

    The exit code is 1 if no device runs, so this command can be a health check.

    Example: edgefl device status --state state
    """
    from devices.availability import is_paused
    from devices.store import is_in_use, read_last_round

    runs = is_in_use(state)
    paused = is_paused(state)
    progress = read_last_round(state)
    last = {"round": progress.round, "phase": progress.phase} if progress else None
    if as_json:
        click.echo(json.dumps({"running": runs, "paused": paused, "last": last}))
    else:
        parts = ["runs" if runs else "does not run", *(["paused by its operator"] if paused else [])]
        click.echo(
            ", ".join([*parts, f"last round {last['round']} ({last['phase']})" if last else "no round yet"])
        )
    if not runs:
        sys.exit(1)
