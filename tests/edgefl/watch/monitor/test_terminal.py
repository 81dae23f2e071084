"""The terminal view under Textual's pilot, with the messages of a simulated fleet."""

import asyncio

import pytest

pytest.importorskip("textual")

from textual.widgets import Input, Static

from edgefl.base.errors import LinkError
from edgefl.base.verdict import judge_federation
from edgefl.protocol.wire.messages import State
from edgefl.protocol.wire.strict_json import encode_json
from edgefl.protocol.wire.topics import FederationTopics
from edgefl.protocol.wire.verdict_message import make_verdict_message
from edgefl.watch.monitor.device_list import DeviceList
from edgefl.watch.monitor.terminal import DeviceScreen, Monitor
from edgefl.watch.monitor.view import FederationView, snapshot
from tests.benchmarks.watching.simulated_devices import Fleet, list_round_messages

OPENED = 1000.0


class Scene:
    """The first rounds of a fleet, and a terminal view of them at one time."""

    def __init__(self, devices=60):
        self.fleet = Fleet(devices=devices, period_s=5.0)
        self.view = FederationView("fleet")
        self.now = OPENED
        self.connected = True
        self.due = [
            (20.0 * (n - 1) + at, *rest)
            for n in (1, 2, 3)
            for at, *rest in list_round_messages(self.fleet, "s", n, OPENED + 20 * (n - 1))
        ]

    def deliver_until(self, seconds):
        """Deliver all messages until this time, in seconds after the start."""
        while self.due and self.due[0][0] <= seconds:
            at, topic, payload, _ = self.due.pop(0)
            self.view.take(topic, payload, OPENED + at)
        self.now = OPENED + seconds

    def make_app(self):
        return Monitor(lambda: 0, lambda: snapshot(self.view, self.now), lambda: self.connected)


def get_text(app, name):
    return str(app.screen_stack[0].query_one(f"#{name}", Static).render())


def get_rows(app):
    """Return the visible lines of the table."""
    table = app.query_one(DeviceList)
    return [table.render_line(y).text.rstrip() for y in range(table.size.height)]


def play(scene, script, size=(80, 24)):
    async def run():
        app = scene.make_app()
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await script(app, pilot)
        return app

    return asyncio.run(run())


def test_open_round_fits_into_80_columns():
    scene = Scene()
    scene.deliver_until(50.0)

    async def script(app, pilot):
        assert get_text(app, "head").splitlines()[0].startswith("fleet: round 3 of 1000, federate, ")
        assert "accuracy mean " in get_text(app, "head")
        assert get_text(app, "columns").endswith("why not in the round")
        assert get_rows(app)[0].startswith("pi-037         rejected     3")
        assert [line.split()[0] for line in get_rows(app)[1:5]] == ["pi-027", "pi-007", "pi-057", "pi-017"]
        assert "silent: no answer" in get_rows(app)[1]
        assert "paused: on battery" in get_rows(app)[4]
        assert all(len(line) <= 78 for line in get_rows(app))
        await pilot.resize_terminal(130, 40)
        await pilot.pause()
        await pilot.pause()
        assert "°C" in get_text(app, "columns")

    play(scene, script)


def test_verdict_is_shown_above_the_devices_when_done():
    scene = Scene(devices=3)
    scene.deliver_until(50.0)
    done = State(
        federation="fleet",
        session="s",
        phase="done",
        round=1001,
        rounds=1000,
        cohort_size=0,
        deadline_s=60.0,
        plan="ab" * 32,
        ts=scene.now,
    )
    verdict = judge_federation(
        {"id": f"pi-00{i}", "accuracy_local": 0.5, "accuracy_shipped": 0.75} for i in range(3)
    )
    message = make_verdict_message(verdict, "s", scene.now, with_rows=True)
    topics = FederationTopics("fleet")
    scene.view.take(topics.verdict, encode_json(message), scene.now)
    scene.view.take(topics.state, encode_json(done), scene.now)

    async def script(app, pilot):
        lines = get_text(app, "head").splitlines()
        assert lines[0] == "fleet: done after 1000 rounds"
        assert lines[2].split() == ["mean", "50.0%", "-", "75.0%", "-"]
        assert verdict.sentence in " ".join(line.strip() for line in lines)
        assert any(line.startswith("pi-000         finished") for line in get_rows(app))

    play(scene, script)


