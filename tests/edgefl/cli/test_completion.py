"""Shell completion: the offered values, the script of each shell, and no import of TensorFlow."""

import os
import shutil
import subprocess
import sys

import pytest

from edgefl.cli.completion import COMPLETION_VARIABLE, SHELLS


def complete(line: str, shell: str = "bash") -> list[str]:
    env = {
        **os.environ,
        COMPLETION_VARIABLE: f"{shell}_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    code = (
        "import sys, atexit\natexit.register(lambda: sys.stderr.write('HEAVY ' * bool({'tensorflow', "
        "'sklearn', 'paho'} & set(sys.modules))))\n"
        "from edgefl.cli.main import run_command\nsys.exit(run_command([]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.stderr == ""
    return [line.partition(",")[2] for line in result.stdout.splitlines() if line]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("edgefl d", {"datasets", "demo", "device", "doctor"}),
        ("edgefl device st", {"start", "status"}),
        ("edgefl device start --thr", {"--threads"}),
        ("edgefl init --algorithm fedm", {"fedmix"}),
        ("edgefl init --data dig", {"digits"}),
        ("edgefl plan build --model le", {"lenet5"}),
        ("edgefl partitions show --partition dir", {"dirichlet"}),
        ("edgefl demo --dataset f", {"fashion-mnist"}),
        ("edgefl completion z", {"zsh"}),
    ],
)
def test_completion_offers_expected_values(line: str, expected: set[str]) -> None:
    assert expected <= set(complete(line))


def test_unknown_command_has_no_completions() -> None:
    assert complete("edgefl nothing-such --da") == []


def test_shell_completes_files() -> None:
    env = {
        **os.environ,
        COMPLETION_VARIABLE: "bash_complete",
        "COMP_WORDS": "edgefl init --data pi-1",
        "COMP_CWORD": "3",
    }
    result = subprocess.run(
        [sys.executable, "-m", "edgefl"], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.stdout == "file,pi-1\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_shell_accepts_its_completion_script(shell: str) -> None:
    script = subprocess.run(
        [sys.executable, "-m", "edgefl", "completion", shell],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert COMPLETION_VARIABLE in script.stdout
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} here")
    checked = subprocess.run(
        [program, "-n"], input=script.stdout, capture_output=True, text=True, timeout=60, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")
