"""The common style of all pictures: one palette for colour-blind readers, and reproducible files.

The hues are from Okabe and Ito, Color Universal Design, 2008. Some are darker here, for a contrast of 3 to 1
with white.
"""

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgefl.base.errors import ConfigError
from edgefl.base.system.files import write_atomic

THEME_COLOURS: dict[str, tuple[str, str]] = {
    "ink": ("#1b1f24", "#e8eaed"),
    "muted": ("#57606a", "#a3acb8"),
    "grid": ("#d3d9e0", "#3a424d"),
    "blue": ("#0072b2", "#5cb0ee"),
    "vermilion": ("#d55e00", "#ff8f4d"),
    "green": ("#008f68", "#3fd0a4"),
    "purple": ("#aa4f86", "#e79ac4"),
    "orange": ("#b97a00", "#f2c14e"),
    "sky": ("#3b93c9", "#a8dcff"),
    "ground": ("#fefefe", "#14171b"),
    "grey": ("#737c87", "#98a2af"),
    "wine": ("#7a2048", "#f2708f"),
}
"""Each colour in the light and in the dark theme."""
PAGE_COLOURS: dict[str, tuple[str, str]] = {
    "page": ("#f6f7f9", "#14171b"),
    "card": ("#ffffff", "#1d2126"),
    "line": ("#d3d9e0", "#3a424d"),
    "link": ("#0b5cad", "#8cc4ff"),
}
"""The colours of a page in the light and in the dark theme."""
INK, MUTED, GRID, GROUND = (THEME_COLOURS[name][0] for name in ("ink", "muted", "grid", "ground"))
PALETTE = tuple(
    THEME_COLOURS[name][0]
    for name in ("blue", "vermilion", "green", "purple", "orange", "sky", "grey", "wine")
)
DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1.2, 1.2)),
    (0, (6, 1.5, 1.2, 1.5)),
    (0, (3, 1, 1, 1, 1, 1)),
)
MARKERS = ("o", "^", "s", "v", "D", "P", "X", "*")
PALETTE_INDEX = {
    "mixture": 0,
    "federated": 1,
    "local": 2,
    "int8": 3,
    "tuned": 4,
    "adapted": 5,
    "ensemble": 6,
    "expert": 7,
}
"""Models that have the same colour in every picture, with their index in the palette."""
SEQUENTIAL = "cividis"
"""Colour map of heat maps. Its brightness follows the value, for colour-blind readers too."""
IMAGE_FORMATS = ("svg", "png", "pdf")
_METADATA: dict[str, dict[str, str | None]] = {
    "svg": {"Date": None, "Creator": None, "Type": None, "Format": None},
    "pdf": {"CreationDate": None},
    "png": {},
}
_STYLE: dict[str, Any] = {
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.labelsize": 9.5,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.titlecolor": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "axes.facecolor": "none",
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "edgefl",
    "image.interpolation": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "axes.unicode_minus": False,
    "figure.dpi": 100,
    "hatch.linewidth": 0.6,
}


def choose_colour(name: str, index: int) -> str:
    """Return the colour of a model, or of series number `index` for any other name.

    Args:
        name: name of the series. The names in `PALETTE_INDEX` always have the same colour.
        index: position of the series in its chart, from 0. Colours repeat after the last one.
    """
    return PALETTE[PALETTE_INDEX.get(name, index) % len(PALETTE)]


def freeze_colour(shade: str) -> str:
    """Return a colour that looks the same but that the dark theme does not replace.

    It differs in its last bit, so that it equals no colour of the theme.
    """
    return f"#{int(shade[1:], 16) ^ 1:06x}"


def draw_grey_matrix(axes: Any, matrix: Any) -> Any:
    """Draw probabilities as a grey matrix, with white for 0 and black for 1, and return the image.

    Args:
        axes: matplotlib axes.
        matrix: shape (rows, columns), float64.
    """
    image = axes.imshow(matrix, cmap="Greys", vmin=0, vmax=1, aspect="auto")
    axes.grid(False)
    axes.spines[:].set_visible(True)
    axes.tick_params(length=0)
    return image


@contextmanager
def apply_style() -> Iterator[None]:
    """Apply the common style to drawing and saving.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    import matplotlib

    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a client's name may be in any script
        yield


def draw_figure(draw: Callable[[Any], None], width: float, height: float) -> Any:
    """Return a matplotlib figure that `draw` has drawn into.

    Args:
        width: in inches.
        height: in inches.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure  # no pyplot: it keeps global state and looks for a display

    with apply_style():
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure)
    return figure


def encode_figure(figure: Any, image_format: str, background: str = "white", dpi: int = 150) -> bytes:
    """Return the figure as a file without a date. The same figure always gives the same bytes.

    Args:
        figure: a matplotlib figure.
        image_format: `svg`, `png` or `pdf`.
        background: a matplotlib colour.
        dpi: resolution of pixel images, in dots per inch.
    """
    buffer = io.BytesIO()
    with apply_style():
        figure.savefig(
            buffer, format=image_format, metadata=_METADATA[image_format], facecolor=background, dpi=dpi
        )
    return buffer.getvalue()


def parse_image_format(path: Path) -> str:
    """Return the image format of the suffix of a path.

    Raises:
        ConfigError: the suffix is not svg, png or pdf.
    """
    image_format = path.suffix.removeprefix(".").lower()
    if image_format not in IMAGE_FORMATS:
        raise ConfigError(
            f"{path} ends in {path.suffix or 'nothing'}, expected .{', .'.join(IMAGE_FORMATS)}; rename the "
            "picture"
        )
    return image_format


def save_figure(figure: Any, path: Path) -> None:
    """Write a matplotlib figure in the format of the path's suffix.

    Args:
        path: file to write, with the suffix svg, png or pdf. Missing parent directories are created.

    Raises:
        ConfigError: the suffix is not svg, png or pdf.
        OSError: the file cannot be written.
    """
    write_atomic(path, encode_figure(figure, parse_image_format(path)))


def shorten_name(text: object, max_length: int = 28) -> str:
    """Return a name for a picture.

    The middle of a long name is left out. Each unprintable character becomes U+FFFD.

    Args:
        text: the name, or an object that is converted to text.
        max_length: maximum length, in characters.
    """
    shown = "".join(letter if letter.isprintable() else "\ufffd" for letter in str(text))
    return (
        shown
        if len(shown) <= max_length
        else f"{shown[: max_length // 2]}…{shown[-(max_length - max_length // 2 - 1) :]}"
    )
