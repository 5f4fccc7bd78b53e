"""A web site of somebody else's, on a port and so an origin of its own, that uses the JavaScript client."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.harness.gateway import ROOT

CLIENT = ROOT / "continuation/static/continuation/resumable.js"


class Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        kind, body = "text/html", b"<!doctype html><title>Another site</title>"
        if self.path == "/resumable.js":
            kind, body = "text/javascript", CLIENT.read_bytes()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing to the terminal."""


class OtherSite:
    def __init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="another site")
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
