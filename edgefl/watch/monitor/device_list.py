"""Table of devices in the terminal. It formats only visible rows and redraws only changed ones."""

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from edgefl.watch.monitor.table import Column, DeviceRow, choose_columns, format_row

ACTIVITY_STYLES = {
    "rejected": Style(color="red", bold=True),
    "silent": Style(color="red"),
    "offline": Style(dim=True),
    "paused": Style(color="yellow"),
    "slow": Style(color="yellow"),
    "training": Style(color="cyan"),
    "sent": Style(color="green"),
    "finished": Style(color="green"),
}
"""Colours by state. They only repeat what the text says."""
CURSOR_STYLE = Style(reverse=True)


class DeviceList(ScrollView, can_focus=True):
    """A list of devices with a cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "move(-10)", show=False),
        Binding("pagedown", "move(10)", show=False),
        Binding("home", "move(-10000)", show=False),
        Binding("end", "move(10000)", show=False),
        Binding("enter,d", "open", show=False),
    ]

    class Opened(Message):
        """The user opens the page of a device."""

        def __init__(self, client_id: str) -> None:
            super().__init__()
            self.client_id = client_id

    def __init__(self) -> None:
        super().__init__()
        self.devices: Sequence[DeviceRow] = ()
        self.chosen = ""
        self._now = 0.0
        self._drawn: dict[int, tuple[str, str, bool]] = {}

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that fit the terminal."""
        return choose_columns(self.app.size.width)

    @property
    def chosen_line(self) -> int:
        """The line of the chosen device, or 0 if the device is not in the list."""
        return next((y for y, device in enumerate(self.devices) if device["id"] == self.chosen), 0)

    def show(self, devices: Sequence[DeviceRow], now: float) -> None:
        """Replace the devices, and redraw the lines that changed.

        Args:
            devices: device entries of a snapshot, in the order to show.
            now: the time of the snapshot, in seconds since 1970.
        """
        grown = len(devices) != len(self.devices)
        self.devices = devices
        self._now = now
        if not any(device["id"] == self.chosen for device in devices):
            self.chosen = devices[0]["id"] if devices else ""
        if grown:
            self.virtual_size = Size(1, len(devices))  # the list does not scroll sideways
        self._redraw()

    def choose_top(self) -> None:
        """Scroll to the top and choose the first device at the next `show`, for a new order."""
        self.chosen = ""
        self.scroll_to(y=0, animate=False)

    def _redraw(self) -> None:
        top = self.scroll_offset.y
        for y in range(top, top + self.size.height):
            if self._drawn.get(y) != self._format_line(y):
                self.refresh_line(y)

    def _format_line(self, y: int) -> tuple[str, str, bool]:
        if y >= len(self.devices):
            return "", "", False
        device = self.devices[y]
        kind = "slow" if device["slow"] and device["state"] == "training" else device["state"]
        return (
            format_row(device, self.columns, self.scrollable_content_region.width, self._now),
            kind,
            device["id"] == self.chosen,
        )

    def render_line(self, y: int) -> Strip:
        """Return line `y` of the visible part."""
        at = self.scroll_offset.y + y
        text, kind, is_chosen = self._drawn[at] = self._format_line(at)
        if len(self._drawn) > 4096:
            self._drawn.clear()
        style = self.rich_style + ACTIVITY_STYLES.get(kind, Style())
        strip = Strip([Segment(text, style + CURSOR_STYLE if is_chosen and self.has_focus else style)])
        return strip.adjust_cell_length(self.scrollable_content_region.width, style)

    def on_resize(self) -> None:
        """Redraw all lines."""
        self.virtual_size = Size(1, len(self.devices))
        self._drawn.clear()
        self.refresh()

    def action_move(self, by: int) -> None:
        """Move the cursor by a number of lines. A negative number moves it up."""
        if self.devices:
            at = min(max(0, self.chosen_line + by), len(self.devices) - 1)
            self.chosen = self.devices[at]["id"]
            height = self.size.height
            top = self.scroll_offset.y
            if not top <= at < top + height:
                self.scroll_to(y=at if at < top else at - height + 1, animate=False)
            self._redraw()

    def action_open(self) -> None:
        """Open the page of the chosen device."""
        if self.chosen:
            self.post_message(self.Opened(self.chosen))
