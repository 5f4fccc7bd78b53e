"""The one loop that awaits: it performs what the splice asks for."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

import httpx

from continuation.downstream.client import Readable, Upstream
from continuation.downstream.troubles import describe
from continuation.metrics import noting
from continuation.patience import catch_up
from continuation.shapes.sse import comment_line
from continuation.splice.actions import Action, CloseLeg, OpenLeg, OpenTokens, Send
from continuation.splice.course import Phase
from continuation.splice.machine import Splice
from continuation.splice.record import StreamRecord
from continuation.token_route.route import Refused, ScaleOutMissing
from continuation.vocabulary import Failure, Reason, ended_by

logger = logging.getLogger(__name__)

Step = Callable[[float], list[Action]]
OpenContinuation = Callable[[OpenLeg | OpenTokens], Coroutine[Any, Any, Upstream]]
KEEPALIVE = comment_line("keepalive")
# Bytes of a refusal's body that are read, to quote its message in the audit, and seconds that this may take.
REFUSAL_BYTES = 2**16
REFUSAL_SECONDS = 5.0
# Seconds that the engine gets after [DONE] to end its answer, so that the connection can be used again.
ENDING_SECONDS = 0.05


class Audit(Protocol):
    """Where the record of a stream goes. It returns at once and never raises."""

    def record(self, stream_record: StreamRecord) -> None: ...


class Relay:
    """Runs one guarded stream to its end.

    keepalive: seconds between comments to the client while nothing else is sent, 0 for none.
    silence: seconds without a byte of leg 2 after which that is logged, once.
    audit: where its record goes; None for a stream that does not count as traffic: it is neither in the audit nor in
    the log nor in any figure of the metrics.
    """

    def __init__(
        self,
        splice: Splice,
        upstream: Upstream | None,
        open_continuation: OpenContinuation,
        *,
        keepalive: float,
        silence: float,
        audit: Audit | None,
    ) -> None:
        self.splice = splice
        self._body: Readable | None = upstream.body if upstream else None
        self._opening: asyncio.Task[Upstream] | None = None
        self._open_continuation = open_continuation
        self._keepalive = keepalive
        self._silence = silence
        self._silence_logged = False
        self._sent_at = self._heard_at = time.monotonic()
        self._waiting: asyncio.Timeout | None = None
        self._asked_at = 0.0  # for leg 2, until its first byte
        self._has_begun = False
        self._next_steps: deque[Step] = deque()
        self.on_continuation: Callable[[], None] = _nothing  # called when leg 2 is asked for
        self.audit = audit

    def shut_down(self) -> None:
        """End the answer now, as well as it can be ended. At any time, from the loop that it runs on."""
        self.step(self.splice.shut_down)

    def give_up(self, reason: Reason) -> None:
        """The same, because nobody wants the rest."""
        self.step(lambda now: self.splice.given_up(reason, now))

    def break_leg(self) -> None:
        """As if the connection of the current leg had broken just now."""
        self.step(lambda now: self.splice.leg_ended(Failure.DISCONNECT, now, "broken on purpose"))

    def step(self, step: Step) -> None:
        """Let the splice take this step next, whatever it is waiting for; after those that it is to take already."""
        self._next_steps.append(step)
        if self._waiting is not None:
            with suppress(RuntimeError):  # that wait is over
                self._waiting.reschedule(asyncio.get_running_loop().time())

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        splice = self.splice
        splice.leg1_opened(time.monotonic())
        try:
            while not splice.ended:
                for action in await self._next_actions():
                    match action:
                        case Send(data):
                            sending = time.monotonic()
                            self._note_first(sending)
                            yield data
                            self._sent_at = time.monotonic()
                            self._heard_at += self._sent_at - sending
                            splice.waited_for_client(self._sent_at - sending)
                        case OpenLeg() | OpenTokens():
                            self.on_continuation()
                            self._heard_at = self._asked_at = time.monotonic()
                            self._opening = asyncio.create_task(
                                self._open_continuation(action), name=f"continuation of {splice.request_id}"
                            )
                        case CloseLeg():
                            await self._close_leg()
        finally:
            splice.client_gone(time.monotonic())
            await self._release()
            if self.audit is not None:
                keep(splice.record(), self.audit)

    async def _next_actions(self) -> list[Action]:
        """What to do after what happens next: a read, leg 2's headers, the idle deadline, a keep-alive, the end."""
        try:
            if self._next_steps:
                return self._next_steps.popleft()(time.monotonic())
            return await self._wait()
        except Exception:
            logger.exception("request %s: the relay failed", self.splice.request_id)
            return self.splice.broke(time.monotonic())

    async def _wait(self) -> list[Action]:
        deadline = self.splice.idle_deadline()
        wake = self._wake_at(deadline)
        seconds = None if wake is None else max(0.0, wake - time.monotonic())
        if self._opening is not None:
            return await self._wait_for_leg2(self._opening, seconds)
        assert self._body is not None
        try:
            async with asyncio.timeout(seconds) as self._waiting:
                read = await self._body.read()
        except TimeoutError:
            return await self._woken(deadline)
        except httpx.HTTPError as trouble:
            return self.splice.leg_ended(Failure.DISCONNECT, time.monotonic(), describe(trouble))
        except (ScaleOutMissing, Refused) as trouble:
            return self._token_route_failed(trouble)
        return self._heard(read)

    def _token_route_failed(self, trouble: ScaleOutMissing | Refused) -> list[Action]:
        now = time.monotonic()
        if isinstance(trouble, ScaleOutMissing):
            return self.splice.scale_out_missing(str(trouble), now)
        return self.splice.leg2_refused(trouble.status, trouble.body, now)

    def _note_first(self, now: float) -> None:
        if not self._has_begun:
            self._has_begun = True
            if self.audit is not None:
                noting.first_event(now - self.splice.started_at)

    def _heard(self, read: bytes) -> list[Action]:
        now = self._heard_at = time.monotonic()
        if self._asked_at and read:
            if self.audit is not None:
                noting.leg2_first_byte(now - self._asked_at)
            self._asked_at = 0.0
        if not read:
            return self.splice.leg_ended(Failure.EOF, now)
        # Comments without end bring nothing new, but there is never a moment of waiting between them.
        return [*self.splice.received(read, now), *self.splice.idle_expired(now)]

    def _wake_at(self, deadline: float | None) -> float | None:
        times = [deadline] if deadline is not None else []
        if self._keepalive and self.splice.phase is not Phase.UNFRAMED:
            times.append(self._sent_at + self._keepalive)
        if self.splice.phase is Phase.LEG2 and not self._silence_logged:
            times.append(self._heard_at + self._silence)
        return min(times, default=None)

    async def _woken(self, deadline: float | None) -> list[Action]:
        """The time has come for something; but if the whole process was held up, bytes may be there by now."""
        await catch_up(turns=1)
        if self._next_steps:
            return []  # these come next
        if self._opening is None and self._body is not None:
            with suppress(httpx.HTTPError, ScaleOutMissing, Refused):  # the next read shows
                if read := self._body.read_nowait():
                    return self._heard(read)
        now = time.monotonic()
        if deadline is not None and now >= deadline:
            return self.splice.idle_expired(now)
        self._log_silence(now)
        if self._keepalive and now >= self._sent_at + self._keepalive:
            return [Send(KEEPALIVE)]
        return []

    def _log_silence(self, now: float) -> None:
        silent = self.splice.phase is Phase.LEG2 and now >= self._heard_at + self._silence
        if silent and not self._silence_logged:
            self._silence_logged = True
            logger.warning(
                "request %s: the continuation has been silent for %.0f s; waiting on",
                self.splice.request_id,
                self._silence,
            )

    async def _wait_for_leg2(self, opening: asyncio.Task[Upstream], seconds: float | None) -> list[Action]:
        try:
            async with asyncio.timeout(seconds) as self._waiting:
                await asyncio.wait({opening})
        except TimeoutError:
            return await self._woken(None)
        self._opening = None
        now = self._heard_at = time.monotonic()
        try:
            upstream = opening.result()
        except httpx.LocalProtocolError:  # a fault of the gateway's own
            raise
        except httpx.HTTPError as trouble:
            return self.splice.leg2_unreachable(describe(trouble), now)
        except (ScaleOutMissing, Refused) as trouble:
            return self._token_route_failed(trouble)
        self._body = upstream.body
        if upstream.status == 200 and upstream.is_event_stream and not upstream.is_encoded:
            self.splice.leg2_opened(upstream.status, now, upstream.delivered)
            return []
        refusal = await self._beginning(upstream.body)
        return self.splice.leg2_refused(upstream.status, refusal, time.monotonic())

    async def _beginning(self, body: Readable) -> bytes:
        """The first part of a refusal; what cannot be read, or not in time, is left out."""
        read = b""
        seconds = 0.0 if self._next_steps else REFUSAL_SECONDS
        with suppress(TimeoutError, httpx.HTTPError):
            async with asyncio.timeout(seconds) as self._waiting:
                while len(read) < REFUSAL_BYTES and (more := await body.read()):
                    read += more
        return read

    async def _close_leg(self) -> None:
        body, self._body = self._body, None
        if body is None:
            return
        if self.splice.phase is Phase.DONE:
            await _let_end(body)
        await body.aclose()

    async def _release(self) -> None:
        """Nothing of this stream stays open, whatever it was waiting for."""
        body, self._body = self._body, None
        if body is not None:
            await body.aclose()
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.cancel()
            with suppress(asyncio.CancelledError, Exception):  # whatever it is, the audit row must be kept
                await (await opening).body.aclose()


def _nothing() -> None:
    pass


def keep(record: StreamRecord | None, audit: Audit) -> None:
    """Into the metrics; and into the log and the audit, unless the stream needed nothing."""
    noting.stream_ended(record)
    if record is None:
        return
    logger.info(
        "request %s: %s %s, %s %s: %s",
        record.request_id,
        ended_by(record.failure, record.outcome, record.reason),
        record.case,
        record.decision,
        record.route,
        " ".join(filter(None, (record.outcome, record.reason))),
    )
    audit.record(record)


async def _let_end(body: Readable) -> None:
    with suppress(TimeoutError, httpx.HTTPError):
        async with asyncio.timeout(ENDING_SECONDS):
            while not body.at_end and await body.read():
                pass
