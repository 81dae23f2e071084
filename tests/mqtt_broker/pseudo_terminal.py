"""A command in a pseudo-terminal, and the output that it has drawn."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading

DEADLINE_S = 90.0
ESCAPES = re.compile(rb"\x1b\[[0-9;?<>$]*[A-Za-z]|\x1b\][^\x07]*\x07")


class Terminal:
    """A command in its own terminal of 80 x 24."""

    def __init__(self, *arguments):
        self.controller, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        env = {**os.environ, "TERM": "xterm-256color"}
        command = [sys.executable, "-m", "edgefl", *map(str, arguments)]
        self.popen = subprocess.Popen(
            command, stdin=terminal, stdout=terminal, stderr=terminal, env=env, start_new_session=True
        )
        os.close(terminal)
        self.drawn = b""
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        while True:
            try:
                data = os.read(self.controller, 65536)
            except OSError:
                data = b""
            with self.changed:
                self.drawn += data
                self.changed.notify_all()
            if not data:
                return

    def wait_for(self, *texts, since=0):
        """Wait until all of the texts were drawn after the first `since` bytes. Return the number of
        drawn bytes.
        """

        def is_drawn():
            drawn_text = ESCAPES.sub(b"", self.drawn[since:])
            return all(text.encode() in drawn_text for text in texts)

        with self.changed:
            assert self.changed.wait_for(is_drawn, DEADLINE_S), ESCAPES.sub(b"", self.drawn[since:])[
                -3000:
            ].decode(errors="replace")
            return len(self.drawn)

    def press(self, keys):
        os.write(self.controller, keys.encode())

    def end(self):
        code = self.popen.wait(DEADLINE_S)
        self.thread.join(10)
        return code

    def close(self):
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()
        self.thread.join(10)
        os.close(self.controller)
