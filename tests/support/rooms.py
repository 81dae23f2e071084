"""The rooms of the code in reading order, their imports, and a picture of both.

python tests/support/rooms.py            # draws docs/assets/rooms.svg anew
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "assets" / "rooms.svg"
PACKAGES = ("edgefl", "devices", "mqtt_broker", "firmware_export")
# A room imports itself and rooms before it, also inside functions.
ROOMS: Mapping[str, tuple[str, ...]] = {
    "edgefl": (
        "__init__",
        "errors",
        "types",
        "rng",
        "system",
        "verdict",
        "tasks",
        "plan",
        "wire",
        "storage",
        "config",
        "data",
        "models",
        "compiler",
        "learner",
        "algorithms",
        "security",
        "privacy",
        "client",
        "transport",
        "client_machine",
        "server",
        "loggers",
        "simulation",
        "runs",
        "report",
        "tune",
        "audit",
        "reproduce",
        "monitor",
        "dashboard",
        "doctor",
        "init",
        "demo",
        "bench",
        "cli",
        "__main__",
    ),
    "devices": (
        "__init__",
        "boards",
        "host_sensors",
        "conditions",
        "availability",
        "store",
        "blob_cache",
        "readings",
        "recorder",
        "anomaly_scores",
        "detector",
        "local_dataset",
        "learners",
        "training",
        "plan_trial",
        "plan_check",
        "settings",
        "identity",
        "join",
        "telemetry",
        "storage",
        "messages",
        "driver",
        "masked_attempt",
        "export",
        "worker",
        "install",
        "service",
        "commands",
    ),
    "mqtt_broker": ("__init__", "broker", "aggregator", "integrations", "commands"),
    "firmware_export": (
        "__init__",
        "tflite",
        "quantize",
        "codegen",
        "ota",
        "firmware",
        "certificate",
        "commands",
    ),
}
ROW = 21
MARGIN = 150
NAMES = MARGIN + 12
TEXTS = NAMES + 160
DOTS = TEXTS + 660
WIDTH = DOTS + 330
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2933 }
.room { font-family: ui-monospace, monospace; font-weight: 600 }
.note { fill: #52606d }
.head { font-weight: 600 }
.arc { fill: none; stroke: #00796b; stroke-width: 1.2; opacity: .55 }
.dot { fill: #00796b }
.line { stroke: #cbd2d9 }
.ground { fill: #ffffff }
@media (prefers-color-scheme: dark) {
  text { fill: #e4e7eb } .note { fill: #9aa5b1 } .arc { stroke: #4db6ac } .dot { fill: #4db6ac }
  .line { stroke: #3e4c59 } .ground { fill: #1f2933 }
}
"""


def sources(package: str) -> list[Path]:
    """Return the Python files of a package, sorted."""
    return sorted((ROOT / package).rglob("*.py"))


def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(), str(path))


def imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names that these nodes import; `from a import b` gives `a` and `a.b`."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rooms_of(package: str) -> set[str]:
    """Return the rooms that a package has on disk."""
    return {path.relative_to(ROOT / package).with_suffix("").parts[0] for path in sources(package)}


def imports_of(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (package, room, imported name) for each import of a room, anywhere in the file."""
    for name in imported(ast.walk(parse(path))):
        package, *rest = name.split(".")
        if rest and rest[0] in ROOMS.get(package, ()):
            yield package, rest[0], name


def summary(package: str, room: str) -> str:
    """Return the first sentence of a room's docstring."""
    folder = ROOT / package / room
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    text = " ".join((ast.get_docstring(parse(path)) or "").partition("\n\n")[0].split())
    return text.replace("`", "")


def room_imports(package: str) -> dict[str, set[str]]:
    """Return the rooms of the same package that each room imports, itself left out."""
    found: dict[str, set[str]] = {room: set() for room in ROOMS[package]}
    for path in sources(package):
        room = path.relative_to(ROOT / package).with_suffix("").parts[0]
        found[room] |= {other for owner, other, _ in imports_of(path) if owner == package and other != room}
    return found


def direct(imports: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """Return the imports that no chain of other imports implies (the transitive reduction)."""

    def reaches(room: str, target: str) -> bool:
        return any(other == target or reaches(other, target) for other in imports[room])

    return [
        (room, other)
        for room, others in imports.items()
        for other in others
        if not any(step != other and reaches(step, other) for step in others)
    ]


def draw() -> str:
    """Return the picture as SVG: rooms from top to bottom, an arc to each room that another builds on."""
    users = {package: package_imports(package) for package in PACKAGES[1:]}
    rows: list[str] = []
    y = ROW
    for package in ROOMS:
        rows.append(f'<text class="head" x="{NAMES}" y="{y}">{package}/</text>')
        if package == "edgefl":
            rows += [
                f'<text class="note" x="{DOTS + 110 * k}" y="{y}">{user}/</text>'
                for k, user in enumerate(PACKAGES[1:])
            ]
        y += ROW
        places: dict[str, int] = {}
        for room in ROOMS[package]:
            if room.startswith("__"):
                continue
            places[room] = y
            rows.append(f'<line class="line" x1="{NAMES}" x2="{WIDTH - 12}" y1="{y + 6}" y2="{y + 6}"/>')
            rows.append(f'<text class="room" x="{NAMES}" y="{y}">{room}</text>')
            rows.append(f'<text class="note" x="{TEXTS}" y="{y}">{escape(summary(package, room))}</text>')
            if package == "edgefl":
                rows += [
                    f'<circle class="dot" cx="{DOTS + 110 * k + 30}" cy="{y - 4}" r="4"/>'
                    for k, user in enumerate(PACKAGES[1:])
                    if room in users[user]
                ]
            y += ROW
        for room, other in sorted(direct(room_imports(package))):
            if room in places and other in places:
                rows.append(arc(NAMES - 6, places[room] - 4, places[other] - 4))
        y += ROW
    body = "\n".join(rows)
    size = f'viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" '
        'aria-label="The rooms of the code and their imports">\n'
        f'<style>{STYLE}</style>\n<rect class="ground" width="{WIDTH}" height="{y}"/>\n{body}\n</svg>\n'
    )


def arc(x: int, low: int, high: int) -> str:
    """Return an arc to the left of `x`, the wider the longer it is."""
    left = x - min(MARGIN, 14 + round(5.4 * (low - high) ** 0.5))
    return f'<path class="arc" d="M{x} {low}C{left} {low} {left} {high} {x} {high}"/>'


def package_imports(package: str) -> set[str]:
    """Return the rooms of `edgefl` that another package imports."""
    return {room for path in sources(package) for owner, room, _ in imports_of(path) if owner == "edgefl"}


if __name__ == "__main__":
    PICTURE.write_text(draw())
    print(f"drew {PICTURE.relative_to(ROOT)}")
