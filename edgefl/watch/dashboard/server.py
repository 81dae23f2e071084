"""The dashboard's local web server: static files and one stream of Server-Sent Events.

The server answers only GET requests, and accepts no input.

A page of another site can send requests to this machine under a name that resolves to it (DNS rebinding). The
server therefore accepts a Host header only if it is an IP address, localhost or the name of this machine. The
Content-Security-Policy forbids inline scripts, because device ids and error texts come from the network.
"""

import contextlib
import errno
import ipaddress
import json
import mimetypes
import socket
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from edgefl.base.errors import ConfigError
from edgefl.watch.dashboard.latest_snapshot import LatestSnapshot

PAGE_DIRECTORY = Path(__file__).with_name("page")
EVENTS_PATH = "/events"
MAX_BROWSERS = 16
TICK_INTERVAL_S = 5.0
RESPONSE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors "
    "'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def parse_host(header: str) -> str:
    """Return the host of a Host header in lower case, without port and brackets."""
    host = header.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def is_trusted_host(header: str, names: frozenset[str]) -> bool:
    """Return whether a Host header cannot come from DNS rebinding.

    Args:
        header: the Host header.
        names: the names of this machine in lower case. An IP address is always trusted.
    """
    host = parse_host(header)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host.removesuffix(".") in names
    return True


def list_host_names(host: str) -> frozenset[str]:
    """Return the host names that a browser may use for this machine.

    Args:
        host: the host that the server listens on.
    """
    name = socket.gethostname().lower()
    return frozenset({"localhost", name, f"{name.partition('.')[0]}.local", host.lower()})


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server that listens on this host."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def read_page_files() -> dict[str, tuple[bytes, str]]:
    """Return content and media type of each served file, by URL path."""
    files = {}
    for path in sorted(PAGE_DIRECTORY.rglob("*")):
        if path.is_file() and path.suffix in (".html", ".css", ".js", ".svg"):
            kind = mimetypes.types_map.get(path.suffix, "")
            kind = "text/javascript" if path.suffix == ".js" else kind  # the Windows registry may differ
            files["/" + path.relative_to(PAGE_DIRECTORY).as_posix()] = (
                path.read_bytes(),
                f"{kind}; charset=utf-8",
            )
    return files | {"/": files["/index.html"]}


class DashboardRequest(BaseHTTPRequestHandler):
    """The connection of one browser."""

    protocol_version = "HTTP/1.1"
    server_version = "edgefl"
    sys_version = ""
    timeout = 30
    server: "DashboardServer"

    def do_GET(self) -> None:
        """Answer with a static file or the event stream."""
        path = self.path.partition("?")[0]
        if not is_trusted_host(self.headers.get("Host", ""), self.server.names):
            self._answer(
                HTTPStatus.MISDIRECTED_REQUEST,
                b"the Host header is not a name of this machine; use its address\n",
            )
        elif path == EVENTS_PATH and self.headers.get("Sec-Fetch-Site", "none") not in (
            "none",
            "same-origin",
        ):
            self._answer(HTTPStatus.FORBIDDEN, b"pages of other sites may not read this stream\n")
        elif path == EVENTS_PATH:
            self._stream()
        elif path in self.server.files:
            self._answer(HTTPStatus.OK, *self.server.files[path])
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"there is no such page; the dashboard is at /\n")

    def _refuse(self) -> None:
        self.close_connection = True  # an unread body would be parsed as the next request
        self._answer(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET\n", extra_headers={"Allow": "GET"})

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse

    def _answer(
        self,
        status: HTTPStatus,
        body: bytes,
        kind: str = "text/plain; charset=utf-8",
        extra_headers: dict[str, str] | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in {
            **RESPONSE_HEADERS,
            **(extra_headers or {}),
            "Content-Type": kind,
            "Content-Length": str(len(body)),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _stream(self) -> None:
        latest = self.server.latest
        self.close_connection = True
        with latest.count_reader() as count, contextlib.suppress(OSError):
            if count > MAX_BROWSERS:
                self._answer(
                    HTTPStatus.SERVICE_UNAVAILABLE,
                    f"{MAX_BROWSERS} browsers are already connected; close one\n".encode(),
                )
                return
            self.send_response(HTTPStatus.OK)
            for name, value in {
                **RESPONSE_HEADERS,
                "Content-Type": "text/event-stream",
                "Connection": "close",
            }.items():
                self.send_header(name, value)
            self.end_headers()
            seen = 0
            while not latest.is_closed:
                update = latest.wait_for_update(seen, TICK_INTERVAL_S)
                seen = update.version if update else seen
                # A tick shows that the server is alive, and carries its time
                kind, data = (
                    (update.kind, update.data)
                    if update
                    else ("tick", json.dumps({"ts": time.time()}).encode())
                )
                self.wfile.write(b"event: %s\ndata: %s\n\n" % (kind.encode(), data))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that cannot be parsed."""
        self.close_connection = True
        # The base class treats such a request as HTTP/0.9, which has no headers
        self.request_version = self.protocol_version
        self._answer(HTTPStatus(code), f"{HTTPStatus(code).phrase}\n".encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Log no requests, because they would fill the terminal."""


class DashboardServer(ThreadingHTTPServer):
    """Serves the dashboard. Each connection has a thread that ends with the process.

    Args:
        latest: the snapshots to serve.
        host: address to listen on.
        port: TCP port. 0 uses a free port.

    Attributes:
        url: address of the page.

    Raises:
        ConfigError: the server cannot listen on this host and port.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, latest: LatestSnapshot, host: str = "127.0.0.1", port: int = 0) -> None:
        self.latest = latest
        self.files = read_page_files()
        self.names = list_host_names(host)
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), DashboardRequest)
        except OSError as error:
            raise ConfigError(_explain_bind_error(error, host, port)) from error
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.server_address[1]}/"

    def server_bind(self) -> None:
        """Bind the socket without the name lookup of HTTPServer."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name = str(self.server_address[0])
        self.server_port = int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that closes its connection early."""


def _explain_bind_error(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use; give another --port, or --port 0 for a free one"
    if error.errno == errno.EACCES:
        return f"port {port} needs root; give a --port of 1024 or above"
    return (
        f"cannot listen on {host} port {port}: {error.strerror or error}; give an address of this machine as "
        "--host, such as 127.0.0.1"
    )
