"""Run `edgefl ...`, and at the N-th line of ours tell the test and wait until it has done its worst:
`at_line.py PORT N ARGUMENTS`.

A line counts at most thirty times, so that waiting loops do not drown what happens once. N may be a place
too: `aggregator/service.py:183#2` is that line the second time, `aggregator/service.py:_close_round#4` the
fourth
call. N = 0: the test is told at the end how many lines there were. The test's answer is a number when the
clock is to jump by so many seconds.
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
OFTEN = 30


def main(port, wanted, arguments):
    seen = Counter()
    lock = threading.Lock()
    total = 0

    def tell(text):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(text.encode() + b"\n")
            answer = connection.makefile().readline()  # who is killed here never gets it
        if answer.strip():
            real = time.time
            jump = float(answer)
            time.time = lambda: real() + jump

    def passed(frame, place, counts):
        nonlocal total
        file = Path(frame.f_code.co_filename)
        place = f"{file.parent.name}/{file.name}:{place}"
        with lock:
            seen[place] += 1
            total += counts and seen[place] <= OFTEN
            here = f"{place}#{seen[place]}"
            due = wanted == here or (counts and seen[place] <= OFTEN and wanted == str(total))
        if due:
            tell(f"at {os.getpid()} {here}")

    def on_line(frame, event, _):
        if event == "line":
            passed(frame, frame.f_lineno, True)
        return on_line

    def on_call(frame, event, _):
        if frame.f_code.co_name == "<module>" or not frame.f_code.co_filename.startswith(PACKAGES):
            return None
        passed(frame, frame.f_code.co_name, False)
        return on_line

    threading.settrace(on_call)
    sys.settrace(on_call)
    sys.argv = ["edgefl", *arguments]
    try:
        edgefl.cli.main.main()
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        if wanted == "0":
            tell(f"count {os.getpid()} {total}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
