"""Each rule of `python -m tests.lint` reports a planted problem with its line, and accepts the correction."""

import pytest

from tests.lint import names
from tests.lint.__main__ import list_problems
from tests.lint.source import Source, read_sources

UNDOCUMENTED = '''
class Queue:
    def put_item(self, item, priority=0):
        """Put an item.

        Args:
            item: the item.
        """
'''
RESTATED = '''
def put_item(queue: Queue, item: object) -> None:
    """Put an item into a queue.

    Args:
        item: ENTRY
    """
'''
DOCUMENTED = UNDOCUMENTED.replace("item: the item.", "item: the item.\n            priority: a number.")
EXEMPT = '''
class Window(Queue):
    def put_item(self, item, priority=0):
        """Put an item."""


def _hide(a, b): ...


@click.command()
def show(a, b):
    """Show."""
'''
RECORD = """
@dataclass(frozen=True)
class Base:
    MOST: ClassVar[int] = 1
    a: int
    b: int = field(init=False)


@dataclass(frozen=True)
class Window(Base):
    c: int
    d: int
    e: int = 0


window = Window(1, c=2, d=3)
"""
# Rules about the whole product need the whole product; see the last two tests.
MACHINE = """
class Driver:
    def __init__(self, a, b, c, d, e=0): ...


driver = Driver(1, 2, 3, 4, 5)
"""
PROBLEMS = [
    ("devices/x.py", MACHINE, MACHINE.replace("4, 5)", "4, e=5)"), "Driver gets 5 unnamed values; name each"),
    *(
        ("devices/x.py", RECORD, RECORD.replace(*change), "devices/x.py:16: Window has more than 3 fields")
        for change in (("Window(1", "Window(a=1"), ("    e: int = 0\n", ""), ("= Window", "= other.Window"))
    ),
    (
        "tests/x.py",
        RECORD,
        RECORD.replace("@dataclass(frozen=True)\n", ""),
        "tests/x.py:16: Window has more than 3 fields",
    ),
    (
        "devices/x.py",
        "import mqtt_broker.commands",
        "import edgefl.protocol.wire",
        "devices must not import mqtt_broker",
    ),
    ("edgefl/protocol/server/x.py", "import time", "import math", "imports time; let the driver pass"),
    ("edgefl/protocol/device/x.py", "import random", "import math", "imports random; let the driver pass"),
    (
        "edgefl/learning/algorithms/papers/x.py",
        "import edgefl.learning.algorithms.papers.fedprox",
        "import edgefl.learning.algorithms.papers.fedavg",
        "imports edgefl.learning.algorithms.papers.fedprox; move what both papers need",
    ),
    ("edgefl/protocol/server/x.py", "open('a')", "close('a')", "opens a file; let the driver do this"),
    ("edgefl/protocol/wire/x.py", "import pickle", "import json", "imports pickle"),
    (
        "devices/x.py",
        "import paho.mqtt.client",
        "import edgefl.protocol.transport.link",
        "which is for edgefl/protocol/transport/",
    ),
    (
        "edgefl/program/plan/x.py",
        "import flatbuffers",
        "import numpy",
        "which is for edgefl/program/plan/tflite.py",
    ),
    (
        "edgefl/protocol/wire/x.py",
        "\nfrom edgefl import cli",
        "\nfrom edgefl.base import errors",
        "the room cli comes after protocol",
    ),
    (
        "edgefl/program/plan/x.py",
        "import edgefl.program.compiler.build",
        "import edgefl.base.errors",
        "the part compiler comes after plan",
    ),
    (
        "edgefl/simulation/simulate.py",
        "import edgefl.simulation.runs.pipeline",
        "import edgefl.simulation.clients",
        "the part runs comes after simulate",
    ),
    (
        "edgefl/base/config/x.py",
        "\nfrom edgefl import simulate",
        "\nfrom edgefl import __version__",
        "imports edgefl.simulate, which is for users",
    ),
    (
        "edgefl/protocol/wire/x.py",
        "import keras",
        "def load_model():\n    import keras",
        "imports keras when it is imported",
    ),
    (
        "edgefl/protocol/wire/x.py",
        "if USED:\n    import scipy",
        "if TYPE_CHECKING:\n    import scipy",
        "imports scipy when it is imported",
    ),
    ("tests/x.py", "class FileHandler: ...", "class FileWriter: ...", "the name FileHandler is vague"),
    ("tests/x.py", "x = (1,2)  # fmt" + ": skip", "x = (1, 2)", "switches the formatter off"),
    ("edgefl/protocol/wire/x.py", "\n\nkeptRows = 1", "\n\nrows = 1", "keptRows has the forbidden word kept"),
    ("edgefl/protocol/wire/x.py", "def rows(): ...", "def read_rows(): ...", "rows begins with no verb"),
    ("edgefl/base/types.py", UNDOCUMENTED, DOCUMENTED, "Queue.put_item does not document priority"),
    *(
        (
            "devices/x.py",
            RESTATED.replace("ENTRY", bad),
            RESTATED.replace("ENTRY", good),
            "entry of item says",
        )
        for bad, good in (
            ("the item.", "the item, shape (n,)."),
            ("an item of the queue.", "an item, or None to end the queue."),
        )
    ),
    (
        "edgefl/protocol/wire/x.py",
        'raise WireError(f"{a} is wrong")',
        'raise WireError(f"{a} is wrong; pass b")',
        "the error '{} is wrong' names no remedy",
    ),
    (
        "devices/x.py",
        'raise DataError("no " + "shard")',
        'raise DataError("no shard, " + "expected one")',
        "the error 'no shard' names no remedy",
    ),
    ("devices/x.py", 'path = "plans.json"', 'path = "other.json"', "the file name 'plans.json'"),
    ("devices/x.py", 'path = out / "lock"', 'name = "lock"', "the file name 'lock'"),
]


