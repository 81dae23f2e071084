"""Makes the pictures of the README from one real run of `edgefl demo`.

`python -m tests.support.pictures` writes `docs/assets/demo.svg`, the output of the command as a terminal
shows it, and `docs/assets/dashboard.png`, the dashboard that watched this federation.
"""

import contextlib
import io
import json
import queue
import re
import socket
import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from unittest import mock

import click
from click.testing import CliRunner
from rich.console import Console
from rich.padding import Padding
from rich.terminal_theme import MONOKAI
from rich.text import Text

from edgefl.cli.commands.demo import demo
from edgefl.cli.demo.processes import Child, Children

ASSETS = Path(__file__).parents[2] / "docs" / "assets"
CHROMIUM = "/usr/bin/chromium"
HOST = "127.0.0.1"
COLUMNS = 102
TIMEOUT_S = 60
PAGE_WIDTH = 1280
SHOWN_ROUNDS = 3
DETAILS = re.compile(r"(round \d+|personalize): \S+ reported |waiting for devices|\S+ is (paused|online)\b")
ROUND = re.compile(r"round \d+/\d+ ")

# As rich's own format, without its @font-face rules, which fetch a font from elsewhere.
FORMAT = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<title>The output of edgefl demo</title>
<style>
.{unique_id}-matrix {{
  font: {char_height}px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  line-height: {line_height}px;
}}
.{unique_id}-title {{ font: bold 18px system-ui, sans-serif }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def find_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@dataclass
class WatchedChildren(Children):
    """The processes of the demo, and a dashboard that watches them.

    The picture of the dashboard is taken after the federation has finished, before the broker ends.

    Attributes:
        port: the port of the demo's broker.
        picture: the PNG file to write.
    """

    port: int = 0
    picture: Path = Path("dashboard.png")
    url: str = ""
    browsers: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def start(self, name: str, *arguments: str, show: bool = False) -> tuple[Child, "queue.Queue[str]"]:
        """Start a command; start the dashboard between the broker and the aggregator."""
        if name == "aggregator":
            options = ("--broker", f"mqtt://{HOST}:{self.port}", "--federation", "demo", "--port", "0")
            child, lines = super().start("dashboard", "dashboard", *options, "--json")
            self.url = json.loads(self.wait_for_line(child, lines, "url", TIMEOUT_S))["url"]
            self.open_page()
        return super().start(name, *arguments, show=show)

    def open_page(self) -> None:
        """Open the dashboard in a browser, so that its curves begin with the first round."""
        from playwright.sync_api import sync_playwright

        chromium = self.browsers.enter_context(sync_playwright()).chromium
        browser = chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        self.page = browser.new_page(viewport={"width": PAGE_WIDTH, "height": 800})
        self.page.set_default_timeout(1000 * TIMEOUT_S)
        self.page.goto(self.url)

    def __exit__(self, *failure: object) -> None:
        with self.browsers:
            if failure == (None, None, None):
                self.photograph()
        super().__exit__(*failure)

    def photograph(self) -> None:
        """Write the picture of the page, down to the accuracy of each client."""
        self.page.get_by_text("Finished").first.wait_for()
        self.page.get_by_text("points above alone").first.wait_for()
        box = self.page.locator("figure", has_text="Accuracy of each client").first.bounding_box()
        assert box is not None
        height = box["y"] + box["height"] + 24
        self.page.screenshot(
            path=self.picture, full_page=True, clip={"x": 0, "y": 0, "width": PAGE_WIDTH, "height": height}
        )


def shorten(output: str) -> list[str]:
    """Return the lines of a demo without progress, single reports and the rounds in the middle."""
    lines = [line.rpartition("\r")[2].rstrip() for line in output.split("\n")]
    lines = [line for line in lines if not DETAILS.match(line)]
    rounds = [line for line in lines if ROUND.match(line)]
    left_out = rounds[SHOWN_ROUNDS:-SHOWN_ROUNDS]
    shown = []
    for line in lines:
        if line not in left_out:
            shown.append(line)
        elif line == left_out[0]:
            shown.append("...")
    return shown


def draw_terminal(command: str, lines: list[str]) -> str:
    """Return an SVG that shows a command and its output in a terminal. It fetches nothing."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), color_system=None)
    text = Text.assemble(("$ ", "green"), (command, "bold"), "\n", "\n".join(lines))
    console.print(Padding(text, (0, 1)))
    drawn = console.export_svg(title="edgefl", theme=MONOKAI, code_format=FORMAT, unique_id="demo")
    return "\n".join(line.strip() for line in drawn.splitlines() if line.strip()) + "\n"


@click.command()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=ASSETS,
    show_default=True,
    help="Directory of the pictures.",
)
def main(out: Path) -> None:
    """Run the demo and write its pictures; this takes about a minute.

    Example: python -m tests.support.pictures
    """
    out = out.resolve()
    port = find_port()
    children = partial(WatchedChildren, port=port, picture=out / "dashboard.png")
    with (
        tempfile.TemporaryDirectory() as directory,
        contextlib.chdir(directory),
        mock.patch(f"{demo.callback.__module__}.Children", children),
    ):
        result = CliRunner().invoke(demo, ["--port", str(port)], catch_exceptions=False)
    if result.exit_code:
        raise click.ClickException(result.output)
    (out / "demo.svg").write_text(draw_terminal("edgefl demo", shorten(result.output)))
    click.echo(f"wrote {out}/demo.svg and {out}/dashboard.png")


if __name__ == "__main__":
    main()
