"""Shell completion: the offered words, the script in a real bash, and no import of TensorFlow."""

import os
import shutil
import subprocess
import sys

import pytest

from edgefl.cli.completion import COMPLETION_VARIABLE, SHELLS


def ask(words: str, shell: str = "bash") -> list[str]:
    env = {
        **os.environ,
        COMPLETION_VARIABLE: f"{shell}_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    code = (
        "import sys, atexit\natexit.register(lambda: sys.stderr.write('HEAVY ' * bool({'tensorflow', "
        "'sklearn', 'paho'} & set(sys.modules))))\n"
        "from edgefl.cli.main import run_command\nsys.exit(run_command([]))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.stderr == ""
    return [line.partition(",")[2] for line in ran.stdout.splitlines() if line]


@pytest.mark.parametrize(
    ("words", "among"),
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
def test_what_is_offered(words: str, among: set[str]) -> None:
    assert among <= set(ask(words))


def test_nothing_is_offered_for_what_is_not_known() -> None:
    assert ask("edgefl nothing-such --da") == []


def test_files_are_left_to_the_shell() -> None:
    env = {
        **os.environ,
        COMPLETION_VARIABLE: "bash_complete",
        "COMP_WORDS": "edgefl init --data pi-1",
        "COMP_CWORD": "3",
    }
    ran = subprocess.run(
        [sys.executable, "-m", "edgefl"], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.stdout == "file,pi-1\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_takes_its_script(shell: str) -> None:
    made = subprocess.run(
        [sys.executable, "-m", "edgefl", "completion", shell],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert COMPLETION_VARIABLE in made.stdout
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} here")
    checked = subprocess.run(
        [program, "-n"], input=made.stdout, capture_output=True, text=True, timeout=60, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")