def list_problems_of_file(path: str, text: str) -> list[str]:
    return [problem for problem in list_problems([Source(path, text)]) if problem.startswith(path)]


@pytest.mark.parametrize(("path", "bad", "good", "message"), PROBLEMS)
def test_rule_reports_a_planted_problem_and_accepts_the_correction(
    path: str, bad: str, good: str, message: str
) -> None:
    line = 1 + bad.count("\n", 0, len(bad) - len(bad.lstrip("\n")))
    problems = list_problems_of_file(path, bad)
    assert len(problems) == 1, problems
    assert message in problems[0]
    if bad not in (UNDOCUMENTED, RECORD, MACHINE) and "if USED" not in bad:
        assert problems[0].startswith(f"{path}:{line}: ")
    assert list_problems_of_file(path, good) == []


def test_methods_of_subclasses_private_functions_and_commands_need_no_argument_entries() -> None:
    assert list_problems_of_file("edgefl/base/types.py", EXEMPT) == []


def test_all_python_files_of_the_project_are_read() -> None:
    paths = {source.path for source in read_sources()}
    assert {"edgefl/protocol/wire/topics.py", "devices/service.py", "tests/lint/test_rules.py"} <= paths
    assert len(paths) > 900


def test_names_of_several_modules_need_a_role() -> None:
    one, two = (Source(f"edgefl/protocol/wire/{name}.py", "def read_rows(): ...") for name in ("one", "two"))
    problems = list(names.check_shared_names([one, two]))
    assert "edgefl/protocol/wire/one.py, edgefl/protocol/wire/two.py define read_rows" in problems[0]
    assert any("has a role for LOGGER, which no module defines" in problem for problem in problems)
    assert not any("read_rows" in problem for problem in names.check_shared_names([one]))


def test_unused_verbs_and_exceptions_are_reported() -> None:
    problems = list(
        names.check_unused_entries([Source("edgefl/protocol/wire/one.py", "def read_rows(): ...")])
    )
    verbs = next(problem for problem in problems if "verbs.txt" in problem).split()
    assert "write" in verbs and "read," not in verbs
    assert any("'optimizers'" in problem for problem in problems)


@pytest.mark.parametrize(
    ("identifier", "parts"),
    [
        ("readTensor_byName", ["read", "tensor", "by", "name"]),
        ("__HTTPServer", ["http", "server"]),
        ("one_hot", ["one", "hot"]),
        ("conv2d", ["conv2d"]),
    ],
)
def test_an_identifier_is_split_into_its_parts(identifier: str, parts: list[str]) -> None:
    assert names.split_identifier(identifier) == parts
