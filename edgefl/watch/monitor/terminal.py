"""Live terminal view in Textual (extra `monitor`). It shows a new snapshot about once a second."""

import asyncio
import gc
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Input, Static

from edgefl.base.errors import LinkError
from edgefl.base.system.format import truncate
from edgefl.watch.monitor.device_list import DeviceList
from edgefl.watch.monitor.device_page import format_device_page
from edgefl.watch.monitor.table import SORT_COLUMNS, format_head, format_header, select_devices

REFRESH_S = 1.0
MAX_FAST_DEVICES = 100
"""With more devices, every second refresh is skipped."""
PUMP_S = 0.5
"""Interval at which the queue of the link is emptied, so that it stays short under load."""


class DeviceScreen(Screen[None]):
    """The page of one device."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,d,enter", "app.pop_screen", show=False)]

    def __init__(self, client_id: str) -> None:
        super().__init__()
        self.client_id = client_id

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        yield Static(id="page", markup=False)
        yield Static(Text("Esc back"), id="keys")

    def show(self, tree: dict[str, Any]) -> None:
        """Show the device from a snapshot."""
        device = next((row for row in tree["devices"] if row["id"] == self.client_id), None)
        lines = (
            format_device_page(device, tree["ts"], self.app.size.width - 2, tree["experts"])
            if device
            else [f"{self.client_id} is no longer on the broker"]
        )
        self.query_one("#page", Static).update(Text("\n".join(lines)))


class Monitor(App[str]):
    """The terminal application.

    It exits with a message if the link is permanently broken, otherwise with None.

    Args:
        pump: processes the messages that have arrived.
        snapshot: returns a snapshot of the view.
        is_connected: whether the broker is connected.
    """

    CSS = """
    Screen { background: $background; }
    #head { height: auto; padding: 0 1; }
    #columns { height: 1; padding: 0 1; text-style: bold; }
    DeviceList { height: 1fr; padding: 0 1; overflow-x: hidden; scrollbar-size-vertical: 1; }
    #filter { display: none; height: 1; border: none; padding: 0 1; }
    #keys { height: 1; padding: 0 1; dock: bottom; text-style: dim; }
    #page { height: 1fr; padding: 0 1; overflow-y: auto; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", show=False),
        Binding("slash", "filter", show=False),
        Binding("s", "sort(1)", show=False),
        Binding("S", "sort(-1)", show=False),
        Binding("r", "reverse", show=False),
        Binding("escape", "clear", show=False),
    ]

    def __init__(
        self,
        pump: Callable[[], int],
        snapshot: Callable[[], dict[str, Any]],
        is_connected: Callable[[], bool],
    ) -> None:
        super().__init__()
        self._pump = pump
        self._snapshot = snapshot
        self._is_connected = is_connected
        self.last_snapshot: dict[str, Any] = {}
        self.sort = SORT_COLUMNS[0]
        self.reverse = False
        self.filter_text = ""
        self._texts: dict[str, str] = {}
        self._skipped = False

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        yield Static(id="head", markup=False)
        yield Static(id="columns", markup=False)
        yield DeviceList()
        yield Input(
            placeholder="part of an id, state or reason; Enter applies it, Esc clears it", id="filter"
        )
        yield Static(id="keys", markup=False)

    def on_mount(self) -> None:
        """Start to listen and to refresh."""
        with suppress(NotImplementedError, RuntimeError, ValueError):  # raised outside the main thread
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.exit)
        # Objects loaded so far stay. Frozen, they are not scanned again every few thousand messages.
        gc.freeze()
        self.query_one(DeviceList).focus()
        self.set_interval(PUMP_S, self.listen)
        self.set_interval(REFRESH_S, self.refresh_due)
        self.listen()
        self.update()

    def listen(self) -> None:
        """Process the messages that have arrived. Exit if the link is permanently broken."""
        try:
            self._pump()
        except LinkError as error:
            self.exit(str(error), return_code=1)

    def refresh_due(self) -> None:
        """Refresh every time, or every second time with many devices."""
        self._skipped = not self._skipped and len(self.last_snapshot["devices"]) > MAX_FAST_DEVICES
        if not self._skipped:
            self.update()

    def update(self) -> None:
        """Take a snapshot and show it."""
        self.last_snapshot = self._snapshot()
        self.show()

    def show(self) -> None:
        """Show the last snapshot."""
        width = self.size.width - 2
        lines = format_head(self.last_snapshot, width)
        if not self._is_connected():
            lines[0] = truncate("the broker is unreachable, reconnecting; " + lines[0], width)
        devices = self.screen_stack[0].query_one(DeviceList)
        devices.show(
            select_devices(self.last_snapshot["devices"], self.sort, self.reverse, self.filter_text),
            self.last_snapshot["ts"],
        )
        order = f"{self.sort}{' reversed' if self.reverse else ''}"
        filtered = f", {len(devices.devices)} match {self.filter_text!r}" if self.filter_text else ""
        keys = f"q quit  / filter  s sort: {order}  r reverse  d device{filtered}"
        for name, text in (
            ("head", "\n".join(lines)),
            ("columns", format_header(devices.columns, width, self.last_snapshot["measure"])),
            ("keys", truncate(keys, width)),
        ):
            if self._texts.get(name) != text:
                self._texts[name] = text
                self.screen_stack[0].query_one(f"#{name}", Static).update(Text(text))
        if isinstance(self.screen, DeviceScreen):
            self.screen.show(self.last_snapshot)

    def on_resize(self) -> None:
        """Show the last snapshot in the new width."""
        if self.last_snapshot:
            self.call_after_refresh(self.show)

    def action_filter(self) -> None:
        """Open the input of the filter."""
        filter_input = self.query_one(Input)
        filter_input.display = True
        self.screen.set_focus(filter_input)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Apply the filter while the user types."""
        self.filter_text = event.value
        self._reorder()

    def on_input_submitted(self) -> None:
        """Keep the filter and return to the table."""
        filter_input = self.query_one(Input)
        filter_input.display = False
        self.screen.set_focus(self.query_one(DeviceList))
        if filter_input.value != self.filter_text:
            self.filter_text = filter_input.value
            self._reorder()

    def action_clear(self) -> None:
        """Clear the filter."""
        self.query_one(Input).value = ""
        self.on_input_submitted()

    def action_sort(self, by: int) -> None:
        """Sort by another column: 1 for the next column, -1 for the previous one."""
        self.sort = SORT_COLUMNS[(SORT_COLUMNS.index(self.sort) + by) % len(SORT_COLUMNS)]
        self._reorder()

    def action_reverse(self) -> None:
        """Reverse the order."""
        self.reverse = not self.reverse
        self._reorder()

    def _reorder(self) -> None:
        self.query_one(DeviceList).choose_top()
        self.show()

    def on_device_list_opened(self, event: DeviceList.Opened) -> None:
        """Open the page of a device."""
        screen = DeviceScreen(event.client_id)
        self.push_screen(screen)
        self.call_after_refresh(lambda: screen.show(self.last_snapshot))
