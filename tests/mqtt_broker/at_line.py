"""Run `edgefl ...` and stop at the N-th executed line of the project until the test has injected its
fault: `at_line.py PORT N ARGUMENTS`.

A line counts at most thirty times, so that waiting loops do not hide lines that run once. N may also be a
position: `aggregator/service.py:183#2` is the second execution of that line,
`aggregator/service.py:_close_round#4` is the fourth call. With N = 0 the test receives the number of
lines at the end. The test may answer with a number of seconds by which the clock is to jump.
"""

import os
import socket
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import edgefl.cli.main
from tests.support import device as _numpy_learner  # noqa: F401 - a device may be started with it

PACKAGES = tuple(
    str(Path(edgefl.cli.main.__file__).parents[2] / name) + "/"
    for name in ("edgefl", "devices", "mqtt_broker")
)
MAX_COUNT_PER_LINE = 30


def main(port, stop_at, arguments):
    seen = Counter()
    lock = threading.Lock()
    total = 0

    def report(text):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(text.encode() + b"\n")
            answer = connection.makefile().readline()  # a killed process never receives it
        if answer.strip():
            get_time = time.time
            jump = float(answer)
            time.time = lambda: get_time() + jump

    def count_line(frame, position, counts):
        nonlocal total
        file = Path(frame.f_code.co_filename)
        position = f"{file.parent.name}/{file.name}:{position}"
        with lock:
            seen[position] += 1
            total += counts and seen[position] <= MAX_COUNT_PER_LINE
            occurrence = f"{position}#{seen[position]}"
            is_due = stop_at == occurrence or (
                counts and seen[position] <= MAX_COUNT_PER_LINE and stop_at == str(total)
            )
        if is_due:
            report(f"at {os.getpid()} {occurrence}")

    def on_line(frame, event, _):
        if event == "line":
            count_line(frame, frame.f_lineno, True)
        return on_line

    def on_call(frame, event, _):
        if frame.f_code.co_name == "<module>" or not frame.f_code.co_filename.startswith(PACKAGES):
            return None
        count_line(frame, frame.f_code.co_name, False)
        return on_line

    threading.settrace(on_call)
    sys.settrace(on_call)
    sys.argv = ["edgefl", *arguments]
    try:
        edgefl.cli.main.main()
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        if stop_at == "0":
            report(f"count {os.getpid()} {total}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
