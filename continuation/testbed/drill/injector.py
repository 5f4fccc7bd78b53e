"""Stands between the gateway and an engine, breaks what passes where the plan says so, and notes what it did.

Requests are known by the header X-Drill-Stream, which the gateway hands on; all others are forwarded untouched.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from random import Random
from typing import Any

import orjson

from continuation.testbed.drill.flights import HEADER, Flight, FlownLeg
from continuation.testbed.drill.plans import ERROR, PLAIN, STALLS, TELLING_CHARS, Framing, Plan, Strike
from continuation.testbed.drill.reading import has_finish, read
from continuation.testbed.drill.wire import (
    BROKEN,
    LAST_CHUNK,
    Address,
    Connection,
    Head,
    chunk,
    head_bytes,
    until,
)

CHAT = "/v1/chat/completions"
DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
PING_SECONDS = 0.2
# Seconds that a fault waits for the gateway to leave, or for what was sent to reach the client.
PATIENCE = 30.0
FLOWING_SECONDS = 0.05
_BEFORE_ANSWER = ("refused", "unreachable", "empty", "empty_stop")
_STREAM = (("content-type", "text/event-stream; charset=utf-8"), ("transfer-encoding", "chunked"))


class Injector:
    """idle_seconds is the gateway's STALL_IDLE_TIMEOUT_SECONDS: silences are made longer or shorter than that."""

    def __init__(self, engine: Address, continuation: Address, idle_seconds: float) -> None:
        self._engine, self._continuation = engine, continuation
        self.idle_seconds = idle_seconds
        self.flights: dict[str, Flight] = {}
        self.url = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Raises OSError where the address cannot be had."""
        self._server = await asyncio.start_server(self._accepted, host, port, limit=2**24, backlog=1024)
        name, number = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://[{name}]:{number}" if ":" in name else f"http://{name}:{number}"

    async def stop(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._server = None

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        gateway = Connection(reader, writer)
        try:
            while await self._exchange(gateway):
                pass
        except (*BROKEN, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            gateway.close()

    async def _exchange(self, gateway: Connection) -> bool:
        """One request and its answer; whether the connection can be used again."""
        head = await gateway.read_head()
        sent = await gateway.body(head)
        flight = self.flights.get(head.get(HEADER.lower()))
        if flight is None:
            leg = FlownLeg(1, head, sent)
            return await Passage(self, gateway, leg, Flight(_NO_PLAN, "")).run(None, PLAIN)
        leg = FlownLeg(_leg_number(flight, head, sent), head, sent)
        flight.legs.append(leg)
        strike, framing = (
            (flight.plan.leg2, flight.plan.framing2)
            if leg.number == 2
            else (flight.plan.leg1, flight.plan.framing)
        )
        try:
            return await Passage(self, gateway, leg, flight).run(strike, framing)
        except BROKEN:  # of the gateway's connection; those of the engine's are answered for in there
            leg.ended = leg.ended or "left"
            leg.left_at = leg.left_at or time.monotonic()
            return False

    def address(self, leg: FlownLeg) -> Address:
        return self._continuation if leg.number == 2 else self._engine


def _leg_number(flight: Flight, head: Head, sent: bytes) -> int:
    """Leg 2 is a continuation, or goes to another path than the chat. The client's own request, asked a second time,
    gets a number that no leg may have."""
    if flight.leg1 is None:
        return 1
    is_continuation = b'"continue_final_message"' in sent or head.target.partition("?")[0] != CHAT
    return 2 if is_continuation else len(flight.legs) + 2


class Passage:
    """One request of the gateway, and the answer that it is given."""

    def __init__(self, injector: Injector, gateway: Connection, leg: FlownLeg, flight: Flight) -> None:
        self._injector, self._gateway, self._leg, self._flight = injector, gateway, leg, flight
        self._rng = Random(f"{flight.plan.number}/{leg.number}")
        self._framing = PLAIN
        leg.handed_at = time.monotonic()
        self._idle = injector.idle_seconds
        self._is_over = False  # a guarded client sees nothing of what comes from now on

    async def run(self, strike: Strike | None, framing: Framing) -> bool:
        """Whether the connection can be used again."""
        if strike and strike.name in _BEFORE_ANSWER:
            return await self._instead(strike)
        if strike and strike.name == "hold" and strike.how.startswith("headers"):
            return await self._hold()
        again = strike is not None and strike.name in ("restart", "depart")
        request = self._flight.leg1 if again and self._flight.leg1 else self._leg
        try:
            engine = await self._injector.address(request).connect()
        except OSError:
            return self._broken()
        try:
            return await self._asked(engine, request, strike, framing)
        finally:
            engine.close()

    async def _asked(
        self, engine: Connection, request: FlownLeg, strike: Strike | None, framing: Framing
    ) -> bool:
        prefix = self._injector.address(request).prefix
        method, target, version = request.request.line.split(" ", 2)
        fields = [(name, value) for name, value in request.request.fields if name != "transfer-encoding"]
        if request.request.is_chunked:
            fields.append(("content-length", str(len(request.sent))))
        try:
            await engine.send(head_bytes(f"{method} {prefix}{target} {version}", fields) + request.sent)
            head = await engine.read_head()
        except BROKEN:
            return self._broken()
        self._leg.status = head.status
        if not (head.is_event_stream and head.is_chunked):
            return await self._whole(engine, head)
        await self._gateway.send(head_bytes("HTTP/1.1 200 OK", _STREAM))
        return await self._streamed(engine, head, strike, framing)

    async def _whole(self, engine: Connection, head: Head) -> bool:
        """An answer that is no event stream goes through as it is."""
        bodiless = self._leg.request.method == "HEAD"
        try:
            data = b"".join([piece async for piece in engine.pieces(head, bodiless=bodiless)])
        except BROKEN:
            return self._broken()
        hop = ("transfer-encoding", "content-length", "connection")
        fields = [(name, value) for name, value in head.fields if name not in hop]
        if head.status not in (204, 304):
            fields.append(("content-length", head.get("content-length") if bodiless else str(len(data))))
        self._leg.body += data
        self._leg.ended = "clean"
        await self._gateway.send(head_bytes(head.line, fields) + data)
        return not self._leg.request.closes

    # -- an event stream ---------------------------------------------------------------------------

    async def _streamed(
        self, engine: Connection, head: Head, strike: Strike | None, framing: Framing
    ) -> bool:
        self._framing = framing
        if strike and strike.name == "late":
            await self._silence(strike)
        try:
            async with aclosing(_events(engine, head)) as events:
                goes_on = await self._told(events, strike)
        except _EngineBroke:
            return self._broken()
        if not goes_on:
            return self._leg.ended == "clean"
        if strike and strike.name == "hold_open":
            return await self._hold()
        return await self._end()

    async def _told(self, events: AsyncIterator[bytes], strike: Strike | None) -> bool:
        """Whether all events were handed on, and the end is still to come."""
        pending, change = strike, _change(strike, self._flight)
        async for event in events:
            if self._gateway.left:
                self._note_silence()
                self._leg.leave()
                return False
            if pending and self._is_moment(pending, event):
                if not await self._strike(pending, event):
                    return False
                pending = None
            await self._hand(change(event))
            if strike and strike.name == "hold" and "flowing" in strike.how:
                await asyncio.sleep(FLOWING_SECONDS)
        return True

    def _is_moment(self, strike: Strike, coming: bytes) -> bool:
        """Faults strike before the finish at the latest, but for those of the ending."""
        leg = self._leg
        if strike.name == "ending_lost":
            finished = bool(leg.events) and any(map(has_finish, leg.events[-2:]))
            return finished and (strike.how != "no_done" or coming == DONE)
        if strike.name == "hold" and "flowing" in strike.how:
            return has_finish(coming)
        return strike.name in _STRIKES and (len(leg.events) >= strike.after or has_finish(coming))

    async def _strike(self, strike: Strike, coming: bytes) -> bool:
        """Whether the answer goes on after it."""
        self._leg.struck = True
        self._note_silence()
        if strike.name == "ending_lost":
            name = {"no_done": "eof"}.get(strike.how, strike.how)
            return await _STRIKES[name](self, strike, coming)
        return await _STRIKES[strike.name](self, strike, coming)

    async def _hand(self, event: bytes) -> None:
        leg, framing = self._leg, self._framing
        data = framing.dress(event, self._rng, first=not leg.body)
        self._note_silence()
        try:
            await self._write(data)
        finally:
            # With padding the client is slow, and the time that a write takes is the client's.
            if not framing.padding:
                self._note_silence()
        if not self._is_over:
            leg.events.append(event)
            leg.raw += data
        self._leg.handed_at = time.monotonic()

    def _note_silence(self) -> None:
        self._leg.silence = max(self._leg.silence, time.monotonic() - self._leg.handed_at)

    async def _write(self, data: bytes) -> None:
        self._leg.body += data
        pieces = self._framing.split(data, self._rng)
        for piece in pieces:
            if self._gateway.writer.is_closing():
                raise ConnectionResetError("the gateway has left")
            self._gateway.writer.write(chunk(piece))
            if len(pieces) > 1:
                await asyncio.sleep(0)
        await self._gateway.writer.drain()

    async def _end(self) -> bool:
        await self._gateway.send(LAST_CHUNK)
        self._leg.ended = "clean"
        return True

    def _broken(self) -> bool:
        self._leg.ended = "broken"
        return False

    # -- faults ------------------------------------------------------------------------------------

    async def _instead(self, strike: Strike) -> bool:
        """Answers that no engine is asked for."""
        self._leg.struck = True
        match strike.name:
            case "refused":
                return await self._refused(int(strike.how))
            case "unreachable":
                await self._part(strike.how)
                return self._broken()
            case _:
                self._leg.status = 200
                await self._gateway.send(head_bytes("HTTP/1.1 200 OK", _STREAM))
                if strike.name == "empty_stop":
                    await self._empty_stop()
                return await self._end()

    async def _refused(self, status: int) -> bool:
        self._leg.status = status
        error = {"message": "The drill refuses this.", "type": "DrillError", "code": status}
        self._leg.body += orjson.dumps({"error": error})
        self._leg.ended = "clean"
        fields = (("content-type", "application/json"), ("content-length", str(len(self._leg.body))))
        await self._gateway.send(head_bytes(f"HTTP/1.1 {status} Refused", fields) + self._leg.body)
        return True

    async def _empty_stop(self) -> None:
        for delta, finish in (({"role": "assistant", "content": ""}, None), ({}, "stop")):
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            await self._write(_event({**_IDENTITY, "choices": [choice]}))
        counts = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
        await self._write(_event({**_IDENTITY, "choices": [], "usage": counts}) + DONE)

    async def _part(self, how: str) -> None:
        if how == "reset":
            self._gateway.reset()
        else:
            self._gateway.close()

    async def _hold(self) -> bool:
        """Nothing more, until the gateway leaves."""
        self._leg.struck = True
        if await self._gateway.wait_until_left(PATIENCE):
            self._leg.leave()
        return False

    async def _silence(self, strike: Strike) -> None:
        """A short one adds to what the engine's own silence may have been."""
        self._leg.struck = True
        await asyncio.sleep(self._idle * (0.4 if strike.how == "short" else 1.3))
        if strike.how != "short":
            self._leg.handed_at = time.monotonic()

    async def _pause(self, strike: Strike, coming: bytes) -> bool:
        await self._silence(strike)
        return True

    async def _held(self, strike: Strike, coming: bytes) -> bool:
        return await self._hold()

    async def _reset(self, strike: Strike, coming: bytes) -> bool:
        await self._until_read()
        self._gateway.reset()
        return self._broken()

    async def _until_read(self) -> None:
        """Until all has arrived at the client, for some faults take away what the gateway has not read yet."""
        if self._leg.number == 1:
            await until(lambda: self._flight.client_has_leg1, PATIENCE)

    async def _disconnect(self, strike: Strike, coming: bytes) -> bool:
        self._gateway.close()
        return self._broken()

    async def _half_closed(self, strike: Strike, coming: bytes) -> bool:
        self._leg.ended = "broken"
        self._gateway.writer.write_eof()
        if await self._gateway.wait_until_left(PATIENCE):
            self._leg.left_at = time.monotonic()
        return False

    async def _broken_framing(self, strike: Strike, coming: bytes) -> bool:
        self._leg.ended = "broken"
        await self._until_read()
        await self._gateway.send(b"many\r\n" + coming + b"\r\n")
        if await self._gateway.wait_until_left(PATIENCE):
            self._leg.left_at = time.monotonic()
        return False

    async def _eof(self, strike: Strike, coming: bytes) -> bool:
        await self._end()
        return False

    async def _done(self, strike: Strike, coming: bytes) -> bool:
        await self._write(DONE)
        return await self._eof(strike, coming)

    async def _cut_event(self, strike: Strike, coming: bytes) -> bool:
        if strike.how == "blank_line" and not has_finish(coming):
            line = self._framing.dress(coming, self._rng, first=not self._leg.body).rstrip(b"\r\n")
            await self._write(line)
            self._leg.events.append(coming)
            self._leg.raw += line
        else:
            inside = 1 + int(strike.share * (len(coming) - 6))
            await self._write(coming[:inside])
        self._gateway.close()
        return self._broken()

    async def _cut_character(self, strike: Strike, coming: bytes) -> bool:
        inside = next((at + 1 for at, byte in enumerate(coming) if byte >= 0xC0), None)
        await self._write(coming[:inside] if inside else coming[: len(coming) // 2] + "渐".encode()[:1])
        self._gateway.close()
        return self._broken()

    async def _stall(self, strike: Strike, coming: bytes) -> bool:
        """Until the gateway leaves; a gateway that has to go on waiting gets the rest in the end."""
        end = time.monotonic() + self._idle * 2 + 3
        while (left := end - time.monotonic()) > 0:
            pings = strike.name == "stall_with_pings"
            if await self._gateway.wait_until_left(min(left, PING_SECONDS) if pings else left):
                self._leg.leave()
                return False
            if pings:
                await self._write(PING)
        self._leg.went_on = True
        self._leg.handed_at = time.monotonic()
        return True

    async def _error(self, strike: Strike, coming: bytes) -> bool:
        await self._write(_error_event(strike))
        await self._write(DONE)
        return await self._eof(strike, coming)

    async def _aborted(self, strike: Strike, coming: bytes) -> bool:
        choice = {"index": 0, "delta": {}, "finish_reason": strike.how}
        await self._write(_event({**_like(coming), "choices": [choice]}))
        await self._write(DONE)
        return await self._eof(strike, coming)

    async def _malformed(self, strike: Strike, coming: bytes) -> bool:
        """The engine itself notices nothing, and goes on."""
        data = {
            "cut": coming[: 6 + len(coming) // 2],
            "words": b"data: oops",
            "bracket": b'data: {"choices":[',
        }
        await self._write(data[strike.how].rstrip() + b"\n\n")
        self._is_over = True
        return True


Fault = Callable[[Passage, Strike, bytes], Awaitable[bool]]
_STRIKES: dict[str, Fault] = {
    "reset": Passage._reset,
    "disconnect": Passage._disconnect,
    "half_closed": Passage._half_closed,
    "broken_framing": Passage._broken_framing,
    "eof": Passage._eof,
    "done_without_finish": Passage._done,
    "cut_inside_event": Passage._cut_event,
    "cut_inside_character": Passage._cut_character,
    **dict.fromkeys(STALLS, Passage._stall),
    "error_event": Passage._error,
    "client_error_event": Passage._error,
    "aborted": Passage._aborted,
    "malformed": Passage._malformed,
    "pause": Passage._pause,
    "hold": Passage._held,
}
_IDENTITY: dict[str, Any] = {
    "id": "chatcmpl-drill",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "drill",
}
_NO_PLAN = Plan(-1, "none", 0)


class _EngineBroke(Exception):
    """The engine itself ended its answer before it was whole."""


async def _events(engine: Connection, head: Head) -> AsyncGenerator[bytes, None]:
    """Each with its blank line. Raises _EngineBroke."""
    pending = b""
    try:
        async for piece in engine.pieces(head):
            pending += piece
            while b"\n\n" in pending:
                event, mark, pending = pending.partition(b"\n\n")
                yield event + mark
    except BROKEN as trouble:
        raise _EngineBroke from trouble
    if pending:
        yield pending


def _event(value: Any) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def _json(event: bytes) -> dict[str, Any] | None:
    try:
        value = orjson.loads(event.removeprefix(b"data:").strip())
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _like(event: bytes) -> dict[str, Any]:
    """What makes a chunk one of the same answer as `event`."""
    return {name: (_json(event) or {}).get(name, told) for name, told in _IDENTITY.items()}


def _error_event(strike: Strike) -> bytes:
    blames = strike.name == "client_error_event"
    code = 400 if blames else 429 if strike.how == "retryable" else 500
    error: dict[str, Any] = {"message": ERROR, "type": "DrillError", "code": code}
    match strike.how:
        case "flat":
            return _event({"object": "error", **error})
        case "named":
            return b"event: error\n" + _event({"message": ERROR})
        case "text":
            return _event({"error": ERROR})
        case _:
            return _event({"error": error | {"param": None}})


# -- leg 2 changed -----------------------------------------------------------------------------------


def _change(strike: Strike | None, flight: Flight) -> Callable[[bytes], bytes]:
    match strike:
        case Strike(name="rename"):
            return _renamed
        case Strike(name="depart", share=share) if flight.leg1:
            told = read(bytes(flight.leg1.raw))
            room = max(0, len(told.reasoning + told.content) - TELLING_CHARS - 1)
            return _Departing(TELLING_CHARS + int(share * room)).changed
        case _:
            return bytes


def _renamed(event: bytes) -> bytes:
    """With the reasoning under the other of its two names."""
    chunk_ = _json(event)
    if chunk_ is None:
        return event
    other = {"reasoning": "reasoning_content", "reasoning_content": "reasoning"}
    for choice in chunk_.get("choices") or []:
        choice["delta"] = {other.get(name, name): told for name, told in (choice.get("delta") or {}).items()}
    return _event(chunk_)


class _Departing:
    """From character `after` on other words are said."""

    def __init__(self, after: int) -> None:
        self._left = after

    def changed(self, event: bytes) -> bytes:
        chunk_ = _json(event)
        if chunk_ is None:
            return event
        for choice in chunk_.get("choices") or []:
            delta = choice.get("delta") or {}
            for name in ("reasoning", "reasoning_content", "content"):
                if delta.get(name):
                    delta[name] = self._said(delta[name])
        return _event(chunk_)

    def _said(self, text: str) -> str:
        kept, self._left = text[: self._left], max(0, self._left - len(text))
        return kept if len(kept) == len(text) else f"{kept}§ elsewhere"