def test_keys_sort_filter_and_open_a_device():
    scene = Scene()
    scene.deliver_until(50.0)

    async def script(app, pilot):
        await pilot.press("s")
        assert [line.split()[0] for line in get_rows(app)[:3]] == ["pi-000", "pi-001", "pi-002"]
        await pilot.press("r")
        assert get_rows(app)[0].startswith("pi-059")
        await pilot.press("r", "S")
        assert get_rows(app)[0].startswith("pi-037")
        await pilot.press("slash", *"pi-01")
        assert len(app.query_one(DeviceList).devices) == 10
        assert "10 match 'pi-01'" in get_text(app, "keys")
        await pilot.press("enter")
        assert app.focused is app.query_one(DeviceList)
        assert get_rows(app)[0].startswith("pi-017         paused")
        await pilot.press("down", "d")
        await pilot.pause()
        assert isinstance(app.screen, DeviceScreen)
        assert app.screen.client_id.startswith("pi-01")
        lines = str(app.screen.query_one("#page", Static).render()).splitlines()
        assert lines[1] == "last error: none"
        assert any(line.startswith("gate, expert 3") for line in lines)
        await pilot.press("escape")
        assert not isinstance(app.screen, DeviceScreen)
        await pilot.press("slash", "escape")
        assert app.query_one(Input).value == ""
        assert len(app.query_one(DeviceList).devices) == 60
        await pilot.press("q")

    app = play(scene, script)
    assert (app.return_value, app.return_code) == (None, 0)


def test_a_refresh_redraws_only_changed_devices():
    scene = Scene(8)
    scene.deliver_until(40.15)

    async def script(app, pilot):
        await pilot.press("s")
        table = app.query_one(DeviceList)
        before = get_rows(app)
        await pilot.pause()
        drawn = []
        table.refresh_line = lambda y: drawn.append(y)
        app.update()
        assert drawn == []
        scene.deliver_until(40.2)
        topic, payload = next(
            (topic, payload)
            for _, topic, payload, _ in scene.due
            if topic.endswith("/begin") and "pi-003" in topic
        )
        scene.view.take(topic, payload, OPENED + 40.2)
        app.update()
        assert drawn == [3]
        assert ("training" in before[3], "sent" in get_rows(app)[3]) == (True, True)

    play(scene, script)


def test_selected_device_stays_visible_among_500_devices():
    scene = Scene(500)
    scene.deliver_until(5.0)

    async def script(app, pilot):
        table = app.query_one(DeviceList)
        await pilot.press("s", "end")
        await pilot.pause()
        assert (table.chosen, get_rows(app)[-1].split()[0]) == ("pi-499", "pi-499")
        await pilot.press("home", "pagedown", "down")
        await pilot.pause()
        assert table.chosen == "pi-011"
        assert any(line.startswith("pi-011") for line in get_rows(app))

    play(scene, script)


def test_an_unreachable_broker_is_shown_and_a_broken_link_ends_the_view():
    scene = Scene(3)

    async def check_reconnecting(app, pilot):
        scene.connected = False
        app.update()
        assert get_text(app, "head").startswith("the broker is unreachable, reconnecting; fleet")

    play(scene, check_reconnecting)

    async def run_with_broken_link():
        def pump():
            raise LinkError("the link broke; start again")

        app = Monitor(pump, lambda: snapshot(scene.view, 1.0), lambda: True)
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.pause()
        return app.return_value

    assert asyncio.run(run_with_broken_link()) == "the link broke; start again"


def test_an_empty_federation_is_shown():
    async def script(app, pilot):
        assert (
            get_text(app, "head") == "fleet: no message from an aggregator yet\nno message from a device yet"
        )
        await pilot.press("d", "s", "down")

    play(Scene(3), script)
