"""The page in Chromium, with invented snapshots: its content, its accessibility and its connection."""

import copy
import threading
import time

import numpy as np
import pytest

from edgefl.base.verdict import as_dict, judge_federation
from edgefl.simulation.runs.metrics import compute_cdf
from edgefl.watch.dashboard.latest_snapshot import LatestSnapshot
from edgefl.watch.dashboard.server import DashboardServer

expect = pytest.importorskip("playwright.sync_api", reason="no playwright; pip install playwright").expect
expect.set_options(timeout=60_000)
WIDTHS = (375, 1024, 1920)
SLOW = [pytest.param(*case, marks=pytest.mark.slow) for case in ((8, "dark"), (500, "light"), (500, "dark"))]


def shift_to_now(snapshot):
    """Return the snapshot with times relative to now."""
    offset_s = time.time() - snapshot["ts"]
    shifted = copy.deepcopy(snapshot)
    shifted["ts"] += offset_s
    shifted["round_started_ts"] += offset_s
    for device in shifted["devices"]:
        device["last_seen_ts"] += offset_s
    return shifted


@pytest.fixture
def shown(served, make_snapshot, visitor):
    """Return (latest, snapshot, page) of a page that shows eight devices."""
    latest, url = served
    snapshot = shift_to_now(make_snapshot(8))
    latest.put(snapshot)
    page = visitor.visit(url, reduced_motion="reduce")
    page.wait_for_selector("#cards li")
    return latest, snapshot, page


@pytest.mark.parametrize(("devices", "theme"), [(8, "light"), *SLOW])
def test_page_is_readable_at_three_widths_in_both_themes(
    served, make_snapshot, visitor, list_violations, devices, theme
):
    latest, url = served
    latest.put(shift_to_now(make_snapshot(devices)))
    for width in WIDTHS:
        page = visitor.visit(url, width, theme)
        page.wait_for_selector("#cards li")
        # Few clients have a row of dots each, many clients have a curve of shares
        expect(page.locator(".uplot")).to_have_count(3 if devices == 8 else 4)
        expect(page.locator("#box-dots g")).to_have_count(8 if devices == 8 else 0)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "nobody scrolls sideways"
        visitor.save_picture(page, f"dashboard-{devices}-{width}-{theme}")
        if devices == 8:
            for summary in page.query_selector_all("summary"):
                summary.click()
            assert list_violations(page) == []
        page.close()


def test_page_shows_the_measurements(shown):
    _, _, page = shown
    assert page.text_content("#federation") == "kitchen"
    assert page.text_content("#round-number") == "Round 13 of 20"
    assert page.text_content("#round-phase") == "federate, cohort of 8"
    assert 20 <= int(page.text_content("#deadline").removesuffix(" s")) <= 39
    assert "live from mqtt://192.168.1.10:1883" in page.text_content("#link")
    expected = "Session 5f0c. Recipe: learning_rate 0.03, mean 0.286, std 0.353."
    assert page.text_content("#footer") == expected
    assert page.locator("#counts li[data-state=sent] strong").text_content() == "2"
    assert page.locator("#legend-gates .swatch").all_text_contents() == ["expert 0", "expert 1", "local"]
    assert page.locator("#cards li dd", has_text="local").count() > 0, "a card names the expert most used"
    card = page.locator("#cards li[data-id=pi-8]")
    assert (
        "! rejected" in card.text_content()
        and "last error: round 12: delta of expert1/kernel is not finite" in card.text_content()
    )
    assert "round 12" in card.locator("dl").text_content().replace("round12", "round 12")
    assert card.locator("svg.spark").get_attribute("aria-label").startswith("rounds 1 to 12: from 0.")
    assert "paused: on battery" in page.text_content("#cards li[data-id=pi-5]")
    page.click("#table-members summary")
    # A table is filled shortly after it is opened
    expect(page.locator("#table-members tbody tr")).to_have_count(8)
    assert (
        page.locator("#table-members tbody tr >> text=pi-2").locator("..").text_content()
        == "pi-200" + "1" * 9
    )
    page.click("#table-rounds summary")
    expect(page.locator("#table-rounds tbody tr").nth(2)).to_be_visible()
    assert page.locator("#table-rounds tbody tr").first.text_content().startswith("12federate8")
    assert page.locator("#table-rounds tbody tr").nth(2).text_content().endswith("pi-7")


