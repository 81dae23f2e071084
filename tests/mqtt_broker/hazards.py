"""What can happen to a fleet, and who starts again what has ended: real processes, a real broker, and a line
that can be cut.
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
"""More starts of one process than that are a fault of ours: it does not get up again."""
RESET = struct.pack("ii", 1, 0)
SLOW_BYTES_PER_S = 100_000


class Line:
    """A TCP line to the broker that can be cut, frozen (nobody is told: half-open) or made slow."""

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
            for each in (source, sink):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def cut(self):
        """Cut it; return whether there was a connection on it."""
        were = bool(self._pairs)
        for near, far, frozen in self._pairs:
            frozen.set()
            for each in (near, far):
                with contextlib.suppress(OSError):
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    each.shutdown(socket.SHUT_RDWR)
        self._drop()
        return were

    def _drop(self):
        for near, far, _ in self._pairs:
            near.close()
            far.close()
        self._pairs.clear()

    def freeze(self):
        for _, _, frozen in self._pairs:
            frozen.set()

    def slow(self):
        self._slow = True

    def close(self):
        self._closed.set()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()


class Fleet:
    """The processes of one federation by name. Who ends with an error is started again, as systemd would."""

    def __init__(self, federation, broker, process_class, clients, hazards=()):
        self.federation = federation
        self.broker = broker
        self._make = process_class
        self.line = Line(broker.port)
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
                with connection.makefile() as said:
                    self._events.put((*said.readline().split(), connection))

    def _start(self, name, *more):
        hazard = self._hazards.get(name) if not self.starts.get(name) else None
        line = hazard.line if hazard else ""
        self.starts[name] = self.starts.get(name, 0) + 1
        runner = []
        if hazard:
            runner = [str(Path(__file__).with_name("at_line.py")), str(self._server.getsockname()[1]), line]
        url = self.line.url if name == "pi-0" else f"mqtt://127.0.0.1:{self.broker.port}"
        command = self.federation.command(name, url, *more)
        process = self.processes[name] = self._make(*command, runner=runner)
        threading.Thread(target=self._watch, args=(name, process), daemon=True).start()
        if name == "pi-0" and self.starts[name] > 1:
            threading.Thread(
                target=self._let_go, args=(process, "the federation is in phase"), daemon=True
            ).start()

    def _hold(self):
        """Let a board that dies, or loses its link, come back in time: a federation takes half a second, a
        start longer, a link is made again after up to one, and who is not there at the end has no model.
        Nothing ends without pi-1, which stands still until the board is in the federation again.
        """
        self.processes["pi-1"].popen.send_signal(signal.SIGSTOP)

    def _let_go(self, process, back):
        with contextlib.suppress(AssertionError):
            process.wait_for(back)
        self.processes["pi-1"].popen.send_signal(signal.SIGCONT)

    def _watch(self, name, process):
        process.popen.wait()
        self._events.put(("ended", name, process))

    def run(self):
        """Run until all have ended well."""
        until = time.monotonic() + DEADLINE_S
        while len(self._done) < len(self.names):
            try:
                event = self._events.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"not done after {DEADLINE_S:g} s; {self.story()}") from None
            match event:
                case ("at", pid, place, connection):
                    jump = self._happen(int(pid), place)
                    with contextlib.suppress(OSError), connection:
                        connection.sendall(f"{jump}\n".encode())
                case ("count", pid, number, connection):
                    self.counts.setdefault(self._named(int(pid)), []).append(int(number))
                    with contextlib.suppress(OSError), connection:
                        connection.sendall(b"\n")
                case ("ended", name, process):
                    self._ended(name, process)

    def _ended(self, name, process):
        code = process.end()
        process.close()
        self.log.append(
            f"{name} ended with {code}" + (f" ({process.said.strip().splitlines()[-1]})" if code > 0 else "")
        )
        if self.processes[name] is not process:
            return
        if code == 0:
            self._done.add(name)
            return
        assert self.starts[name] < STARTS, f"{name} does not get up again; {self.story()}"
        hazard = self._hazards.get(name)
        upgraded = hazard is not None and hazard.kind == "plan-upgraded" and self.starts[name] == 1
        self._start(name, *(["--fresh"] if upgraded else []))

    def _named(self, pid):
        """Return whose process that is."""
        return next(name for name, process in self.processes.items() if process.popen.pid == pid)

    def _happen(self, pid, place):
        """Do to the victim what its hazard says, while it stands still at that line; return by how much its
        clock jumps.
        """
        name = self._named(pid)
        hazard = self._hazards[name]
        victim = self.processes[name]
        self.log.append(f"{hazard.kind} of {hazard.victim} at {place}")
        if name == "pi-0" and hazard.kind in ("killed", "replaced", "power-cut"):
            self._hold()
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
                if self.line.cut():
                    self._hold()
                    threading.Thread(
                        target=self._let_go, args=(victim, "the link to the broker is up again"), daemon=True
                    ).start()
            case "half-open":
                self.line.freeze()
            case "slow-link":
                self.line.slow()
        return ""

    @staticmethod
    def _kill(process):
        process.popen.send_signal(signal.SIGKILL)
        process.popen.wait()

    def story(self):
        """Return what happened, and what each process said last."""
        said = "\n".join(f"--- {name}\n{process.said[-1500:]}" for name, process in self.processes.items())
        return (
            "; ".join(self.log)
            + f"\nrepeat with: {sys.executable} -m pytest {os.environ.get('PYTEST_CURRENT_TEST', '')}\n{said}"
        )

    def close(self):
        self.processes["pi-1"].popen.send_signal(signal.SIGCONT)
        for process in self.processes.values():
            process.close()
        self._server.close()
        self.line.close()
