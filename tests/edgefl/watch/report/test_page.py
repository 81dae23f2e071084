"""The page of a run: its sections, valid HTML, no other files, and the same bytes each time."""

import html
import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from edgefl.base.verdict import as_dict, judge_federation
from edgefl.cli.main import run_command as edgefl
from edgefl.watch.report.curves import build_section
from edgefl.watch.report.folder import read_folder
from edgefl.watch.report.page import to_html

matplotlib = pytest.importorskip("matplotlib.figure", reason="the plots extra is not installed")
CHROMIUM = "/usr/bin/chromium"
VOID = {"meta", "br", "hr", "img", "input", "link"}
SECTIONS = ("clients", "curves", "clusters", "gates", "confusion")
HOSTILE = "<script>alert(1)</script>\"'&$\\frac{x}$\x00\x1b[31m"


class Page(HTMLParser):
    """Checks that elements are closed in order, and collects tags, ids and attributes."""

    def __init__(self, text):
        super().__init__()
        self.open = []
        self.tags = []
        self.ids = []
        self.figures = []
        self.attributes = []
        self.feed(text)
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        attributes = dict(attrs)
        self.attributes += list(attributes.items())
        self.ids += [attributes["id"]] if "id" in attributes else []
        if tag == "svg":
            self.figures.append(attributes)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes another element"


def check_page(text: str) -> Page:
    """Return the parsed page, and check that it loads no other file."""
    page = Page(text)
    assert "script" not in page.tags
    assert "http" not in re.sub(r"base64,[^\"]*", "", text)
    assert "@import" not in text
    for name, value in page.attributes:
        if name in ("src", "href", "xlink:href") and value:
            assert value.startswith(("#", "data:image/png;base64,")), value
    assert not re.findall(r"url\((?!#)", text)
    assert len(page.ids) == len(set(page.ids))
    assert "facts" in page.ids
    for name in SECTIONS:  # a section without a picture is not on the page
        section = re.search(rf'<section id="{name}">(.*?)</section>', text, re.DOTALL)
        assert section is None or "<svg" in section[1], name
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', text))
    assert used <= set(page.ids)
    assert all(figure.get("role") == "img" and figure.get("aria-label") for figure in page.figures)
    assert page.tags.count("figure") == len(page.figures)
    assert page.tags.count("table") == len(page.figures) + ("verdict" in page.ids)
    for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(svg.replace("xlink:href", "href"))
    return page


def read_missing_charts(text: str) -> dict[str, str]:
    """Return the reasons for missing charts by title."""
    assert text.count('class="missing"') <= 1, "one line names all of them"
    return dict(re.findall(r"<li><strong>(.*?)</strong>: (.*?)\.</li>", text))


