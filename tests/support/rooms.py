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
# A room imports itself and rooms before it, also inside functions. The parts of a room have an order too.
ROOMS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "edgefl": {
        "base": (
            "errors",
            "types",
            "rng",
            "names",
            "options",
            "codecs",
            "system",
            "storage",
            "tasks",
            "config",
            "verdict",
            "round_scalars",
        ),
        "program": ("plan", "models", "compiler", "learner"),
        "data": (),
        "learning": ("checkpoint", "personal_model", "algorithms", "privacy", "client"),
        "protocol": ("wire", "transport", "security", "device", "server"),
        "simulation": (
            "simulated_client",
            "clients",
            "communication_cost",
            "in_memory_store",
            "gradient_divergence",
            "engines",
            "measurement",
            "diagnostics",
            "simulate",
            "virtual_time",
            "runs",
        ),
        "watch": ("loggers", "monitor", "report", "history", "audit", "dashboard"),
        "lab": ("figures", "reproduce", "wire_bench", "tune"),
        "cli": ("completion", "doctor", "init", "demo", "bench", "main", "commands"),
        "__init__": (),
        "__main__": (),
    },
    "devices": dict.fromkeys(
        (
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
        (),
    ),
    "mqtt_broker": dict.fromkeys(
        (
            "__init__",
            "broker",
            "aggregator",
            "integrations",
            "commands",
        ),
        (),
    ),
    "firmware_export": dict.fromkeys(
        (
            "__init__",
            "tflite",
            "quantize",
            "codegen",
            "ota",
            "firmware",
            "certificate",
            "commands",
        ),
        (),
    ),
}
MACHINES = {"devices": "device", "mqtt_broker": "aggregator", "firmware_export": "export"}
"""The machines that run the packages beside `edgefl`."""
ROW = 21
MARGIN = 150
NAMES = MARGIN + 12
TEXTS = NAMES + 160
DOTS = TEXTS + 660
WIDTH = DOTS + 330
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2933 }
.room { font-family: ui-monospace, monospace; font-weight: 600 }
.part { font-family: ui-monospace, monospace }
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
    return {place_of(path)[1] for path in sources(package)}


def parts_of(package: str, room: str) -> set[str]:
    """Return the parts that a room has on disk."""
    places = map(place_of, sources(package))
    return {part for _, other, part in places if other == room and part not in ("", "__init__")}


def place_of(path: Path) -> tuple[str, str, str]:
    """Return package, room and part of a file. The part is empty for a module that is a room."""
    package, room, part, *_ = (*path.relative_to(ROOT).with_suffix("").parts, "")
    return package, room, part


def imports_of(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (package, room, part) for each import of a room, anywhere in the file. The part may be empty."""
    for name in imported(ast.walk(parse(path))):
        package, room, part, *_ = (*name.split("."), "", "")
        rooms = ROOMS.get(package, {})
        if room in rooms:
            yield package, room, part if part in rooms[room] else ""


def summary(package: str, room: str, part: str = "") -> str:
    """Return the first sentence of the docstring of a room or of one of its parts."""
    folder = ROOT / package / room / part
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    text = " ".join((ast.get_docstring(parse(path)) or "").partition("\n\n")[0].split())
    return text.replace("`", "")


def room_imports(package: str) -> dict[str, set[str]]:
    """Return the rooms of the same package that each room imports, itself left out."""
    found: dict[str, set[str]] = {room: set() for room in ROOMS[package]}
    for path in sources(package):
        room = place_of(path)[1]
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
    """Return the picture as SVG: rooms from top to bottom, an arc to each room that another builds on.

    A dot shows that the package of a machine imports a room of `edgefl`, or this part of it.
    """
    users = {package: package_imports(package) for package in PACKAGES[1:]}
    rows: list[str] = []
    y = ROW
    for package, rooms in ROOMS.items():
        title = f"{package}/" + (f" ({MACHINES[package]})" if package in MACHINES else "")
        rows.append(f'<text class="head" x="{NAMES}" y="{y}">{title}</text>')
        if package == "edgefl":
            rows += [
                f'<text class="note" x="{DOTS + 110 * k}" y="{y}">{machine}</text>'
                for k, machine in enumerate(MACHINES.values())
            ]
        y += ROW
        places: dict[str, int] = {}
        for room, parts in rooms.items():
            if room.startswith("__"):
                continue
            places[room] = y
            rows.append(f'<line class="line" x1="{NAMES}" x2="{WIDTH - 12}" y1="{y + 6}" y2="{y + 6}"/>')
            for part in ("", *parts):
                style, x = ("part", NAMES + 14) if part else ("room", NAMES)
                rows.append(f'<text class="{style}" x="{x}" y="{y}">{part or room}</text>')
                note = escape(summary(package, room, part))
                rows.append(f'<text class="note" x="{TEXTS}" y="{y}">{note}</text>')
                if package == "edgefl" and (part or not parts):
                    rows += [
                        f'<circle class="dot" cx="{DOTS + 110 * k + 30}" cy="{y - 4}" r="4"/>'
                        for k, user in enumerate(PACKAGES[1:])
                        if (room, part) in users[user]
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


def package_imports(package: str) -> set[tuple[str, str]]:
    """Return (room, part) of `edgefl` for each import of another package."""
    return {
        (room, part)
        for path in sources(package)
        for owner, room, part in imports_of(path)
        if owner == "edgefl"
    }


if __name__ == "__main__":
    PICTURE.write_text(draw())
    print(f"drew {PICTURE.relative_to(ROOT)}")
