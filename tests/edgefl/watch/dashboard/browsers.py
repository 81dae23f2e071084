"""A headless Chromium for tests, or the reason why it is not available."""

import importlib.util
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WIDTHS = (375, 1024, 1920)
THEMES = ("light", "dark")


@contextmanager
def open_chromium():
    """Yield a browser. Skip the test if playwright or Debian's chromium is missing."""
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("no playwright; pip install playwright")
    path = CHROMIUM if Path(CHROMIUM).exists() else shutil.which("chromium")
    if not path:
        pytest.skip("no chromium; apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


class Visitor:
    """Opens pages and collects the warnings and errors of their consoles."""

    def __init__(self, browser):
        self.browser = browser
        self.console_errors = []
        self.pages = []
        self.pictures = os.environ.get("EDGEFL_SCREENSHOTS")

    def visit(self, url, width=1024, theme="light", **options):
        page = self.browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme, **options)
        page.set_default_timeout(60_000)
        page.on(
            "console",
            lambda entry: entry.type in ("error", "warning") and self.console_errors.append(entry.text),
        )
        page.on("pageerror", lambda error: self.console_errors.append(str(error)))
        page.goto(url)
        self.pages.append(page)
        return page

    def save_picture(self, page, name):
        """Save a screenshot of the whole page in the directory EDGEFL_SCREENSHOTS, if it is set."""
        if self.pictures:
            Path(self.pictures).mkdir(parents=True, exist_ok=True)
            page.screenshot(path=f"{self.pictures}/{name}.png", full_page=True, animations="disabled")

    def close(self):
        for page in self.pages:
            page.close()


def list_severe_violations(page):
    """Return one line per serious or critical violation that axe-core finds."""
    from axe_playwright_python.sync_playwright import Axe

    violations = Axe().run(page).response["violations"]
    return [
        f"{violation['impact']} {violation['id']}: {[node['target'] for node in violation['nodes']]}"
        for violation in violations
        if violation["impact"] in ("serious", "critical")
    ]
