"""Boards in QEMU that run an exported self-test."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from firmware_export.firmware.targets import Target


@contextmanager
def run_selftest_in_qemu(project: Path, target: Target) -> Iterator[str]:
    """Build the self-test of a firmware project, run it, and yield the name of its serial port.

    Args:
        project: folder of the project.
        target: target of the project.
    """
    for arguments in (["-B", "build"], ["--build", "build", "--target", "selftest.elf"]):
        done = subprocess.run(["cmake", *arguments], cwd=project, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stdout + done.stderr
    command = [target.architecture.qemu, *target.list_qemu_options("pty"), "-kernel", "build/selftest.elf"]
    with subprocess.Popen(
        command, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as qemu:
        try:
            assert qemu.stdout is not None
            line = qemu.stdout.readline()
            assert "redirected to /dev/pts/" in line, line
            yield line.split("redirected to ")[1].split()[0]
        finally:
            qemu.kill()
