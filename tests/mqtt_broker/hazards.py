"""Faults that can happen to a fleet, and a supervisor that restarts ended processes: real processes, a
real broker, and a proxy whose connections can be cut.
"""

import contextlib
import os
import queue
import resource
import shutil
import signal
import socket
import struct
import sys
import threading
import time
from pathlib import Path

DEADLINE_S = 150.0
STARTS = 8
"""A process that needs more starts does not recover, which is an error."""
RESET = struct.pack("ii", 1, 0)
SLOW_BYTES_PER_S = 100_000


class BrokerProxy:
    """A TCP proxy to the broker. Its connections can be cut, frozen (half-open, without a notice to
    either end) or made slow.
    """

    def __init__(self, port):
        self._port = port
        self._pairs = []
        self._closed = threading.Event()
        self._slow = False
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"mqtt://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._port))
                except OSError:
                    near.close()
                    continue
                frozen = threading.Event()
                self._pairs.append((near, far, frozen))
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._forward, args=(source, sink, frozen), daemon=True).start()

    def _forward(self, source, sink, frozen):
        with contextlib.suppress(OSError):
            while data := source.recv(8192):
                if frozen.is_set():
                    return
                if self._slow:
                    self._closed.wait(len(data) / SLOW_BYTES_PER_S)
                sink.sendall(data)
        if not frozen.is_set():
            for connection in (source, sink):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def cut(self):
        """Cut all connections and return whether there was one."""
        had_connection = bool(self._pairs)
        for near, far, frozen in self._pairs:
            frozen.set()
            for connection in (near, far):
                with contextlib.suppress(OSError):
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    connection.shutdown(socket.SHUT_RDWR)
        self._drop()
        return had_connection

    def _drop(self):
        for near, far, _ in self._pairs:
            near.close()
            far.close()
        self._pairs.clear()

    def freeze(self):
        for _, _, frozen in self._pairs:
            frozen.set()

    def slow_down(self):
        self._slow = True

    def close(self):
        self._closed.set()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()


