"""A scripted upstream on a real socket: it answers as told, down to the byte, and notes what it was asked.

    upstream.script(
        Reply(steps=[event(role_chunk), Pause(gate), Reset()]),   # the first request
        Reply(steps=[event(...), DONE]),                          # the second
    )

A reply that runs out of steps ends cleanly. A request beyond the script is answered 599 and kept in
`unexpected`. Times are those of `time.monotonic()`.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Headers = Sequence[tuple[str, str]]
EVENT_STREAM: Headers = (("Content-Type", "text/event-stream; charset=utf-8"),)
PATIENCE = 30.0  # seconds that a test waits for what must happen; two cores may be shared by many


class Gate:
    """Where the upstream waits for the test: `reached` tells the test that it does, `open()` lets it pass."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened = False
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._reached = threading.Event()

    def open(self) -> None:
        with self._lock:
            self._opened = True
            for loop, event in self._waiters:
                loop.call_soon_threadsafe(event.set)

    def wait_reached(self, timeout: float = PATIENCE) -> None:
        assert self._reached.wait(timeout), "the upstream never came to this gate"

    async def passed(self) -> None:
        event = asyncio.Event()
        with self._lock:
            if self._opened:
                event.set()
            self._waiters.append((asyncio.get_running_loop(), event))
        self._reached.set()
        await event.wait()


@dataclass(frozen=True, slots=True)
class Send:
    """Body bytes, in the reply's framing: one chunk each when it is chunked."""

    data: bytes


@dataclass(frozen=True, slots=True)
class SendRaw:
    """Bytes as they are, past the framing."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for a gate, or for so many seconds."""

    until: Gate | float


@dataclass(frozen=True, slots=True)
class Close:
    """The clean end of the body; the connection lives on, unless its framing ends with it."""


@dataclass(frozen=True, slots=True)
class Cut:
    """FIN in the middle of the body: no closing chunk."""


@dataclass(frozen=True, slots=True)
class Reset:
    """RST."""


@dataclass(frozen=True, slots=True)
class HalfClose:
    """FIN for our direction only; the socket stays open until the peer ends it."""


@dataclass(frozen=True, slots=True)
class HoldOpen:
    """Say nothing more until the peer goes."""


Step = Send | SendRaw | Pause | Close | Cut | Reset | HalfClose | HoldOpen


def event(payload: Any) -> Send:
    """One SSE event; a str is taken as the data line's text."""
    text = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
    return Send(b"data: " + text.encode() + b"\n\n")


DONE = event("[DONE]")


@dataclass(frozen=True, slots=True)
class Reply:
    """`before` happens before the status line; `length` framing needs `length`, the bytes announced."""

    steps: Sequence[Step] = ()
    status: str = "200 OK"
    headers: Headers = EVENT_STREAM
    framing: Literal["chunked", "length", "close", "none"] = "chunked"
    length: int = 0
    before: Sequence[Step] = ()

    def head(self) -> bytes:
        lines = [f"HTTP/1.1 {self.status}", *(f"{name}: {value}" for name, value in self.headers)]
        match self.framing:
            case "chunked":
                lines.append("Transfer-Encoding: chunked")
            case "length":
                lines.append(f"Content-Length: {self.length}")
            case "close":
                lines.append("Connection: close")
            case "none":
                pass
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def whole(
    body: bytes, status: str = "200 OK", headers: Headers = (("Content-Type", "application/json"),)
) -> Reply:
    """A body of known length."""
    return Reply([Send(body)], status, headers, "length", len(body))


def json_reply(payload: Any, status: str = "200 OK") -> Reply:
    return whole(json.dumps(payload).encode(), status)


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it came: the target and the header names are the bytes on the wire, as Latin-1."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: Connection
    at: float

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def header(self, name: str) -> str | None:
        values = self.all(name)
        return values[0] if values else None

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(eq=False, slots=True)
class Connection:
    """One accepted connection. `busy` while a reply is being given."""

    number: int
    opened_at: float
    busy: bool = False
    served: int = 0
    peer_closed_at: float | None = None
    gone: threading.Event = field(default_factory=threading.Event)

    def wait_closed_by_peer(self, timeout: float = PATIENCE) -> float:
        """When the peer closed it."""
        assert self.gone.wait(timeout), f"connection {self.number} is still open"
        assert self.peer_closed_at is not None, f"connection {self.number} was closed by the upstream itself"
        return self.peer_closed_at


