"""Pages of the documentation and their shell commands."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
SHELLS = {"sh", "bash", "shell", "console", "zsh"}
# An indented line is a command if it begins with one of these programs.
PROGRAMS = {
    ".",
    "apt-get",
    "cmake",
    "docker",
    "edgefl",
    "git",
    "jq",
    "make",
    "mosquitto",
    "mosquitto_sub",
    "nats-server",
    "pip",
    "python",
    "python3",
    "scp",
    "ssh",
    "sudo",
    "systemctl",
}


def join_lines(text: str) -> list[str]:
    """Return the commands of a shell text. Lines joined by a backslash or a loop are one command."""
    commands: list[str] = []
    for line in text.replace("\\\n", " ").splitlines():
        if (
            commands
            and commands[-1].startswith("for ")
            and not commands[-1].endswith("done")
            and "; done" not in commands[-1]
        ):
            commands[-1] += "\n" + line
        elif line.strip() and not line.strip().startswith("#"):
            commands.append(re.sub(r"  +", " ", line.strip()))
    return commands


def list_commands(text: str) -> list[str]:
    """Return the shell commands of a page, first from fences and then from indented blocks."""
    fenced = [command for kind, body in FENCE.findall(text) if kind in SHELLS for command in join_lines(body)]
    indented = re.findall(r"^(?: {4}.*\n?)+", FENCE.sub("", text), re.MULTILINE)
    return fenced + [
        command for body in indented for command in join_lines(body) if command.split()[0] in PROGRAMS
    ]


class Page:
    """A page of the documentation, whose commands a test takes one after the other."""

    def __init__(self, name: str, listed: dict[str, str]) -> None:
        """Read a page.

        Args:
            name: path of the page.
            listed: the entries of untyped_commands.py for the page.
        """
        self.name = name
        self.listed = listed
        self.text = (ROOT / name).read_text()
        self.remaining = list_commands(self.text)

    def take(self, start: str) -> str:
        """Return the next command that begins with `start`."""
        command = next((line for line in self.remaining if line.startswith(start)), None)
        assert command is not None, f"{self.name} has no further command {start!r}; left are {self.remaining}"
        self.remaining.remove(command)
        return command

    def blocks(self, language: str) -> list[str]:
        return [body for name, body in FENCE.findall(self.text) if name == language]

    def list_matching(self, listed: str) -> list[str]:
        """Return the remaining commands that an entry of untyped_commands.py matches."""
        prefix = listed.removesuffix("...")
        return [
            line
            for line in self.remaining
            if line == listed or (prefix != listed and line.startswith(prefix))
        ]

    def list_unlisted(self) -> list[str]:
        """Return the remaining commands that untyped_commands.py does not list."""
        listed_commands = {line for entry in self.listed for line in self.list_matching(entry)}
        return [line for line in self.remaining if line not in listed_commands]
