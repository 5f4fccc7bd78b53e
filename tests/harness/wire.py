"""A downstream that notes each byte it gets, answers as soon as it has read a head, and only then reads the body.

It frames by what the head says: a Transfer-Encoding, else a Content-Length, else nothing. What it takes for a request
is therefore what any server on a kept connection would take for one.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import dataclass

from tests.harness.upstream import PATIENCE

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n"


@dataclass(frozen=True, slots=True)
class RawRequest:
    """head: its bytes without the empty line; body: its bytes as they came, chunks with their sizes."""

    head: bytes
    body: bytes

    @property
    def target(self) -> str:
        return self.head.split(b" ")[1].decode("latin-1")

    def all(self, name: bytes) -> list[bytes]:
        pairs = [line.partition(b":") for line in self.head.split(b"\r\n")[1:]]
        return [value.strip() for key, _colon, value in pairs if key.strip().lower() == name]


class Wire:
    """Threads that serve until `stop`. `unread` are bytes that are no request, or no whole one."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"
        self._news = threading.Condition()
        self._received: list[bytearray] = []
        self._open: list[socket.socket] = []
        self._requests: list[RawRequest] = []
        threading.Thread(target=self._accept, name=f"wire-{self.port}", daemon=True).start()

    def forget(self) -> None:
        """The connections stay as they are."""
        with self._news:
            self._requests.clear()

    def wait_for(self, target: str) -> list[RawRequest]:
        """All requests, once one with this target has come whole."""
        until = time.monotonic() + PATIENCE
        with self._news:
            while not any(request.target == target for request in self._requests):
                assert self._news.wait(until - time.monotonic()), f"no {target} in {self._requests}"
            return list(self._requests)

    @property
    def unread(self) -> list[bytes]:
        with self._news:
            return [bytes(left) for left in self._received if left]

    def stop(self) -> None:
        for each in [self._socket, *self._open]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted, _address = self._socket.accept()
                self._open.append(accepted)
                threading.Thread(target=self._serve, args=(accepted,), daemon=True).start()

    def _serve(self, accepted: socket.socket) -> None:
        left = bytearray()
        self._received.append(left)
        with contextlib.suppress(OSError, EOFError), accepted:
            while True:
                head = self._take_to(accepted, left, b"\r\n\r\n")
                request = RawRequest(head[:-4], b"")
                accepted.sendall(ANSWER if head.startswith(b"HEAD ") else ANSWER + b"{}")
                body = self._body(accepted, left, request)
                with self._news:
                    self._requests.append(RawRequest(request.head, body))
                    self._news.notify_all()

    def _body(self, accepted: socket.socket, left: bytearray, request: RawRequest) -> bytes:
        if not request.all(b"transfer-encoding"):
            return self._take(accepted, left, int((request.all(b"content-length") or [b"0"])[0]))
        body = b""
        while not body.endswith(b"0\r\n\r\n"):
            body += self._take_to(accepted, left, b"\r\n")
        return body

    def _take(self, accepted: socket.socket, left: bytearray, size: int) -> bytes:
        while len(left) < size:
            self._receive(accepted, left)
        with self._news:
            taken = bytes(left[:size])
            del left[:size]
        return taken

    def _take_to(self, accepted: socket.socket, left: bytearray, mark: bytes) -> bytes:
        while (at := left.find(mark)) < 0:
            self._receive(accepted, left)
        return self._take(accepted, left, at + len(mark))

    def _receive(self, accepted: socket.socket, left: bytearray) -> None:
        piece = accepted.recv(65536)
        if not piece:
            raise EOFError
        with self._news:
            left += piece
