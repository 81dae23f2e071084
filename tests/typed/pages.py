"""Pages of the documentation, and the shell commands on them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
SHELLS = {"sh", "bash", "shell", "console", "zsh"}
# An indented line is a command when it begins with one of these.
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


def joined(text: str) -> list[str]:
    """Return the commands of a shell's text: what a backslash or a loop spreads over lines is one."""
    found: list[str] = []
    for line in text.replace("\\\n", " ").splitlines():
        if (
            found
            and found[-1].startswith("for ")
            and not found[-1].endswith("done")
            and "; done" not in found[-1]
        ):
            found[-1] += "\n" + line
        elif line.strip() and not line.strip().startswith("#"):
            found.append(re.sub(r"  +", " ", line.strip()))
    return found


def commands(text: str) -> list[str]:
    """Return the shell commands of a page, those of fences before those of indented blocks."""
    fenced = [command for kind, body in FENCE.findall(text) if kind in SHELLS for command in joined(body)]
    indented = re.findall(r"^(?: {4}.*\n?)+", FENCE.sub("", text), re.MULTILINE)
    return fenced + [
        command for body in indented for command in joined(body) if command.split()[0] in PROGRAMS
    ]


class Page:
    """A page of the documentation: its commands, of which a test takes one after the other."""

    def __init__(self, name: str, listed: dict[str, str]) -> None:
        """listed: what not_here.py says of the page."""
        self.name = name
        self.listed = listed
        self.text = (ROOT / name).read_text()
        self.left = commands(self.text)

    def take(self, start: str) -> str:
        """Return the next command that begins so."""
        found = next((line for line in self.left if line.startswith(start)), None)
        assert found is not None, f"{self.name} has no further command {start!r}; left are {self.left}"
        self.left.remove(found)
        return found

    def blocks(self, language: str) -> list[str]:
        return [body for found, body in FENCE.findall(self.text) if found == language]

    def names(self, listed: str) -> list[str]:
        """Return which of the commands that are left an entry of not_here.py means."""
        begins = listed.removesuffix("...")
        return [
            line for line in self.left if line == listed or (begins != listed and line.startswith(begins))
        ]

    def slipped(self) -> list[str]:
        """Return the commands that no test took and that not_here.py does not list."""
        known = {line for each in self.listed for line in self.names(each)}
        return [line for line in self.left if line not in known]