def test_curves_start_with_accuracy_and_omit_personalization(served, make_snapshot, visitor):
    """Personalization is not a round: its models differ, and it lies beyond the axis."""
    latest, url = served
    snapshot = shift_to_now(make_snapshot(8, rounds=12))
    personalized = {**snapshot["history"][-1], "round": 13, "phase": "personalize", "accuracy_mean": 0.321}
    latest.put({**snapshot, "history": [*snapshot["history"], personalized]})
    page = visitor.visit(url)
    expect(page.locator(".uplot")).to_have_count(3)
    assert page.locator("#curves figure h3").all_text_contents() == [
        "Accuracy during the rounds",
        "Training loss",
        "Bytes per round",
    ]
    last = snapshot["history"][-1]["accuracy_mean"]
    for chart in ("accuracy", "loss", "bytes"):
        legend = page.locator(f"#chart-{chart} .u-legend")
        expect(legend).to_contain_text("round12")
        assert "--" not in legend.text_content()
    expect(page.locator("#chart-accuracy .u-legend")).to_contain_text(f"{100 * last:.1f}%")
    page.click("#table-rounds summary")
    expect(page.locator("#table-rounds tbody tr").first).to_contain_text("32.1%")


def test_page_of_another_task_names_its_measure(served, make_snapshot, visitor):
    latest, url = served
    snapshot = shift_to_now(make_snapshot(8, rounds=12))
    history = [{**row, "measure": "R2"} for row in snapshot["history"]]
    devices = [{**device, "measure": "AUC"} for device in snapshot["devices"]]
    latest.put({**snapshot, "measure": "AUC", "history": history, "devices": devices})
    page = visitor.visit(url)
    expect(page.locator("#title-accuracy")).to_have_text("R2 during the rounds")
    expect(page.locator("#title-clients")).to_have_text("AUC of each client")
    page.click("#table-devices summary")
    expect(page.locator("#table-devices thead")).to_contain_text("AUC")
    for text in (page.locator("#curves"), page.locator("#clients"), page.locator("#devices")):
        assert "ccuracy" not in text.text_content()


def test_page_shows_the_alarm_of_a_device_first(served, make_snapshot, visitor):
    latest, url = served
    snapshot = shift_to_now(make_snapshot(8, rounds=12))
    anomaly = {"alarm": True, "score": 0.5, "threshold": 0.25, "windows": 40, "alarms": 3, "ts": 1.0}
    *others, last = snapshot["devices"]
    quiet = [{**device, "anomaly": {**anomaly, "alarm": False}} for device in others[:1]]
    latest.put({**snapshot, "devices": [*quiet, *others[1:], {**last, "anomaly": anomaly}]})
    page = visitor.visit(url)
    first = page.locator("#cards .card").first
    expect(first).to_have_attribute("data-id", last["id"])
    expect(first).to_contain_text("Alarm: score 0.500 above 0.250. 3 alarms in 40 windows.")
    expect(page.locator("#cards")).to_contain_text("No alarm: score 0.500, threshold 0.250")


def make_verdict(*rows):
    """Return the state and the verdict that a finished federation adds to a snapshot."""
    return {"phase": "done", "round": 21, "verdict": as_dict(judge_federation(rows))}


def make_client_row(client_id, gained, lost, local=0.90, shipped=0.92):
    return {
        "id": client_id,
        "accuracy_local": local,
        "accuracy_shipped": shipped,
        "shipped": 1,
        "test_gained": gained,
        "test_lost": lost,
    }


def test_colours_follow_significance_and_not_the_sign_of_a_difference(served, make_snapshot, visitor):
    latest, url = served
    rows = [
        make_client_row("pi-1", 10, 1),
        make_client_row("pi-2", 4, 2),
        make_client_row("pi-3", 1, 10, shipped=0.88),
    ]
    latest.put({**shift_to_now(make_snapshot(3)), **make_verdict(*rows)})
    page = visitor.visit(url)
    lines = page.locator("#box-dots g .way")
    expect(lines).to_have_count(3)
    assert [line.get_attribute("class").strip() for line in lines.all()] == ["way up", "way same", "way down"]
    expect(page.locator("#note-cdf")).to_contain_text(
        "green where the client's model is better than training alone"
    )
    gain = page.locator("#headline .gain")
    for row, way, text in (
        (rows[0], "up", "▲ 2.0 points above alone"),
        (rows[1], "same", "▲ 2.0 points above alone, within chance"),
        (rows[2], "down", "▼ 2.0 points below alone"),
        ({**rows[0], "test_gained": None}, "", "▲ 2.0 points above alone"),
    ):
        latest.put({**shift_to_now(make_snapshot(3)), **make_verdict(row)})
        expect(gain).to_have_text(text)
        expect(gain).to_have_attribute("data-way", way)