class Fleet:
    """The processes of one federation by name. A process that ends with an error is restarted, as systemd
    would do.
    """

    def __init__(self, federation, broker, process_class, clients, hazards=()):
        self.federation = federation
        self.broker = broker
        self._make = process_class
        self.proxy = BrokerProxy(broker.port)
        self._hazards = {hazard.victim: hazard for hazard in hazards}
        self._events = queue.Queue()
        self._done = set()
        self.processes = {}
        self.starts = {}
        self.log = []
        self.counts = {}
        self._server = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._listen, daemon=True).start()
        self.names = ["aggregator", *clients]
        for name in self.names:
            self._start(name)

    def _listen(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                with connection.makefile() as report:
                    self._events.put((*report.readline().split(), connection))

    def _start(self, name, *more):
        hazard = self._hazards.get(name) if not self.starts.get(name) else None
        line = hazard.line if hazard else ""
        self.starts[name] = self.starts.get(name, 0) + 1
        runner = []
        if hazard:
            runner = [str(Path(__file__).with_name("at_line.py")), str(self._server.getsockname()[1]), line]
        url = self.proxy.url if name == "pi-0" else f"mqtt://127.0.0.1:{self.broker.port}"
        command = self.federation.command(name, url, *more)
        process = self.processes[name] = self._make(*command, runner=runner)
        threading.Thread(target=self._watch, args=(name, process), daemon=True).start()
        if name == "pi-0" and self.starts[name] > 1:
            threading.Thread(
                target=self._continue_pi1, args=(process, "the federation is in phase"), daemon=True
            ).start()

    def _stop_pi1(self):
        """Stop pi-1 until the board pi-0 is in the federation again. A federation takes half a second,
        but a start takes longer and a link reconnects after up to a second, and a board that is absent at
        the end gets no model. No federation ends without pi-1.
        """
        self.processes["pi-1"].popen.send_signal(signal.SIGSTOP)

    def _stop_pi1_without_pi0(self, aggregator):
        """Stop pi-1 when the aggregator asks other devices in place of pi-0, whose connection is half-open.
        pi-1 stays in the federation, because pi-0 notices its broken connection some seconds later.
        """
        with contextlib.suppress(AssertionError):
            aggregator.wait_for("tasks are sent again to pi-0")
            self._stop_pi1()
            self._continue_pi1(self.processes["pi-0"], "the link to the broker is up again")

    def _continue_pi1(self, process, text):
        with contextlib.suppress(AssertionError):
            process.wait_for(text)
        self.processes["pi-1"].popen.send_signal(signal.SIGCONT)

    def _watch(self, name, process):
        process.popen.wait()
        self._events.put(("ended", name, process))

    def run(self):
        """Run until all processes have ended without an error."""
        until = time.monotonic() + DEADLINE_S
        while len(self._done) < len(self.names):
            try:
                event = self._events.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"not done after {DEADLINE_S:g} s; {self.describe()}") from None
            match event:
                case ("at", pid, position, connection):
                    jump = self._inject_fault(int(pid), position)
                    with contextlib.suppress(OSError), connection:
                        connection.sendall(f"{jump}\n".encode())
                case ("count", pid, number, connection):
                    self.counts.setdefault(self._find_name(int(pid)), []).append(int(number))
                    with contextlib.suppress(OSError), connection:
                        connection.sendall(b"\n")
                case ("ended", name, process):
                    self._handle_end(name, process)

    def _handle_end(self, name, process):
        code = process.end()
        process.close()
        self.log.append(
            f"{name} ended with {code}" + (f" ({process.err.strip().splitlines()[-1]})" if code > 0 else "")
        )
        if self.processes[name] is not process:
            return
        if code == 0:
            self._done.add(name)
            return
        assert self.starts[name] < STARTS, f"{name} does not get up again; {self.describe()}"
        hazard = self._hazards.get(name)
        upgraded = hazard is not None and hazard.kind == "plan-upgraded" and self.starts[name] == 1
        self._start(name, *(["--fresh"] if upgraded else []))

    def _find_name(self, pid):
        """Return the name of the process with this id."""
        return next(name for name, process in self.processes.items() if process.popen.pid == pid)

    def _inject_fault(self, pid, position):
        """Inject the fault of the victim, which waits at that line. Return by how many seconds its clock
        jumps.
        """
        name = self._find_name(pid)
        hazard = self._hazards[name]
        victim = self.processes[name]
        self.log.append(f"{hazard.kind} of {hazard.victim} at {position}")
        if name == "pi-0" and hazard.kind in ("killed", "replaced", "power-cut"):
            self._stop_pi1()
        state = self.federation.directory / f"state-{hazard.victim}"
        match hazard.kind:
            case "killed":
                self._kill(victim)
            case "replaced":
                self._kill(victim)
                shutil.rmtree(state, ignore_errors=True)
            case "power-cut":
                self._kill(victim)
                newest = sorted(
                    (p for p in state.glob("*") if p.is_file() and p.name != "lock"),
                    key=lambda p: p.stat().st_mtime_ns,
                )
                for path in newest[-1:]:
                    os.truncate(path, int(path.stat().st_size * hazard.share))
                    self.log.append(f"{path.name} truncated to {path.stat().st_size} bytes")
            case "plan-upgraded":
                self._kill(victim)
                self.federation.upgrade()
            case "full-disk":
                resource.prlimit(victim.popen.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            case "clock":
                return str(hazard.jump)
            case "broker-killed":
                self.broker.kill()
                self.broker.start()
            case "line-cut":
                if self.proxy.cut():
                    self._stop_pi1()
                    # A device whose first connection is cut logs no link that is up again
                    has_state = "the federation is in phase" in victim.err
                    text = "the link to the broker is up again" if has_state else "the federation is in phase"
                    threading.Thread(target=self._continue_pi1, args=(victim, text), daemon=True).start()
            case "half-open":
                self.proxy.freeze()
                threading.Thread(
                    target=self._stop_pi1_without_pi0, args=(self.processes["aggregator"],), daemon=True
                ).start()
            case "slow-link":
                self.proxy.slow_down()
        return ""

    @staticmethod
    def _kill(process):
        process.popen.send_signal(signal.SIGKILL)
        process.popen.wait()

    def describe(self):
        """Return the injected faults and the last output of each process."""
        output = "\n".join(f"--- {name}\n{process.err[-1500:]}" for name, process in self.processes.items())
        return (
            "; ".join(self.log)
            + f"\nrepeat with: {sys.executable} -m pytest {os.environ.get('PYTEST_CURRENT_TEST', '')}"
            + f"\n{output}"
        )

    def close(self):
        self.processes["pi-1"].popen.send_signal(signal.SIGCONT)
        for process in self.processes.values():
            process.close()
        self._server.close()
        self.proxy.close()
