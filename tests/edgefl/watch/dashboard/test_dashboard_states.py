"""The page before, during and after a federation: real processes, a real broker, a phone and a desktop."""

import re
from dataclasses import asdict, replace

import numpy as np
import pytest

from edgefl.base.config import PersonalizationConfig
from edgefl.program.plan.spec import save_plan
from tests.support.numpy_learner.softmax import softmax_spec

playwright = pytest.importorskip("playwright.sync_api", reason="no playwright; pip install playwright")
expect = playwright.expect
expect.set_options(timeout=90_000)
PHONE, DESKTOP = 390, 1280
ACCURACY_LEGEND = re.compile(r"round\d+mean\d+\.\d%p10\d+\.\d%p90\d+\.\d%")
VIEWS = ((PHONE, "light"), (DESKTOP, "light"), (PHONE, "dark"), (DESKTOP, "dark"))


def choose_models(federation):
    """Let the devices of a toy federation also train a local model and choose the model that they ship."""
    spec = softmax_spec(
        federation.algorithm,
        inputs=4,
        features=4,
        classes=3,
        options=federation.plan.spec.options,
        personalization=asdict(PersonalizationConfig()),
    )
    federation.plan = replace(federation.plan, spec=spec)
    save_plan(federation.plan, federation.directory / "plan")
    return federation


def check_page(page, width):
    """Check that the page fits the screen, and that each link leads to a visible section."""
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "nobody scrolls sideways"
    for link in page.locator("nav a:visible").all():
        expect(page.locator(link.get_attribute("href"))).to_be_visible()


def check_views(visitor, list_violations, url, name, wait_for_content):
    """Open the page on a phone and on a desktop in both themes, check it and save screenshots.

    Args:
        until: waits until a page shows the expected content.
    """
    for width, theme in VIEWS:
        page = visitor.visit(url, width, theme)
        wait_for_content(page)
        check_page(page, width)
        page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 300)))")
        visitor.save_picture(page, f"{name}-{width}-{theme}")
        assert list_violations(page) == []
        page.close()


def test_page_without_a_federation_shows_how_to_start_one(broker, start_dashboard, visitor, list_violations):
    _, url = start_dashboard(broker.url)

    def wait_for_content(page):
        expect(page.locator("#waiting")).to_have_text(
            f"No federation at {broker.url} yet. Waiting for the first one."
        )
        expect(page.locator("#empty code").first).to_have_text(
            f"edgefl aggregator start --broker {broker.url}"
        )
        expect(page.locator("#empty")).to_contain_text(
            f"edgefl device start --broker {broker.url} --id pi-1 --data pi-1.npz"
        )
        assert page.locator("nav a:visible").count() == 0, "there is nothing yet that a link could lead to"

    check_views(visitor, list_violations, url, "empty", wait_for_content)


@pytest.mark.slow
def test_joining_page_shows_ready_devices_and_the_next_command(
    broker, make_federation, toys, start_dashboard, visitor, list_violations
):
    federation = make_federation(broker.url, rounds=2, min_clients=3)
    aggregator = federation.aggregator()
    devices = [federation.device("pi-1", toys.shard(1, 30)), federation.device("pi-2", toys.shard(2, 40))]
    _, url = start_dashboard(broker.url, "--federation", federation.name)

    def wait_for_content(page):
        expect(page.locator("#joining-title")).to_have_text("Waiting for 1 of 3 devices")
        assert page.locator("#slots .ready").all_text_contents() == [
            "✓pi-1ready, 30 samples",
            "✓pi-2ready, 40 samples",
        ]
        expect(page.locator("#slots .open")).to_have_count(1)
        expect(page.locator("#joining-steps code").first).to_have_text(
            f"edgefl device start --broker {broker.url} --id pi-3 --data pi-3.npz"
        )
        expect(page.locator("#joining-steps")).to_contain_text("instead of 127.0.0.1")
        expect(page.locator("#round")).to_be_hidden()
        expect(page.locator("#clients")).to_be_hidden()
        expect(page).to_have_title(f"{federation.name}: joining")

    check_views(visitor, list_violations, url, "joining", wait_for_content)
    page = visitor.visit(url)
    devices.append(federation.device("pi-3", toys.shard(3, 30)))
    expect(page.locator("#joining")).to_be_hidden()
    expect(page.locator("#result-title")).to_be_visible()
    assert aggregator.end() == 0, aggregator.err


def test_running_page_shows_the_round_and_its_curves(
    broker, make_federation, toys, start_dashboard, visitor, list_violations
):
    settings = {"rounds": 400, "min_clients": 4, "deadline_s": 60.0, "evaluate": True}
    federation = choose_models(make_federation(broker.url, **settings))
    federation.aggregator()
    for i in range(4):
        federation.device(f"pi-{i + 1}", toys.shard(i, 30 + 10 * i))
    _, url = start_dashboard(broker.url, "--federation", federation.name)
    first = visitor.visit(url)
    expect(first.locator("#chart-loss .uplot")).to_be_visible()

    def wait_for_content(page):
        expect(page.locator("#chart-loss .uplot")).to_be_visible()
        expect(page.locator("#chart-accuracy .uplot")).to_be_visible()
        # The legend names the last round and its mean, 10th and 90th percentile
        expect(page.locator("#chart-accuracy .u-legend")).to_have_text(ACCURACY_LEGEND)
        expect(page.locator("#round-phase")).to_contain_text("federate, cohort of 4")
        expect(page.locator("#cards li")).to_have_count(4)
        assert page.locator("#joining:visible, #result:visible, #empty:visible").count() == 0
        assert "--" not in page.locator("#chart-loss .u-legend").text_content()

    check_views(visitor, list_violations, url, "running", wait_for_content)


