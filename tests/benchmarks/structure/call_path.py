"""The files through which a reader follows the calls of one piece of work.

The calls are those of a real run: `CallGraph.observe` records which functions of the project call which ones.
A call through a library, such as a context manager, counts as a call of the function that used the library.
A lambda or a comprehension belongs to the function around it. Code that a module runs on import does not
count.

The reader starts at the root function and reads depth first: each function once, and its calls in the order
in which they first happened. The reader enters the file of a function to read it, and then returns to the
file of the caller.

- functions: number of distinct functions that are read.
- files: number of distinct files of these functions.
- visits: how often the reader enters a file from another file. The file of the root counts too.
- returns: visits to a file that was visited before, so visits minus files.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from itertools import groupby
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[3]
PACKAGES = ("edgefl", "devices", "mqtt_broker", "firmware_export")


class Function(NamedTuple):
    """A function of the project: its file and its qualified name."""

    file: str
    name: str


@dataclass(frozen=True)
class CallPath:
    """The figures that the module's docstring defines."""

    functions: int
    files: int
    visits: int
    returns: int


def compute_call_path(calls: Mapping[Function, Iterable[Function]], root: Function) -> CallPath:
    """Return the figures of a reader who starts at a function."""
    files = list[str]()
    read = set[Function]()

    def follow(function: Function) -> None:
        read.add(function)
        files.append(function.file)
        for callee in calls.get(function, ()):
            if callee not in read:
                follow(callee)
                files.append(function.file)

    follow(root)
    distinct = len(set(files))
    visits = sum(1 for _ in groupby(files))
    return CallPath(functions=len(read), files=distinct, visits=visits, returns=visits - distinct)


def find_function(code: CodeType) -> Function | None:
    """Return the function that code belongs to, or None for code that is not in a package of the project."""
    path = Path(code.co_filename)
    if not path.is_relative_to(ROOT) or path.relative_to(ROOT).parts[0] not in PACKAGES:
        return None
    return Function(str(path.relative_to(ROOT)), code.co_qualname.partition(".<locals>.<")[0])


@dataclass
class CallGraph:
    """The calls that happen below one function.

    Attributes:
        calls: the callees of each function, in the order of their first calls.
        root: the root function, after it has run.
    """

    calls: dict[Function, dict[Function, None]] = field(default_factory=dict)
    root: Function | None = None

    def observe(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with a recorder around it, for the thread that calls it.

        Args:
            function: the root.
        """
        root = self.root = find_function(function.__code__)
        assert root is not None, "only a function of the project is a root"

        @wraps(function)
        def observed(*arguments: Any) -> Any:
            def record(frame: FrameType, event: str, _: Any) -> None:
                callee = find_function(frame.f_code) if event == "call" else None
                if callee is None or callee == root or (caller := _find_caller(frame)) is None:
                    return
                self.calls.setdefault(caller, {})[callee] = None

            sys.setprofile(record)
            try:
                return function(*arguments)
            finally:
                sys.setprofile(None)

        return observed

    def compute_path(self) -> CallPath:
        """Return the figures of all calls."""
        assert self.root is not None, "nothing was observed"
        return compute_call_path(self.calls, self.root)


def _find_caller(frame: FrameType) -> Function | None:
    """Return the nearest function of the project above a frame, or None if a module is being imported."""
    above = frame.f_back
    while above is not None:
        if above.f_code.co_name == "<module>":
            return None
        if (caller := find_function(above.f_code)) is not None:
            return caller
        above = above.f_back
    return None
