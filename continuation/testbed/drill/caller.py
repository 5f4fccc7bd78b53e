"""The clients of a drill: one asks and reads to the end; others leave, return, read slowly, opt out, send garbage."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from continuation.testbed.drill.flights import HEADER, Flight
from continuation.testbed.drill.injector import CHAT
from continuation.testbed.drill.plans import Return
from continuation.testbed.drill.questions import QUESTIONS, body_of
from continuation.testbed.drill.wire import BROKEN, Address, Connection, Head, request_bytes, until

# Seconds; no answer of a drill takes longer, however busy the machine is.
PATIENCE = 180.0
# Seconds within which the gateway has to let go of the engine once its client has left.
RELEASE_SECONDS = 10.0
SLOW_BUFFER_BYTES = 2**15
_POLL_SECONDS = 0.01


class Caller:
    """Asks one question after the other, now and then on the connection of the one before."""

    def __init__(self, gateway: Address, model: str, idle_seconds: float) -> None:
        self._gateway, self._model, self._idle = gateway, model, idle_seconds
        self._kept: Connection | None = None

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    async def call(self, flight: Flight) -> None:
        """Fills flight.heard. Raises nothing but cancellation."""
        heard, kind = flight.heard, flight.plan.kind
        try:
            async with asyncio.timeout(PATIENCE):
                await (self._garbage(flight) if kind == "client_garbage" else self._ask(flight))
        except TimeoutError:
            heard.ended, heard.trouble = "late", f"no end within {PATIENCE:g} s"
            self.close()
        except BROKEN as trouble:
            heard.ended, heard.trouble = "broken", repr(trouble)
            self.close()
        if kind.startswith("client_leaves"):
            await until(lambda: all(leg.ended for leg in flight.legs), RELEASE_SECONDS)

    async def _ask(self, flight: Flight) -> None:
        request = _request(flight, self._model)
        flight.sent = request.body
        connection = await self._sent(flight, request)
        if _leaves_before_headers(flight):
            await until(lambda: bool(flight.legs), PATIENCE)
            self._leave(flight, connection)
            return
        head = await connection.read_head()
        flight.heard.status, flight.heard.fields = head.status, dict(head.fields)
        if flight.plan.kind.startswith("client_leaves"):
            await self._read_until_leaving(flight, connection, head)
            return
        if flight.plan.returns:
            await self._read_and_come_back(flight, connection, head)
            return
        await self._read(flight, connection, head)
        if head.closes or not flight.plan.keeps_connection:
            self.close()

    async def _sent(self, flight: Flight, request: DrillRequest) -> Connection:
        """A kept connection may have been closed meanwhile; the request then goes out on a new one."""
        if self._kept is not None and self._kept.left:
            self.close()
        if self._kept is None:
            buffer = SLOW_BUFFER_BYTES if flight.plan.kind == "client_slow" else 0
            self._kept = await self._gateway.connect(buffer)
        host = {"host": f"{self._gateway.host}:{self._gateway.port}"}
        fields = {**host, **request.headers}.items()
        flight.heard.sent_at = time.monotonic()
        target = self._gateway.prefix + request.target
        await self._kept.send(request_bytes(request.method, target, fields, request.body))
        return self._kept

    async def _read(self, flight: Flight, connection: Connection, head: Head) -> None:
        heard, rested = flight.heard, flight.plan.kind != "client_slow"
        async for piece in connection.pieces(head):
            flight.take(piece)
            if not rested and len(heard.gaps) >= 3:
                rested = True
                await asyncio.sleep(self._idle * 1.3)
                heard.last_at = time.monotonic()
        heard.ended = "clean"

    async def _read_until_leaving(self, flight: Flight, connection: Connection, head: Head) -> None:
        reading = asyncio.create_task(self._read(flight, connection, head), name="a client that will leave")
        try:
            while not (reading.done() or _leaves_now(flight)):
                await asyncio.wait({reading}, timeout=_POLL_SECONDS)
        finally:
            reading.cancel()
            await asyncio.wait({reading})
        if not reading.cancelled() and (trouble := reading.exception()) is not None:
            raise trouble
        self._leave(flight, connection)

    def _leave(self, flight: Flight, connection: Connection) -> None:
        strikes = (flight.plan.leg1, flight.plan.leg2)
        if any(strike and strike.name == "hold" and strike.how.endswith("reset") for strike in strikes):
            connection.reset()
        self.close()
        flight.heard.ended = flight.heard.ended or "left"

    # -- coming back -------------------------------------------------------------------------------

    async def _read_and_come_back(self, flight: Flight, connection: Connection, head: Head) -> None:
        heard = flight.heard
        stream_id, token = head.get("x-stream-id"), head.get("x-resume-token")
        if not (stream_id and token):
            heard.ended, heard.trouble = "broken", f"not resumable: X-Resume is {head.get('x-resume')!r}"
            self.close()
            return
        for back in flight.plan.returns:
            if await self._read_events(flight, connection, head, back.after):
                break
            if back.parting == "reset":
                connection.reset()
            self.close()
            await asyncio.sleep(back.pause)
            self._kept = connection = await self._gateway.connect()
            await connection.send(self._return_bytes(flight, back, stream_id, token))
            head = await connection.read_head()
            if head.status != 200:
                said = (await connection.body(head))[:100]
                heard.ended = "broken"
                heard.trouble = (
                    f"coming back by {back.way} after event {heard.last_id}: {head.status} {said!r}"
                )
                self.close()
                return
        else:
            await self._read_events(flight, connection, head)
        heard.ended = "clean"
        self.close()

    async def _read_events(
        self, flight: Flight, connection: Connection, head: Head, most: int | None = None
    ) -> bool:
        """Whether the answer ended, rather than that enough of its events have come."""
        pending, count = b"", 0
        if most == 0:
            return False
        async for piece in connection.pieces(head):
            pending += piece
            while (end := pending.find(b"\n\n") + 2) > 1:
                flight.take_numbered(pending[:end])
                pending, count = pending[end:], count + 1
                if count == most:
                    return False
        if pending:
            flight.take(pending)
        return True

    def _return_bytes(self, flight: Flight, back: Return, stream_id: str, token: str) -> bytes:
        fields = {"host": f"{self._gateway.host}:{self._gateway.port}", "authorization": _caller(flight)}
        position = str(flight.heard.last_id)
        target = f"{self._gateway.prefix}/v1/streams/{stream_id}"
        if back.way == "query":
            return request_bytes("GET", f"{target}?token={token}&last_event_id={position}", fields.items())
        fields |= {"x-resume-token": token, "last-event-id": position}
        if back.way == "get":
            return request_bytes("GET", target, fields.items())
        fields["content-type"] = "application/json"
        return request_bytes("POST", self._gateway.prefix + CHAT, fields.items(), flight.sent)

    # -- garbage -----------------------------------------------------------------------------------

    async def _garbage(self, flight: Flight) -> None:
        assert flight.plan.leg1
        how = flight.plan.leg1.how
        if how not in ("not_http", "half_head", "half_body"):
            await self._ask(flight)
            return
        self.close()
        self._kept = connection = await self._gateway.connect()
        await connection.send(_RAW[how])
        if how == "not_http":
            flight.heard.raw += await connection.reader.read()
        else:
            await asyncio.sleep(_POLL_SECONDS)
        flight.heard.ended = "left"
        self.close()


_RAW = {
    "not_http": b"\x16\x03\x01\x02\x00\x01\x00 this is no HTTP\r\n\r\n",
    "half_head": b"POST /v1/chat/completions HTTP/1.1\r\nHost: drill\r\nContent-Le",
    "half_body": b'POST /v1/chat/completions HTTP/1.1\r\nHost: drill\r\nContent-Length: 900\r\n\r\n{"model": ',
}


@dataclass(frozen=True, slots=True)
class DrillRequest:
    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


def _request(flight: Flight, model: str) -> DrillRequest:
    plan = flight.plan
    headers = {
        "content-type": "application/json",
        "x-request-id": flight.request_id,
        HEADER: str(plan.number),
    }
    body = body_of(QUESTIONS[plan.question], model, plan.usage)
    if plan.returns:
        headers |= {"X-Resumable": "1", "authorization": _caller(flight)}
    if plan.kind == "client_opts_out":
        headers["X-Continuation"] = "off"
    if plan.kind in ("client_passes", "client_garbage") and plan.leg1:
        method, target, sent = _unguarded(plan.leg1.how, body)
        return DrillRequest(method, target, headers, sent)
    return DrillRequest("POST", CHAT, headers, orjson.dumps(body))


def _caller(flight: Flight) -> str:
    return f"Bearer drill-{flight.plan.number}"


def _unguarded(how: str, body: Mapping[str, Any]) -> tuple[str, str, bytes]:
    """Method, target and body of a request that the gateway passes through."""
    plain = {name: value for name, value in body.items() if name not in ("tools", "stream_options")}
    begun = [*body["messages"], {"role": "assistant", "content": "Well, "}]
    flags = {"continue_final_message": True, "add_generation_prompt": False}
    chats: dict[str, bytes] = {
        "not_stream": orjson.dumps({**plain, "stream": False}),
        "choices": orjson.dumps({**plain, "n": 2}),
        "structured": orjson.dumps({**plain, "response_format": {"type": "json_object"}}),
        "guided": orjson.dumps({**plain, "guided_regex": "[a-z]+"}),
        "continues": orjson.dumps({**plain, "messages": begun, **flags}),
        "not_json": b'{"model": "x", "messages": [}',
        "no_object": b'["stream", true]',
        "deep": b'{"stream": true, "messages": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        "wrong_types": b'{"stream": true, "model": 7, "messages": "hello", "max_tokens": {}}',
    }
    if how in chats:
        return "POST", CHAT, chats[how]
    others = {
        "models": ("GET", "/v1/models", b""),
        "query": ("GET", "/v1/models?a=%2F&b=1&a=%C3%A9", b""),
        "unknown_path": ("POST", "/v1/nothing/here", orjson.dumps(plain)),
        "method": ("DELETE", CHAT, b""),
    }
    return others[how]


def _leaves_before_headers(flight: Flight) -> bool:
    strike = flight.plan.leg1
    return strike is not None and strike.name == "hold" and strike.how.startswith("headers")


def _leaves_now(flight: Flight) -> bool:
    """When the engine has fallen silent, or has said enough."""
    leg1, leg2, strike = flight.leg1, flight.leg2, flight.plan.leg1
    if flight.plan.kind == "client_leaves_leg2":
        return leg2 is not None and leg2.struck
    if leg1 is None or strike is None:
        return False
    if "flowing" in strike.how:
        return len(leg1.events) >= strike.after
    return leg1.struck and flight.client_has_leg1
