"""The page of `edgefl data show`: it parses, needs no other file, and a browser shows pictures and lines."""

import io
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edgefl.data.inspection.inspect import inspect_samples
from edgefl.watch.report.samples_page import encode_png, render_samples_page

HOSTILE = "<script>alert(1)</script>\"'&\x00\x1b[31m"
CHROMIUM = "/usr/bin/chromium"
VOID = {"meta", "img"}


class Page(HTMLParser):
    """Checks that elements are closed in order, and collects tags and attributes."""

    def __init__(self, text):
        super().__init__()
        self.open = []
        self.tags = []
        self.attributes = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def make_pictures(seed=0, shape=(9, 12, 3)):
    x = np.random.default_rng(seed).random((40, *shape)).astype(np.float32)
    return {"x": x, "y": np.arange(40) % 4}


def check_page(text):
    page = Page(text)
    assert "script" not in page.tags and "http" not in text and "@import" not in text
    for name, value in page.attributes:
        if name in ("src", "href"):
            assert value.startswith(("#", "data:image/png;base64,"))
    assert not [letter for letter in text if not letter.isprintable() and letter != "\n"]
    return page


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3), (1, 1), (1, 1, 3)])
def test_png_contains_the_pixels(shape) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    with Image.open(io.BytesIO(encode_png(pixels))) as image:
        assert image.mode == ("RGB" if len(shape) == 3 else "L")
        assert np.array_equal(np.asarray(image), pixels)


def test_page_draws_pictures_and_lines() -> None:
    windows = {"x": np.random.default_rng(0).normal(size=(40, 64, 3)), "y": np.arange(40) % 4}
    page = check_page(render_samples_page(inspect_samples({"camera": make_pictures(), "wrist": windows})))
    assert page.tags.count("img") == page.tags.count("polyline") / 3 == 4
    assert page.tags.count("figure") == 8
    assert sum(name == "alt" and value == "class 2, row 2" for name, value in page.attributes) == 1


def test_a_constant_channel_is_a_line_in_the_middle() -> None:
    """The picture is 80 high."""
    windows = {"x": np.ones((8, 4, 1)), "y": np.arange(8) % 2}
    points = dict(check_page(render_samples_page(inspect_samples({"a": windows}))).attributes)["points"]
    assert {point.split(",")[1] for point in points.split()} == {"40.0"}


def test_hostile_names_are_escaped() -> None:
    arrays = make_pictures() | {"class_names": np.array([HOSTILE] * 4)}
    text = render_samples_page(inspect_samples({HOSTILE: arrays}))
    check_page(text)
    assert "&lt;script&gt;" in text and "<script" not in text


def test_the_same_samples_give_the_same_page() -> None:
    devices = {f"pi-{number}": make_pictures(number) for number in range(30)}
    first, again = (render_samples_page(inspect_samples(devices)) for _ in range(2))
    assert first == again
    assert "6 more devices are not shown" in first


def test_browser_shows_pictures_and_outliers(tmp_path: Path) -> None:
    """In both themes and at the width of a phone: pictures are drawn, nothing is wider than the window."""
    pytest.importorskip("playwright")
    if not Path(CHROMIUM).exists():
        pytest.skip("no chromium; apt-get install chromium")
    from playwright.sync_api import sync_playwright

    windows = make_pictures(1)
    windows["x"][7] = 60
    inspection = inspect_samples({"pi-1": make_pictures(), "pi-2": windows})
    (tmp_path / "data.html").write_text(render_samples_page(inspection))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        try:
            backgrounds = set()
            for width, theme in ((390, "light"), (1280, "dark")):
                page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=theme)
                page.set_default_timeout(60_000)
                console_messages = []
                page.on("console", lambda message, texts=console_messages: texts.append(message.text))
                page.goto(f"file://{tmp_path}/data.html")
                sizes = page.eval_on_selector_all(
                    "img", "all => all.map(i => [i.naturalWidth, i.naturalHeight])"
                )
                assert sizes == [[12, 9]] * 9
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                assert page.locator(".findings li").first.is_visible()
                assert page.locator(".outlier").count() == 1
                backgrounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
                assert console_messages == []
            assert len(backgrounds) == 2
        finally:
            browser.close()