def test_page_explains_missing_figures(served, make_snapshot, visitor):
    latest, url = served
    snapshot = {**shift_to_now(make_snapshot(3)), "history": []}
    unknown = {"accuracy_mixture": None, "accuracy_federated": None, "accuracy_int8": None}
    snapshot["devices"] = [{**device, **unknown, "state": "idle"} for device in snapshot["devices"]]
    latest.put({**snapshot, "differential_privacy": True})
    page = visitor.visit(url)
    expect(page.locator("#round-note")).to_have_text(
        "Differential privacy is on, so the aggregator publishes no figures for the rounds."
    )
    expect(page.locator("#bytes-tile")).to_be_hidden()
    done = {**snapshot, "phase": "done", "round": 21}
    note = page.locator("#result-note")
    latest.put({**done, "differential_privacy": True})
    expect(note).to_contain_text("Differential privacy is on, so the aggregator publishes no figures and no")
    expect(page.locator("#headline")).to_be_hidden()
    latest.put({**done, "differential_privacy": False})
    expect(note).to_contain_text("The broker has no verdict of this federation. edgefl report shows")
    masked = {**as_dict(judge_federation([make_client_row("pi-1", 10, 1)])), "rows": []}
    latest.put({**done, "verdict": masked})
    expect(note).to_contain_text("Updates are masked, so the verdict contains no figures of single devices.")
    expect(page.locator("#headline .shipped .huge")).to_have_text("92.0%")


def test_device_paused_while_joining_is_not_counted_twice(served, make_snapshot, visitor):
    latest, url = served
    snapshot = shift_to_now(make_snapshot(3))
    states = {"pi-1": ("idle", ""), "pi-2": ("paused", "paused: on battery, and it waits for the mains")}
    devices = [device for device in snapshot["devices"] if device["id"] in states]
    for device in devices:
        device["state"], device["why"] = states[device["id"]]
    latest.put({**snapshot, "phase": "joining", "round": 0, "needed": 4, "history": [], "devices": devices})
    page = visitor.visit(url, 390)
    expect(page.locator("#joining-title")).to_have_text("Waiting for 3 of 4 devices")
    assert [page.locator(f"#slots .{kind}").count() for kind in ("ready", "away", "open")] == [1, 1, 2]
    height = page.locator("#slots .away strong").bounding_box()["height"]
    assert height < 30, "an id stands on one line on a phone"


def test_page_follows_patches_and_a_new_session(shown):
    latest, snapshot, page = shown
    snapshot = copy.deepcopy(snapshot)
    snapshot["round"] = 14
    snapshot["devices"][0].update(state="paused", why="paused: by its operator")
    del snapshot["devices"][7]
    latest.put(snapshot)
    expect(page).to_have_title("kitchen: round 14 of 20")
    expect(page.locator("#cards li[data-id=pi-8]")).to_have_count(0)
    assert "by its operator" in page.text_content("#cards li[data-id=pi-1]")
    assert page.text_content("#announce").startswith("Round 14 of 20")
    latest.put(
        {
            **snapshot,
            "session": "6a",
            "phase": "joining",
            "round": 0,
            "history": [],
            "clusters": {"rounds": [], "similarity": None},
        }
    )
    expect(page.locator("#clusters")).to_be_hidden()
    expect(page.locator("#curves")).to_be_hidden()
    assert "waiting for devices" in page.text_content("#round-phase")
    assert page.text_content("#deadline") == "\u2013"


def test_five_hundred_devices_are_filtered_sorted_and_shown_in_parts(served, make_snapshot, visitor):
    latest, url = served
    latest.put(shift_to_now(make_snapshot(500)))
    page = visitor.visit(url)
    page.wait_for_selector("#cards li")
    ids = "Array.from(document.querySelectorAll('#cards li'), (card) => card.dataset.id)"
    assert page.text_content("#shown") == "48 of 500 shown"
    assert page.locator("#cards li").first.get_attribute("data-state") == "rejected", (
        "what needs attention comes first"
    )
    page.select_option("#sort", "id")
    assert page.evaluate(ids)[:11] == [f"pi-{i}" for i in range(1, 12)], "10 comes after 9"
    page.click("#more")
    assert page.text_content("#shown") == "96 of 500 shown"
    assert page.evaluate("document.activeElement.dataset.id") == "pi-49", (
        "the keyboard focus is on the first new card"
    )
    page.fill("#filter", "BATTERY pi-2")
    assert page.text_content("#shown") == "14 of 14 shown, 500 in all"
    page.fill("#filter", "")
    page.select_option("#filter-state", "offline")
    assert page.text_content("#shown") == "48 of 62 shown, 500 in all"
    assert page.locator("#more").text_content() == "Show 14 more"


def test_controls_and_charts_are_accessible_by_keyboard(shown):
    _, snapshot, page = shown
    similarity = snapshot["clusters"]["similarity"]
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("document.activeElement.getBoundingClientRect().top") >= 0, (
        "it is seen when it has the focus"
    )
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "document.activeElement.id || document.activeElement.parentElement?.id || "
                "document.activeElement.tagName"
            )
        )
    assert {
        "filter",
        "filter-state",
        "sort",
        "table-rounds",
        "table-heat",
        "table-members",
        "table-gates",
        "table-devices",
    } <= reached
    page.focus("#box-heat canvas")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.text_content("#box-heat .description") == f"pi-2 and pi-5: {similarity['matrix'][1][4]:.3f}"
    page.focus("#box-members canvas")
    for key in ("ArrowDown", "ArrowDown", *["ArrowRight"] * 20):
        page.keyboard.press(key)
    assert page.text_content("#box-members .description") == "pi-4, round 12: cluster 0"
    page.focus("#box-gates canvas")
    page.keyboard.press("ArrowDown")
    assert page.text_content("#box-gates .description").startswith("pi-1: expert 0 ")


