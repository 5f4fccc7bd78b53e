"""Where the server listens, and how many clients it lets in."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

from twisted.internet import reactor as _reactor

from gatewaysite.server.channel import Factory

reactor: Any = _reactor

BACKLOG = 2048


class Listener:
    """Where the server listens. What is wrong with the address shows at once, as an OSError; nobody is let in yet."""

    def __init__(self, host: str, port: int, unix_socket: str = "", descriptor: int | None = None) -> None:
        self._path = unix_socket
        self._socket: socket.socket | None = None
        if descriptor is not None:
            self._socket = socket.socket(fileno=descriptor)
        elif unix_socket:
            _try_out(unix_socket)
        else:
            self._socket = _bound(host.strip("[]"), port)

    @property
    def name(self) -> str:
        address = self._path if self._socket is None else self._socket.getsockname()
        if not isinstance(address, tuple):
            return f"unix:{address}"
        host, port = address[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def open(self, factory: Factory) -> Any:
        """A Twisted port. Raises OSError, or Twisted's CannotListenError."""
        if self._socket is None:
            return reactor.listenUNIX(self._path, factory, backlog=BACKLOG, wantPID=True)
        self._socket.listen(BACKLOG)
        self._socket.setblocking(False)
        return reactor.adoptStreamPort(self._socket.fileno(), self._socket.family, factory)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


def _try_out(path: str) -> None:
    """Can there be a socket file in this place? Whether one is in use is for Twisted's lock to find out."""
    trial = f"{path}.{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as trying:
        trying.bind(trial)
    os.unlink(trial)


def _bound(host: str, port: int) -> socket.socket:
    family, kind, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


class Door:
    """Lets clients in while there is room for them. The others wait in the kernel's queue, which costs nothing here.

    `room` says how many more there is room for; `on_full` is called each time somebody may be left waiting.
    """

    def __init__(self, port: Any, room: Callable[[], int], on_full: Callable[[], None]) -> None:
        self._port = port
        self._room = room
        self._on_full = on_full
        self._accept = port.doRead
        self.is_shut = False
        port.doRead = self._let_in  # the reactor calls it when somebody waits

    def open_if_room(self) -> None:
        if self.is_shut and self._port.connected and not self._port.disconnecting and self._room() > 0:
            self.is_shut = False
            self._port.startReading()

    def close(self) -> None:
        """For good, after those who wait have been let in."""
        self._port.numberAccepts = BACKLOG
        self._let_in()
        self._port.stopListening()

    def _let_in(self) -> None:
        room = self._room()
        if room > 0:
            self._port.numberAccepts = min(self._port.numberAccepts, room)
            self._accept()
        if self._room() <= 0:
            self.is_shut = True
            self._port.stopReading()
            self._on_full()
