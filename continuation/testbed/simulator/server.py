"""The simulator: an engine behind a socket, with faults on demand and a control endpoint under /simulator/."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from continuation.testbed.simulator import faults, http1
from continuation.testbed.simulator.engine import Answer, Config, SimulatedEngine
from continuation.testbed.simulator.faults import Armed, Fault, FaultError
from continuation.testbed.simulator.http1 import BadRequest, ClientGone, Request, ServedConnection
from continuation.testbed.simulator.script import (
    Action,
    AnswerHead,
    Disconnect,
    EndBody,
    HalfClose,
    Reset,
    SendEvent,
    SendPart,
    Wait,
    changes_for,
    script,
)
from continuation.testbed.simulator.shapes import Refusal, compact

logger = logging.getLogger(__name__)

REQUESTS_KEPT = 200
BODY_BYTES_KEPT = 1024 * 1024
_PING = b": ping\n\n"
_CHAT = "/v1/chat/completions"
_SCALE_OUT = ("/v1/chat/completions/render", "/v1/chat/completions/derender", "/inference/v1/generate")


@dataclass(slots=True)
class Recorded:
    """A request as it came. body is JSON where it is JSON, text where it is not, None where it was too large."""

    at: str
    method: str
    path: str
    headers: dict[str, str]
    body: Any
    body_bytes: int
    leg: int | None = None
    fault: str | None = None
    status: int | None = None


class Simulator:
    """Start it, use `url`, stop it. All else is asked over HTTP or from the attributes.

    requests   the last requests, oldest first, those to /simulator/ left out
    armed      faults that wait for requests
    """

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or Config()
        self.engine = SimulatedEngine(self.config)
        self.requests: deque[Recorded] = deque(maxlen=REQUESTS_KEPT)
        self.armed: list[Armed] = []
        self.url = ""
        self.open_streams = 0
        self.total_requests = 0
        self._connections: set[ServedConnection] = set()
        self._server: asyncio.Server | None = None

    @property
    def open_connections(self) -> int:
        return len(self._connections)

    async def start(self) -> None:
        """Raises OSError where the address cannot be had."""
        loop = asyncio.get_running_loop()
        make = partial(ServedConnection, self._serve, self._connections, loop)
        self._server = await loop.create_server(make, self.config.host, self.config.port)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def stop(self) -> None:
        """Cuts what is still open."""
        if self._server is None:
            return
        self._server.close()
        open_now = list(self._connections)
        for connection in open_now:
            connection.abort()
        tasks = [connection.task for connection in open_now if connection.task]
        await asyncio.gather(*tasks, *(connection.lost() for connection in open_now), return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    async def __aenter__(self) -> Simulator:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    def arm(self, fault: str, times: int | None = 1) -> None:
        """Arm faults in the words of the header, e.g. `reset; after=5; leg=any`. Raises FaultError."""
        self.armed += [Armed(each, times) for each in faults.parse_header(fault)]

    # -- one connection ----------------------------------------------------------------------------

    async def _serve(self, connection: ServedConnection) -> None:
        while True:
            try:
                request = await connection.read_request()
            except BadRequest as error:
                await self._reject(connection, error)
                return
            if request is None:
                return
            try:
                await self._respond(connection, request)
            except (ClientGone, asyncio.CancelledError):
                raise
            except Exception:  # a bug must not look like a fault that was asked for
                logger.exception("the simulator failed at %s %s", request.method, request.path)
                connection.abort()
                return
            if not request.keeps_alive:
                return

    async def _reject(self, connection: ServedConnection, error: BadRequest) -> None:
        body = (
            compact(self.engine.too_large().body).encode() if error.status == 413 else error.message.encode()
        )
        headers = {
            "content-type": "text/plain; charset=utf-8",
            "content-length": str(len(body)),
            "connection": "close",
        }
        connection.write(http1.head(error.status, headers) + body)
        await connection.drain()

    async def _respond(self, connection: ServedConnection, request: Request) -> None:
        if request.path.startswith("/simulator/"):
            await self._json(connection, request, *self._control(request))
            return
        recorded = self._record(request)
        if request.path == _CHAT and request.method == "POST":
            await self._chat(connection, request, recorded)
            return
        status, body = self._plain(request)
        recorded.status = status
        await self._json(connection, request, status, body)

    def _record(self, request: Request) -> Recorded:
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        size = len(request.body)
        body = _readable(request.body) if size <= BODY_BYTES_KEPT else None
        recorded = Recorded(at, request.method, request.target, request.headers, body, size)
        self.requests.append(recorded)
        self.total_requests += 1
        return recorded

    async def _json(
        self, connection: ServedConnection, request: Request, status: int, body: object, close: bool = False
    ) -> None:
        data = b"" if body is None else compact(body).encode("utf-8", "replace")
        headers = {"content-length": str(len(data))}
        headers |= {"content-type": "application/json"} if data else {}
        headers |= {"connection": "close"} if close or not request.keeps_alive else {}
        connection.write(http1.head(status, headers) + (b"" if request.method == "HEAD" else data))
        await connection.drain()

    # -- chat --------------------------------------------------------------------------------------

    async def _chat(self, connection: ServedConnection, request: Request, recorded: Recorded) -> None:
        recorded.leg = (
            2 if isinstance(recorded.body, dict) and recorded.body.get("continue_final_message") else 1
        )
        try:
            fault = self._fault(request, recorded.leg)
        except FaultError as error:
            recorded.status = 400
            await self._json(connection, request, 400, _fault_error(str(error), faults.HEADER))
            return
        recorded.fault = fault.name if fault else None
        answer = self.engine.chat(request.body, changes_for(fault))
        if isinstance(answer, Answer) and fault and fault.name == "refuse":
            answer = self.engine.refused(fault.status)
        if isinstance(answer, Refusal):
            recorded.status = answer.status
            await self._json(connection, request, answer.status, answer.body)
            return
        recorded.status = 200
        logger.info(
            "leg %s, %s tokens of prompt, fault %s",
            recorded.leg,
            answer.prompt_tokens,
            recorded.fault or "none",
        )
        if not answer.request.stream:
            await self._whole(connection, request, answer, fault)
            return
        self.open_streams += 1
        try:
            await self._perform(connection, request, answer, fault)
        finally:
            self.open_streams -= 1

    def _fault(self, request: Request, leg: int) -> Fault | None:
        """The header's fault for this leg, else the first armed one. Raises FaultError."""
        for fault in faults.parse_header(request.headers.get(faults.HEADER.lower(), "")):
            if fault.concerns(leg):
                return fault
        for armed in self.armed:
            if armed.fault.concerns(leg):
                if armed.times is not None:
                    armed.times -= 1
                    if not armed.times:
                        self.armed.remove(armed)
                return armed.fault
        return None

    async def _whole(
        self, connection: ServedConnection, request: Request, answer: Answer, fault: Fault | None
    ) -> None:
        """An answer sent at once. Of the faults only those make sense that need no events."""
        body = answer.whole()
        await connection.pause(self.config.token_delay_ms / 1000 * answer.completion)
        match fault and fault.name:
            case "reset":
                await connection.reset()
            case "stall" | "stall_with_pings":
                await connection.pause(fault.lasts if fault else None)
            case "slow_first_token":
                await connection.pause(fault.delay if fault else 0)
            case "disconnect" | "half_closed" | "eof" | "empty":
                await connection.disconnect()
        await self._json(connection, request, 200, body)

    async def _perform(
        self, connection: ServedConnection, request: Request, answer: Answer, fault: Fault | None
    ) -> None:
        writer = _Writer(connection, request, self.config.token_delay_ms / 1000)
        for action in script(answer, fault):
            await writer.perform(action)

    # -- the other endpoints -----------------------------------------------------------------------

    def _plain(self, request: Request) -> tuple[int, object]:
        route = self._routes().get(request.path)
        if route is None:
            found: object = self.engine.not_found()
        elif request.method not in (route[0], "HEAD" if route[0] == "GET" else route[0]):
            found = self.engine.not_allowed()
        else:
            found = route[1](request.body)
        return (found.status, found.body) if isinstance(found, Refusal) else (200, found)

    def _routes(self) -> dict[str, tuple[str, Callable[[bytes], object]]]:
        engine = self.engine
        both: dict[str, tuple[str, Callable[[bytes], object]]] = {
            "/health": ("GET", lambda _: None),
            "/v1/models": ("GET", lambda _: engine.models()),
            "/tokenize": ("POST", engine.tokenize),
            "/detokenize": ("POST", engine.detokenize),
            _CHAT: ("POST", engine.chat),
        }
        if engine.is_vllm:
            both |= {"/version": ("GET", lambda _: engine.version()), "/ping": ("GET", lambda _: None)}
            both["/load"] = ("GET", lambda _: {"server_load": self.open_streams})
            return both | {path: ("POST", lambda _: engine.scale_out_disabled()) for path in _SCALE_OUT}
        both["/server_info"] = both["/get_server_info"] = ("GET", lambda _: engine.server_info())
        both["/v1/tokenize"] = ("POST", engine.tokenize)
        return both

    # -- control -----------------------------------------------------------------------------------

    def _control(self, request: Request) -> tuple[int, object]:
        match request.method, request.path:
            case "GET", "/simulator/faults":
                return 200, {"armed": [armed.shown() for armed in self.armed]}
            case "POST", "/simulator/faults":
                return self._arm(request.body)
            case "DELETE", "/simulator/faults":
                cleared, self.armed = len(self.armed), []
                return 200, {"cleared": cleared}
            case "GET", "/simulator/requests":
                return 200, {"requests": [asdict(recorded) for recorded in self.requests]}
            case "DELETE", "/simulator/requests":
                cleared = len(self.requests)
                self.requests.clear()
                return 200, {"cleared": cleared}
            case "GET", "/simulator/state":
                return 200, self._state()
            case _:
                return 404, _fault_error("GET, POST, DELETE /simulator/faults; GET, DELETE /simulator/requests; "
                                         "GET /simulator/state", None)  # fmt: skip

    def _arm(self, body: bytes) -> tuple[int, object]:
        try:
            armed = faults.read_armed(json.loads(body))
        except FaultError as error:
            return 400, _fault_error(str(error), None)
        except (ValueError, RecursionError):
            return 400, _fault_error('the body is no JSON; an example: {"fault": "reset", "after": 12}', None)
        self.armed += armed
        return 201, {"armed": [each.shown() for each in self.armed]}

    def _state(self) -> dict[str, Any]:
        """The asking connection is not counted."""
        return {
            "engine": self.config.engine,
            "template": self.config.template,
            "model": self.config.model,
            "open_connections": self.open_connections - 1,
            "open_streams": self.open_streams,
            "requests": self.total_requests,
            "armed": len(self.armed),
        }


