"""A command in a pseudo-terminal, and what it has drawn."""

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
    """A command in a terminal of 80 x 24 of its own."""

    def __init__(self, *arguments):
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        env = {**os.environ, "TERM": "xterm-256color"}
        command = [sys.executable, "-m", "edgefl", *map(str, arguments)]
        self.popen = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True
        )
        os.close(theirs)
        self.drawn = b""
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        while True:
            try:
                data = os.read(self.ours, 65536)
            except OSError:
                data = b""
            with self.changed:
                self.drawn += data
                self.changed.notify_all()
            if not data:
                return

    def wait_for(self, *words, since=0):
        """Wait until all of the words were drawn, after so many bytes; returns how many bytes were drawn by
        then.
        """

        def there():
            seen = ESCAPES.sub(b"", self.drawn[since:])
            return all(word.encode() in seen for word in words)

        with self.changed:
            assert self.changed.wait_for(there, DEADLINE_S), ESCAPES.sub(b"", self.drawn[since:])[
                -3000:
            ].decode(errors="replace")
            return len(self.drawn)

    def press(self, keys):
        os.write(self.ours, keys.encode())

    def end(self):
        code = self.popen.wait(DEADLINE_S)
        self.thread.join(10)
        return code

    def close(self):
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()
        self.thread.join(10)
        os.close(self.ours)