Script = Callable[[Request], Reply | None]


class Upstream:
    """A server in a thread with its own loop. `script` and `respond` forget earlier requests."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Condition()
        self._script: Script = lambda request: None
        self._connections: list[Connection] = []
        self._tasks: dict[asyncio.Task[None], Connection] = {}
        self.requests: list[Request] = []
        self.unexpected: list[Request] = []
        self.malformed: list[str] = []
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._run, name=f"upstream-{self.port}", daemon=True)
        self._thread.start()

    # -- for the test ------------------------------------------------------------------------

    def script(self, *replies: Reply | Callable[[Request], Reply]) -> None:
        """The first reply is for the first request, and so on; a callable makes its reply of the request."""
        waiting = list(replies)

        def next_reply(request: Request) -> Reply | None:
            if not waiting:
                return None
            reply = waiting.pop(0)
            return reply if isinstance(reply, Reply) else reply(request)

        self.respond(next_reply)

    def respond(self, script: Script) -> None:
        """A reply for each request, in whatever order they come."""
        with self._lock:
            self._script = script
            self.requests.clear()
            self.unexpected.clear()
            self.malformed.clear()

    @property
    def connections(self) -> list[Connection]:
        """All that are open now, idle ones included."""
        with self._lock:
            return [connection for connection in self._connections if not connection.gone.is_set()]

    @property
    def busy(self) -> list[Connection]:
        return [connection for connection in self.connections if connection.busy]

    def wait_for_requests(self, count: int, timeout: float = PATIENCE) -> list[Request]:
        with self._lock:
            came = self._lock.wait_for(lambda: len(self.requests) >= count, timeout)
            assert came, f"{len(self.requests)} requests came, {count} were expected"
            return list(self.requests)

    def wait_until_idle(self, timeout: float = PATIENCE) -> None:
        """Until no reply is under way: each was given to its end, or its peer has gone."""
        with self._lock:
            idle = self._lock.wait_for(lambda: not any(c.busy for c in self._connections), timeout)
            assert idle, f"{len(self.busy)} downstream connections are still in use"

    def settle(self, timeout: float = PATIENCE) -> list[str]:
        """End the test's replies; what was wrong: connections still in use, requests beyond the script."""
        with self._lock:
            self._lock.wait_for(lambda: not any(c.busy for c in self._connections), timeout)
        trouble = [f"downstream connection {c.number} was still in use at the end" for c in self.busy]
        trouble += [f"unexpected request {r.method} {r.target}" for r in self.unexpected]
        trouble += [f"a request that is no HTTP: {what}" for what in self.malformed]
        asyncio.run_coroutine_threadsafe(self._end_replies(), self._loop).result(PATIENCE)
        self.respond(lambda request: None)
        return trouble

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end_all(), self._loop).result(PATIENCE)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()
        self._socket.close()

    # -- in the loop's thread ----------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._server = self._loop.run_until_complete(self._listen())
        self._loop.run_forever()

    async def _listen(self) -> asyncio.Server:
        return await self._loop.create_server(lambda: _Wire(self), sock=self._socket)

    async def _end_replies(self) -> None:
        await self._cancel([task for task, connection in self._tasks.items() if connection.busy])

    async def _end_all(self) -> None:
        self._server.close()
        await self._cancel(list(self._tasks))

    async def _cancel(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        ending = list(tasks)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    def accepted(self, wire: _Wire) -> Connection:
        with self._lock:
            self._connections = [c for c in self._connections if not c.gone.is_set()]
            number = max((c.number for c in self._connections), default=0) + 1
            connection = Connection(number, time.monotonic())
            self._connections.append(connection)
        task = self._loop.create_task(self._serve(wire, connection), name=f"connection-{number}")
        wire.task = task
        self._tasks[task] = connection
        task.add_done_callback(self._tasks.pop)
        return connection

    def ended(self, connection: Connection) -> None:
        with self._lock:
            connection.busy = False
            connection.gone.set()
            self._lock.notify_all()

    async def _serve(self, wire: _Wire, connection: Connection) -> None:
        try:
            while (request := await wire.read_request(connection)) is not None:
                with self._lock:
                    connection.busy = True
                    connection.served += 1
                    self.requests.append(request)
                    reply = self._script(request)
                    if reply is None:
                        self.unexpected.append(request)
                        reply = json_reply(
                            {"error": {"message": "not in the script"}}, "599 Not In The Script"
                        )
                    self._lock.notify_all()
                lives = await _Exchange(wire, reply, request.method).give()
                with self._lock:
                    connection.busy = False
                    self._lock.notify_all()
                if not lives:
                    break
        except ValueError as trouble:
            self.malformed.append(f"connection {connection.number}: {trouble}")
        finally:
            wire.close()


class _Wire(asyncio.Protocol):
    """The socket: what came in, whether the peer is there, and when it left."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._received = bytearray()
        self._news = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._closing = False
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = self._upstream.accepted(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._news.set()

    def eof_received(self) -> bool:
        self._peer_left()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closing:
            self._peer_left()
        self._writable.set()
        self._upstream.ended(self.connection)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _peer_left(self) -> None:
        if self.connection.peer_closed_at is None:
            self.connection.peer_closed_at = time.monotonic()
        self._news.set()
        if self.task is not None:
            self.task.cancel()

    async def write(self, data: bytes) -> None:
        self.transport.write(data)
        await self._writable.wait()

    def close(self) -> None:
        self._closing = True
        self.transport.close()

    def reset(self) -> None:
        self._closing = True
        linger = struct.pack("ii", 1, 0)
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.transport.abort()

    async def _take(self, size: int) -> bytes:
        while len(self._received) < size:
            self._news.clear()
            await self._news.wait()
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    async def _take_to(self, mark: bytes) -> bytes:
        looked = 0
        while (at := self._received.find(mark, max(0, looked - len(mark)))) < 0:
            looked = len(self._received)
            self._news.clear()
            await self._news.wait()
        return await self._take(at + len(mark))

    async def read_request(self, connection: Connection) -> Request | None:
        head = (await self._take_to(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head[:-4].split("\r\n")
        method, target, _version = first.split(" ")
        pairs = [line.partition(":") for line in lines]
        headers = [(name, value.strip()) for name, _colon, value in pairs]
        body = await self._read_body({name.lower(): value for name, value in headers})
        return Request(method, target, headers, body, connection, time.monotonic())

    async def _read_body(self, headers: dict[str, str]) -> bytes:
        if "chunked" not in headers.get("transfer-encoding", ""):
            return await self._take(int(headers.get("content-length", "0")))
        body = bytearray()
        while size := int(await self._take_to(b"\r\n"), 16):
            body += (await self._take(size + 2))[:-2]
        await self._take_to(b"\r\n")
        return bytes(body)


class _Exchange:
    """Gives one reply. `give` tells whether the connection can serve another request."""

    def __init__(self, wire: _Wire, reply: Reply, method: str) -> None:
        self._wire = wire
        self._reply = reply
        self._bodiless = method == "HEAD" or reply.status[:3] in ("204", "304")

    async def give(self) -> bool:
        for step in self._reply.before:
            if not await self._perform(step):
                return False
        await self._wire.write(self._reply.head())
        for step in self._reply.steps:
            if isinstance(step, Close):
                break
            if not await self._perform(step):
                return False
        return await self._end()

    async def _end(self) -> bool:
        if self._reply.framing == "chunked" and not self._bodiless:
            await self._wire.write(b"0\r\n\r\n")
        if self._reply.framing == "close":
            self._wire.close()
            return False
        return True

    async def _perform(self, step: Step) -> bool:
        """False when nothing can follow on this connection."""
        match step:
            case Send(data):
                await self._wire.write(self._framed(data))
            case SendRaw(data):
                await self._wire.write(data)
            case Pause(Gate() as gate):
                await gate.passed()
            case Pause(float() | int() as seconds):
                await asyncio.sleep(seconds)
            case Cut():
                self._wire.close()
                return False
            case Reset():
                self._wire.reset()
                return False
            case HalfClose():
                self._wire.transport.write_eof()
            case HoldOpen():
                await asyncio.Event().wait()
            case Close():
                return False
        return True

    def _framed(self, data: bytes) -> bytes:
        if self._bodiless:
            return b""
        if self._reply.framing == "chunked" and data:
            return b"%x\r\n%b\r\n" % (len(data), data)
        return data


class Unanswering:
    """A port whose accept queue is full: a connect to it neither succeeds nor fails."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=0)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", self.port))
            self._fillers.append(filler)

    def stop(self) -> None:
        for each in [*self._fillers, self._socket]:
            each.close()


class Refusing:
    """A port that is taken by a socket that does not listen: every connect to it is refused."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def stop(self) -> None:
        self._socket.close()