def test_text_from_devices_is_not_interpreted_as_html(shown):
    latest, snapshot, page = shown
    evil = "<img src=x onerror='window.hit=1'><script>window.hit=1</script>"
    snapshot = copy.deepcopy(snapshot)
    device = snapshot["devices"][0]
    device.update(id="constructor", why=evil, last_error=evil, version=evil, state="silent")
    snapshot["devices"][1]["state"] = evil
    snapshot.update(phase=evil, federation=evil)
    snapshot["clusters"]["similarity"]["layer"] = evil
    snapshot["broker"]["url"] = evil
    latest.put(snapshot)
    page.wait_for_selector("#cards li[data-id=constructor]")
    page.click("#table-devices summary")
    assert evil in page.text_content("#cards li[data-id=constructor]") and evil in page.text_content(
        "#note-heat"
    )
    assert evil in page.text_content("#round-phase") and evil in page.text_content("#link")
    assert page.evaluate("window.hit") is None and page.locator("img, main script").count() == 0


@pytest.mark.slow
def test_page_reports_lost_connections_and_reconnects(make_snapshot, visitor):
    snapshot = shift_to_now(make_snapshot(4))

    def serve(latest, port=0):
        server = DashboardServer(latest, port=port)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    latest = LatestSnapshot()
    server = serve(latest)
    page = visitor.visit(server.url)
    latest.put(snapshot)
    page.wait_for_selector("#link[data-health=good]")
    latest.put(
        {**snapshot, "broker": {**snapshot["broker"], "connected": False, "since_ts": time.time() - 70}}
    )
    expect(page.locator("#link")).to_contain_text("has been unreachable for 1:1")
    latest.put(snapshot)
    page.wait_for_selector("#link[data-health=good]")
    latest.close()
    server.shutdown()
    server.server_close()
    expect(page.locator("#link")).to_contain_text("does not answer")
    assert page.locator("#cards li").count() == 4, "what was known stays"
    latest = LatestSnapshot()
    second_server = serve(latest, int(server.server_address[1]))
    latest.put({**snapshot, "round": 17})
    expect(page).to_have_title("kitchen: round 17 of 20")
    page.wait_for_selector("#link[data-health=good]")
    latest.close()
    second_server.shutdown()
    second_server.server_close()
    # The browser logs the lost connection
    visitor.console_errors[:] = [error for error in visitor.console_errors if "ERR_" not in error]


def test_page_respects_reduced_motion(served, visitor):
    still, moving = (
        visitor.visit(served[1], reduced_motion=preference) for preference in ("reduce", "no-preference")
    )
    script = (
        "[getComputedStyle(document.documentElement).scrollBehavior, "
        "getComputedStyle(document.querySelector('.skip')).transitionDuration]"
    )
    assert (still.evaluate(script), moving.evaluate(script)) == (["auto", "0s"], ["smooth", "0.15s"])


def test_arithmetic_of_the_page_matches_the_python_code(shown, apply_patch, make_snapshot):
    from scipy.cluster.hierarchy import leaves_list

    _, _, page = shown
    similarity = make_snapshot(40, groups=5, seed=3)["clusters"]["similarity"]
    order = page.evaluate(
        "async ([z, n]) => (await import('/clusters.js')).leaves(z, n)", [similarity["linkage"], 40]
    )
    assert order == leaves_list(np.asarray(similarity["linkage"])).tolist()
    assert page.evaluate("async () => (await import('/clusters.js')).leaves([], 2)") == [0, 1]
    values = np.random.default_rng(2).uniform(0, 1, 30).round(1).tolist()
    xs, shares = page.evaluate("async (v) => (await import('/curves.js')).distribution([v])", values)
    sorted_values, share = compute_cdf(values)
    assert xs[1:] == sorted(set(values)) and shares[0] == 0
    assert np.allclose(shares[1:], [share[sorted_values <= x].max() for x in xs[1:]])
    for before, patch in (
        ({"a": {"constructor": 1}}, {"a": {"constructor": None, "toString": {"x": 1}}}),
        ({"a": [1]}, {"a": {"b": [2]}}),
    ):
        assert page.evaluate(
            "async ([b, p]) => (await import('/patch.js')).applyPatch(b, p)", [before, patch]
        ) == apply_patch(before, patch)
