"""The HTTP server of the explorer. It accepts requests from this machine only."""

from __future__ import annotations

from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from urllib.parse import urlsplit

from cutegemm.explore.page import answer, asset, document, respond

HOST = "127.0.0.1"
# All values of a link are escaped. If one ever became markup, this policy would keep it from loading or running code.
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
    """Handles one HTTP request of the explorer: sends the web page at /, or a file under /assets."""

    server: Explorer

    def do_GET(self) -> None:
        """Answer a GET request with the web page, a file or an error.

        A Host header other than this machine is refused, which prevents DNS rebinding.
        """
        if self.headers.get("Host", "").rpartition(":")[0] not in (HOST, "localhost"):
            return self._send(HTTPStatus.FORBIDDEN, b"this server answers this machine only", "html")
        at = urlsplit(self.path)
        folder, _, name = at.path.rpartition("/")
        if at.path == "/":
            return self._page(at.query)
        if folder == "/assets" and name in _ASSETS:
            return self._send(HTTPStatus.OK, asset(name), name.rpartition(".")[2])
        return self._send(HTTPStatus.NOT_FOUND, b"unknown path", "html")

    def _page(self, query: str) -> None:
        """Send the web page for a query, or only its content if the script htmx in the page asks for it.

        query   query of the URL, such as "view=banks"
        """
        is_htmx = self.headers.get("HX-Request") == "true"
        with self.server.lock:  # answers share caches, and plans are compiled one at a time
            if is_htmx:
                html, headers = respond(query, self.headers.get("HX-History-Restore-Request") == "true")
            else:
                html, headers = document(answer(query)), {}
        self._send(HTTPStatus.OK, html.encode(), "html", headers)

    def _send(self, status: HTTPStatus, body: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        """Send an HTTP response with its headers.

        status    HTTP status
        body      content in bytes
        kind      type of the body: "css", "js" or "html"
        headers   further headers; None for none
        """
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
        """Do nothing, so that HTTP requests are not logged to the terminal."""


class Explorer(ThreadingHTTPServer):
    """HTTP server of the explorer's web page on this machine. Its port is open; `serve_forever` answers requests.

    port     port on 127.0.0.1; 0 for any free one
    raises   OSError if the port cannot be opened

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
        """Address of the explorer's web page, such as "http://127.0.0.1:8420/"."""
        return f"http://{HOST}:{self.server_address[1]}/"