@pytest.mark.slow
def test_page_of_a_clustered_run_has_all_charts_but_gates_and_int8(clustered, tmp_path, capsys):
    out = tmp_path / "report.html"
    assert edgefl(["report", str(clustered), "-o", str(out)]) == 0
    text = out.read_text()
    page = check_page(text)
    assert len(page.figures) == 11
    for title in (
        "Training loss",
        "Accuracy over clients",
        "Communication cost",
        "Accuracy against bytes",
        "Accuracy of each client",
        "Similarity of clients",
        "Cluster membership",
        "Confusion matrix, all clients",
    ):
        assert f"<h3>{title}</h3>" in text
    assert read_missing_charts(text).keys() == {"int8 against float", "Gate usage"}
    assert "<summary>Not available: int8 against float, Gate usage</summary>" in text
    assert "python" in text
    order = [text.index(f'id="{name}"') for name in ("verdict", "clients", "curves", "missing", "facts")]
    assert order == sorted(order), "the verdict comes first, hashes and versions last"
    assert "<dt>command</dt>" in text
    assert "prefers-color-scheme:dark" in text
    assert edgefl(["report", str(clustered), "-o", str(tmp_path / "again.html")]) == 0
    assert out.read_bytes() == (tmp_path / "again.html").read_bytes()

    capsys.readouterr()
    assert edgefl(["report", str(clustered), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"]["sentence"] in html.unescape(text)
    assert report["verdict"]["means"]["shipped"] == pytest.approx(
        np.mean(
            [
                row["accuracy_shipped"]
                for row in json.loads((clustered / "summary.json").read_text())["clients"]
            ]
        )
    )
    loss = next(part for part in report["sections"]["curves"] if part["title"] == "Training loss")
    records = [json.loads(line) for line in (clustered / "rounds.jsonl").read_text().splitlines()]
    assert loss["rows"] == [[record["round"], record["loss"]] for record in records]


def test_the_loss_of_a_single_round_is_a_visible_point(clustered):
    folder = read_folder(clustered)
    for records, marker in ((folder.records[:1], "o"), (folder.records, None)):
        parts = build_section(replace(folder, records=records)).parts
        figure = matplotlib.Figure()
        next(part for part in parts if part.title == "Training loss").draw(figure)
        assert figure.axes[0].lines[0].get_marker() == (marker or "None")


def make_verdict_clients(**counts):
    """Return two clients with the same figures but different `test_gained` and `test_lost`."""
    return [
        {
            "id": f"pi-{i + 1}",
            "accuracy_local": 0.90,
            "accuracy_shipped": 0.92,
            "shipped": 1,
            "test_gained": gained,
            "test_lost": lost,
        }
        for i, (gained, lost) in enumerate(counts.values())
    ]


@pytest.mark.parametrize(
    ("counts", "direction", "gain"),
    [
        ((10, 1), "up", "▲ 2.0 points above alone"),
        ((4, 2), "same", "▲ 2.0 points above alone, within chance"),
        ((1, 10), "", "▲ 2.0 points above alone"),
    ],
    ids=["better", "as good", "the mean points the other way"],
)
def test_colours_follow_significance_instead_of_the_sign_of_the_difference(
    write_run, counts, direction, gain
):
    folder = read_folder(write_run(clients=make_verdict_clients(a=counts, b=counts)))
    text = to_html(folder)
    assert f'<p class="gain {direction}">{gain}</p>' in text
    assert f'<p class="sentence {direction}">' in text
    green = "stroke: var(--green); stroke-opacity: 0.55;"
    red = "stroke: var(--vermilion); stroke-opacity: 0.55;"
    clients = re.search(r'<section id="clients">.*?</svg>', text, re.DOTALL)[0]
    assert (clients.count(green), clients.count(red)) == {"up": (2, 0), "same": (0, 0), "": (0, 2)}[direction]


def test_page_shows_the_stored_verdict(write_run):
    clients = make_verdict_clients(a=(10, 1), b=(10, 1))
    stored = {
        **as_dict(judge_federation(clients)),
        "sentence": "What the run said when it ended.",
        "gain_points": 7.5,
    }
    summary = {"clients": clients, "verdict": stored}
    text = to_html(read_folder(write_run(summary=summary)))
    assert "What the run said when it ended." in text
    assert "▲ 7.5 points above alone" in text


@pytest.mark.parametrize(
    "stored",
    [
        None,
        [],
        {},
        {"means": {}},
        {"rows": 1},
        {"gain_points": "2"},
        {"means": {"shipped": "x"}},
        {"sentence": 1},
    ],
)
def test_missing_or_invalid_verdict_is_computed_from_the_clients(write_run, stored):
    clients = make_verdict_clients(a=(10, 1), b=(10, 1))
    verdict = {**as_dict(judge_federation(clients)), **stored} if stored else stored
    if stored == {"means": {}}:
        del verdict["sentence"]
    text = to_html(read_folder(write_run(summary={"clients": clients, "verdict": verdict})))
    assert "The federation was worth it for 2 of 2 devices" in text
    assert "▲ 2.0 points above alone" in text


@pytest.mark.parametrize("run", ["clustered", pytest.param("aem", marks=pytest.mark.slow), "one_long_name"])
def test_page_fits_the_width_of_a_browser_window(run, request, write_run, tmp_path):
    """On a phone and on a desktop, with the tables and lists closed and open."""
    pytest.importorskip("playwright")
    if not Path(CHROMIUM).exists():
        pytest.skip("no chromium; apt-get install chromium")
    from playwright.sync_api import sync_playwright

    if run == "one_long_name":
        clients = make_verdict_clients(a=(10, 1), b=(4, 2))
        clients[0]["id"] = "a-device-with-a-very-long-name-" * 4
        folder = write_run(clients=clients, config={"name": "kitchen" * 20, "algorithm": "fedavg"})
    else:
        folder = request.getfixturevalue(run)
    (tmp_path / "report.html").write_text(to_html(read_folder(folder)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        try:
            for width, theme in ((390, "light"), (1280, "dark")):
                page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
                page.set_default_timeout(60_000)
                console_messages = []
                page.on("console", lambda message, texts=console_messages: texts.append(message.text))
                page.goto(f"file://{tmp_path}/report.html")
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                page.evaluate(
                    "document.querySelectorAll('details').forEach((details) => (details.open = true))"
                )
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                assert page.locator("#verdict .sentence").is_visible()
                assert page.locator("#clients figure svg").first.bounding_box()["width"] > 0.7 * min(
                    width, 600
                )
                assert console_messages == []
        finally:
            browser.close()


def test_page_of_a_run_with_gates_shows_gate_usage(aem):
    text = to_html(read_folder(aem))
    check_page(text)
    assert "<h3>Gate usage</h3>" in text
    summary = json.loads((aem / "summary.json").read_text())
    for row in summary["clients"]:
        assert sum(
            value for key, value in row["diagnostics"].items() if key.startswith("gate/")
        ) == pytest.approx(1, abs=1e-5)


def test_hostile_names_are_escaped(write_run):
    """Names are never markup or formulas. Unprintable characters are boxes in pictures."""
    clients = [
        {
            "id": HOSTILE,
            "accuracy_shipped": 0.5,
            "accuracy_shipped_int8": 0.4,
            "cluster": 1,
            "confusion": None,
            "diagnostics": {"gate/<b>": 1.0},
        }
    ]
    folder = write_run(
        records=[{"round": 1, "loss": 1.0, "updates": {HOSTILE: {"expert": 0}}}],
        clients=clients,
        config={"name": HOSTILE, "algorithm": HOSTILE, "model": {"name": HOSTILE}},
        confusion={HOSTILE: [[0, 1, 2]]},
    )
    text = to_html(read_folder(folder))
    check_page(text)
    assert "&lt;script&gt;" in text
    assert "<script" not in text
    assert "<b>" not in text


def test_broker_password_is_not_on_the_page(write_run):
    folder = write_run(
        config={"name": "kitchen", "algorithm": "fedavg", "broker": "mqtt://pi:secret@host:1883"}
    )
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(
        json.dumps({**run, "command": "edgefl x --broker mqtt://pi:secret@host:1883 --port 1"})
    )
    text = to_html(read_folder(folder))
    assert "secret" not in text
    assert "host:1883 --port 1" in text


def test_the_page_of_an_old_folder_lists_missing_charts(write_run):
    """The first version of `edgefl simulate` wrote no confusion, no clusters and no evaluation."""
    text = to_html(
        read_folder(
            write_run(
                records=[{"round": 1, "loss": 1.0, "bytes_up": 5, "bytes_down": 5}],
                clients=[{"id": "a", "accuracy_mixture": 0.5}],
            )
        )
    )
    page = check_page(text)
    assert len(page.figures) == 3
    assert len(read_missing_charts(text)) == 8


def test_demo_folder_and_aggregator_folder_have_pages(tmp_path):
    """A small demo folder: an aggregator without rounds.jsonl, and int8 accuracies of the devices."""
    rows = [
        {
            "id": f"pi-{i}",
            "accuracy_shipped": 0.9,
            "accuracy_shipped_int8": 0.88,
            "accuracy_federated": 0.8,
            "n_train": 9,
        }
        for i in (1, 2)
    ]
    (tmp_path / "aggregator").mkdir()
    (tmp_path / "federation.toml").write_text(
        '[federation]\nname = "demo"\nrounds = 2\n[model]\nname = "lenet5"\n'
    )
    (tmp_path / "summary.json").write_text(
        json.dumps({"dataset": "digits", "algorithm": "pfl-mfe", "seed": 1, "clients": rows})
    )
    result = {
        "federation": "demo",
        "algorithm": "pfl-mfe",
        "rounds": 2,
        "losses": [0.5, None],
        "clients": rows,
        "session": "5e55",
    }
    (tmp_path / "aggregator" / "result.json").write_text(json.dumps(result))
    for folder, kind in ((tmp_path, "demo"), (tmp_path / "aggregator", "aggregator")):
        record = read_folder(folder)
        assert (record.kind, record.algorithm, len(record.clients), len(record.records)) == (
            kind,
            "pfl-mfe",
            2,
            2,
        )
        text = to_html(record)
        check_page(text)
        assert "Over 2 clients, int8 costs 2.00 points on average and at most 2.00 points." in text
        assert "5e55" in text
        assert text.index("5e55") > text.index("Over 2 clients")
        assert re.findall(r'class="huge">(.*?)<', text) == ["-", "80.0%", "90.0%"]
        assert "as int8: 88.0%" in text