class _Writer:
    """Performs the actions of a script on a connection."""

    def __init__(self, connection: ServedConnection, request: Request, delay: float) -> None:
        self._connection, self._request, self._delay = connection, request, delay
        self._chunked = request.version == "HTTP/1.1"

    async def perform(self, action: Action) -> None:
        connection = self._connection
        match action:
            case AnswerHead(length):
                self._head(length)
            case SendEvent(data, paced):
                await connection.pause(self._delay if paced else 0)
                connection.write(http1.chunk(data) if self._chunked else data)
                await connection.drain()
            case SendPart(data, count):
                announced = b"%x\r\n" % len(data) if self._chunked else b""
                connection.write(announced + data[:count])
            case Wait(seconds, every):
                await self._wait(seconds, every)
            case EndBody():
                await self._end()
            case Disconnect():
                await connection.disconnect()
            case HalfClose():
                await connection.half_close()
            case Reset():
                await connection.reset()

    def _head(self, length: int | None) -> None:
        headers = {"content-type": "text/event-stream; charset=utf-8"}
        if length is not None:
            self._chunked = False
            headers["content-length"] = str(length)
        elif self._chunked:
            headers["transfer-encoding"] = "chunked"
        if not self._request.keeps_alive or not self._chunked:
            headers["connection"] = "close"
        self._connection.write(http1.head(200, headers))

    async def _wait(self, seconds: float | None, every: float | None) -> None:
        if every is None:
            await self._connection.pause(seconds)
            return
        count = None if seconds is None else int(seconds / every)
        while count is None or count > 0:
            self._connection.write(http1.chunk(_PING) if self._chunked else _PING)
            await self._connection.drain()
            await self._connection.pause(every)
            count = None if count is None else count - 1

    async def _end(self) -> None:
        if not self._chunked:
            await self._connection.disconnect()
        self._connection.write(http1.LAST_CHUNK)
        await self._connection.drain()


def _readable(body: bytes) -> Any:
    if not body:
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body.decode("utf-8", "replace")


def _fault_error(message: str, param: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "SimulatorError", "param": param, "code": 400}}
