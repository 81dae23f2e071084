"""Rules about imports: they run one way, and no device loads TensorFlow."""

import ast
from collections.abc import Iterable, Iterator, Sequence

import edgefl
from tests.lint.source import Problem, Source
from tests.support.rooms import PACKAGES, ROOMS, ROOT, imported, place_of

MAY_IMPORT = {
    "edgefl": {"edgefl"},
    "devices": {"devices", "edgefl"},
    "mqtt_broker": {"mqtt_broker", "edgefl"},
    "firmware_export": {"firmware_export", "edgefl"},
}
UNPICKLING = {"pickle", "cPickle", "dill", "joblib", "marshal", "shelve"}
HEAVY = {
    "tensorflow",
    "keras",
    "tf_keras",
    "sklearn",
    "scipy",
    "matplotlib",
    "amqtt",
    "tflite_micro",
    "tensorflow_model_optimization",
    "dp_accounting",
    "tensorboardX",
    "mlflow",
    "prometheus_client",
}
# Rooms that only run with TensorFlow may import it when they are loaded. A device never loads these rooms.
TENSORFLOW = ("edgefl/program/models/", "edgefl/program/compiler/", "edgefl/program/learner/keras.py")
PAHO = "edgefl/protocol/transport/"
MACHINES = ("edgefl/protocol/server/", "edgefl/protocol/device/")
"""Both machines take events and return actions. Their drivers have the clock, the link and the files."""
OUTSIDE_OF_MACHINES = {
    "asyncio",
    "datetime",
    "http",
    "os",
    "random",
    "secrets",
    "select",
    "shutil",
    "socket",
    "ssl",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "urllib",
}
FACE = frozenset(edgefl.__all__)
"""The names that `edgefl` imports for its users when they are first used."""
PAPERS = "edgefl/learning/algorithms/papers/"
BASE_PAPER = "edgefl.learning.algorithms.papers.fedavg"
"""The only algorithm that others build on. A reader of one paper needs no other paper."""
READS_FILES = {"edgefl/protocol/server/config_check.py"}
"""Runs before a federation starts, and looks at the model file."""
FLATBUFFERS = "edgefl/program/plan/tflite.py"


def check_packages(source: Source) -> Iterator[Problem]:
    """Yield imports of packages that this file must not import."""
    for line, name in _list_imports(ast.walk(source.tree)):
        top = name.partition(".")[0]
        if top in PACKAGES and top not in MAY_IMPORT[source.path.partition("/")[0]]:
            yield line, f"imports {name}, and {source.path.partition('/')[0]} must not import {top}"
        if top in UNPICKLING:
            yield line, f"imports {name}, which runs code of the file that it reads"
        if top == "paho" and not source.path.startswith(PAHO):
            yield line, f"imports {name}, which is for {PAHO}"
        if name.startswith(("flatbuffers", "ai_edge_litert.schema")) and source.path != FLATBUFFERS:
            yield line, f"imports {name}, which is for {FLATBUFFERS}"


def check_machines(source: Source) -> Iterator[Problem]:
    """Yield what would give a machine a clock, a link or a file of its own."""
    if not source.path.startswith(MACHINES) or source.path in READS_FILES:
        return
    for line, name in _list_imports(ast.walk(source.tree)):
        if name.partition(".")[0] in OUTSIDE_OF_MACHINES or name.startswith("edgefl.protocol.transport"):
            yield line, f"imports {name}; let the driver pass what is needed in an event"
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called == "open" or called.endswith(
            (".open", ".read_bytes", ".read_text", ".write_bytes", ".write_text")
        ):
            yield node.lineno, "opens a file; let the driver do this for an action"


def check_papers(source: Source) -> Iterator[Problem]:
    """Yield imports of one paper's algorithm by another one."""
    if not source.path.startswith(PAPERS):
        return
    for line, name in _list_imports(ast.walk(source.tree)):
        if name.startswith("edgefl.learning.algorithms.papers.") and not name.startswith(BASE_PAPER):
            yield line, f"imports {name}; move what both papers need to edgefl/learning/algorithms"


def check_room_order(source: Source) -> Iterator[Problem]:
    """Yield imports of rooms, or of parts of the same room, that come later in `tests/support/rooms.py`."""
    package, room, part = place_of(ROOT / source.path)
    rooms = ROOMS[package]
    for line, name in _list_imports(ast.walk(source.tree)):
        if name.removeprefix("edgefl.") in FACE and room != "__init__":
            yield line, f"imports {name}, which is for users; import it from its module"
        owner, other, other_part, *_ = (*name.split("."), "", "")
        if owner != package or other not in rooms:
            continue
        if _comes_after(tuple(rooms), other, room):
            yield line, f"imports {name}, and the room {other} comes after {room}"
        elif other == room and _comes_after(rooms[room], other_part, part):
            yield line, f"imports {name}, and the part {other_part} comes after {part}"


def _comes_after(order: Sequence[str], name: str, other: str) -> bool:
    return name in order and other in order and order.index(name) > order.index(other)


def check_heavy_imports(source: Source) -> Iterator[Problem]:
    """Yield heavy packages that are loaded when the module is imported."""
    if source.path.startswith(TENSORFLOW):
        return
    for line, name in _list_imports(_walk_import_time_nodes(source.tree)):
        if name.partition(".")[0] in HEAVY:
            yield line, f"imports {name} when it is imported; import it in the function that needs it"


def _list_imports(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each import."""
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((node.lineno, name) for name in imported([node]))


def _walk_import_time_nodes(module: ast.Module) -> Iterator[ast.AST]:
    """Yield the syntax nodes that run on import, without function bodies and `if TYPE_CHECKING`."""
    todo: list[ast.AST] = [module]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            todo.extend(node.orelse)
            continue
        yield node
        todo.extend(ast.iter_child_nodes(node))