def test_finished_page_shows_the_mean_accuracies(
    broker, make_federation, toys, start_dashboard, visitor, list_violations
):
    federation = choose_models(make_federation(broker.url, rounds=5, min_clients=4, quorum=1.0))
    _, url = start_dashboard(broker.url, "--federation", federation.name)
    first = visitor.visit(url)
    expect(first.locator("#waiting")).to_contain_text("No message of")
    aggregator = federation.aggregator()
    devices = [federation.device(f"pi-{i + 1}", toys.shard(i, 30 + 10 * i)) for i in range(4)]
    assert aggregator.end() == 0, aggregator.err
    assert [device.end() for device in devices] == [0] * 4
    rows = federation.result()["clients"]

    def format_mean(key):
        return f"{100 * sum(row[key] for row in rows) / len(rows):.1f}%"

    def wait_for_content(page):
        expect(page.locator("#result-title")).to_have_text("✓ Finished")
        expect(page.locator("#result-note")).to_contain_text(
            "5 rounds. 4 devices ended with their own models."
        )
        expect(page.locator("#headline .local .huge")).to_have_text(format_mean("accuracy_local"))
        expect(page.locator("#headline .federated .huge")).to_have_text(format_mean("accuracy_federated"))
        expect(page.locator("#headline .shipped .huge")).to_have_text(format_mean("accuracy_shipped"))
        for device in rows:
            card = page.locator(f"#cards li[data-id={device['id']}]")
            expect(card).to_have_attribute("data-state", "finished")
        assert page.locator("#cards li .error").count() == 0
        assert page.locator("#round-number").text_content() == "Round 5 of 5"
        assert page.locator("#cards dl:has-text('round')").count() == 4
        assert "round6" not in page.locator("#cards").text_content()
        expect(page.locator("#box-dots g")).to_have_count(4)
        notes = page.locator("#headline p:not(.huge)").all()
        assert all(note.bounding_box()["width"] > 100 for note in notes), "no column of single words"
        expect(page).to_have_title(f"{federation.name}: finished")

    check_views(visitor, list_violations, url, "finished", wait_for_content)
    _, later = start_dashboard(broker.url, "--federation", federation.name)
    page = visitor.visit(later)
    expect(page.locator("#result-sentence")).to_contain_text("ccuracy")
    expect(page.locator("#headline .shipped .huge")).to_have_text(format_mean("accuracy_shipped"))
    expect(page.locator("#cards li[data-state=finished]")).to_have_count(4)
    expect(page.locator("#curves")).to_be_hidden()
    check_page(page, 1024)
    visitor.save_picture(page, "finished-seen-later")


@pytest.mark.slow
def test_finished_page_shows_a_lost_device_as_offline(
    broker, make_federation, toys, start_dashboard, visitor
):
    federation = make_federation(broker.url, rounds=60, min_clients=3, quorum=0.5, deadline_s=10.0)
    _, url = start_dashboard(broker.url, "--federation", federation.name)
    page = visitor.visit(url)
    expect(page.locator("#waiting")).to_contain_text("No message of")
    aggregator = federation.aggregator()
    devices = {f"pi-{i}": federation.device(f"pi-{i}", toys.shard(i, 30)) for i in range(3)}
    expect(page.locator("#table-rounds summary")).to_be_visible()
    devices["pi-2"].popen.kill()
    assert aggregator.end() == 0, aggregator.err
    expect(page.locator("#result-title")).to_be_visible()
    expect(page.locator("#result-note")).to_contain_text("2 devices ended with their own models. pi-2 left")
    expect(page.locator("#cards li[data-id=pi-2]")).to_have_attribute("data-state", "offline")
    expect(page.locator("#cards li[data-state=finished]")).to_have_count(2)
    check_page(page, 1024)
    visitor.save_picture(page, "finished-one-lost")


def test_page_of_a_diverged_federation_shows_the_reason(
    broker, make_federation, toys, start_dashboard, visitor
):
    federation = make_federation(broker.url, rounds=5, min_clients=2, options={"learning_rate": 100.0})
    _, url = start_dashboard(broker.url, "--federation", federation.name)
    page = visitor.visit(url)
    expect(page.locator("#waiting")).to_contain_text("No message of")
    aggregator = federation.aggregator()
    for i in range(2):
        shard = toys.shard(i, 30)
        federation.device(f"pi-{i}", replace(shard, x_train=shard.x_train * np.float32(1e20)))
    assert aggregator.end() == 1, aggregator.err
    expect(page.locator("#stopped-title")).to_be_visible()
    expect(page.locator("#stopped-note")).to_contain_text(
        "The federation was stopped: training diverged in round 1: 2 of 2 clients"
    )
    check_page(page, 1024)
    visitor.save_picture(page, "diverged")


def test_page_shows_that_the_aggregator_stopped(broker, make_federation, toys, start_dashboard, visitor):
    federation = make_federation(broker.url, rounds=100_000, min_clients=2)
    aggregator = federation.aggregator()
    for i in range(2):
        federation.device(f"pi-{i}", toys.shard(i, 30))
    _, url = start_dashboard(broker.url, "--federation", federation.name)
    page = visitor.visit(url)
    expect(page.locator("#table-rounds summary")).to_be_visible()
    aggregator.popen.kill()
    expect(page.locator("#stopped-title")).to_be_visible()
    expect(page.locator("#stopped-note")).to_contain_text("2 devices wait for it")
    check_page(page, 1024)
    visitor.save_picture(page, "stopped")
