"""The explorer on this machine: a page and its answers, for the browser of whoever started it."""

from __future__ import annotations

from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from urllib.parse import urlsplit

from cutegemm.explore.page import answer, asset, document, respond

HOST = "127.0.0.1"
# What a link brings is text; were it ever more, it could load and run nothing.
POLICY = "; ".join(
    [
        "default-src 'self'",
        "style-src 'self' 'unsafe-inline'",
        "img-src data:",
        "form-action 'self'",
        "frame-ancestors 'none'",
    ]
)
TYPES = {"css": "text/css", "js": "text/javascript", "html": "text/html"}
_ASSETS = ("explore.css", "explore.js", "htmx.min.js", "tile.css", "tile.js")


class _Handler(BaseHTTPRequestHandler):
    server: Explorer

    def do_GET(self) -> None:
        if self.headers.get("Host", "").rpartition(":")[0] not in (HOST, "localhost"):
            return self._send(HTTPStatus.FORBIDDEN, b"this page is for this machine alone", "html")
        at = urlsplit(self.path)
        folder, _, name = at.path.rpartition("/")
        if at.path == "/":
            return self._page(at.query)
        if folder == "/assets" and name in _ASSETS:
            return self._send(HTTPStatus.OK, asset(name), name.rpartition(".")[2])
        return self._send(HTTPStatus.NOT_FOUND, b"there is no such page", "html")

    def _page(self, query: str) -> None:
        asks = self.headers.get("HX-Request") == "true"
        with self.server.lock:  # plans are kept between answers, and compiled one at a time
            if asks:
                html, headers = respond(query, self.headers.get("HX-History-Restore-Request") == "true")
            else:
                html, headers = document(answer(query)), {}
        self._send(HTTPStatus.OK, html.encode(), "html", headers)

    def _send(self, status: HTTPStatus, body: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{TYPES[kind]}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Vary", "HX-Request")
        self.send_header("Content-Security-Policy", POLICY)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the terminal is the user's."""


class Explorer(ThreadingHTTPServer):
    """A server that is ready to serve; `url` is where.

    port     0 for any that is free
    raises   OSError for one that is taken

    >>> with Explorer(0) as explorer:
    ...     explorer.url.startswith("http://127.0.0.1:")
    True
    """

    daemon_threads = True

    def __init__(self, port: int) -> None:
        self.lock = Lock()
        super().__init__((HOST, port), _Handler)

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{HOST}:{self.server_address[1]}/"
