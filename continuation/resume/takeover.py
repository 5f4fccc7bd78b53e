"""Going on with a stream whose process is gone: its partial is rebuilt from the log and continued as leg 2."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from functools import partial

import orjson
from django.conf import settings

from continuation.http.headers import RawHeaders, is_named
from continuation.metrics import noting
from continuation.plan import Guarded, plan
from continuation.relay import Relay
from continuation.resume.generation import Generations
from continuation.resume.log import Entry, State, Store, Taken
from continuation.resume.numbering import Numbering, closing, ending_of
from continuation.splice.ending import interrupted_event
from continuation.vocabulary import Failure, Reason
from continuation.wiring import Origin, Parts, choice, relay_for, splice_for
from strategies import cache

logger = logging.getLogger(__name__)

# Never kept of a request, whatever the settings say: who comes back has the same, or could not come back.
ALWAYS_PERSONAL = (b"authorization", b"proxy-authorization", b"cookie")
# What a request that comes back says to the gateway alone; it is not sent downstream.
OWN = (b"x-resume-token",)
# A longer log is read in a thread: other streams would be held up.
AT_ONCE_BYTES = 2**16


def packed(origin: Origin, body: bytes) -> bytes:
    """A request as it is kept for a takeover."""
    head = {
        "v": 1,  # of this form
        "id": origin.request_id,
        "target": origin.target.decode("latin-1"),
        "headers": [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in origin.headers
            if not is_personal(name)
        ],
    }
    return orjson.dumps(head) + b"\n" + body


def unpacked(packed_request: bytes, headers: RawHeaders) -> tuple[Origin, bytes]:
    """headers: of the request that comes back. Raises ValueError for what this version cannot read."""
    head, _, body = packed_request.partition(b"\n")
    match orjson.loads(head):
        case {"v": 1, "id": str(request_id), "target": str(target), "headers": [*pairs]}:
            own = [_header(pair) for pair in pairs]
        case _:
            raise ValueError("a request that was kept by another version")
    personal = [(name, value) for name, value in headers if is_personal(name) and name.lower() not in OWN]
    # A process with other settings may have kept what is personal here.
    again = {name.lower() for name, _value in personal}
    shared = [(name, value) for name, value in own if name.lower() not in again]
    return Origin(request_id, target.encode("latin-1"), shared + personal), body


def is_personal(name: bytes) -> bool:
    """Whether a header is not kept outside of this process, but taken from the request that comes back."""
    return name.lower() in ALWAYS_PERSONAL or is_named(name, settings.CREDENTIAL_HEADERS)


def _header(pair: object) -> tuple[bytes, bytes]:
    match pair:
        case [str(name), str(value)]:
            return name.encode("latin-1"), value.encode("latin-1")
        case _:
            raise ValueError("a header that was kept by another version")


class Takeovers:
    """Those of one process. Each begins a generation."""

    def __init__(self, parts: Parts, generations: Generations) -> None:
        self._parts = parts
        self._generations = generations
        self._under_way: dict[str, asyncio.Task[bool]] = {}  # by stream id

    async def take_over(self, store: Store, stream_id: str, headers: RawHeaders) -> None:
        """Go on with a stream, unless another process has begun to. Its readers find it in the store as before.

        headers: of the request that comes back. It goes on when that one's client leaves. Raises StoreAway.
        """
        await self._once(stream_id, lambda: self._take_over(store, stream_id, headers))

    async def stop_orphan(self, store: Store, stream_id: str) -> bool:
        """End a stream whose process is gone; False if it is another one's by now, or must be asked for otherwise.

        Raises StoreAway.
        """
        return await self._once(stream_id, lambda: self._stop(store, stream_id))

    async def put_away(self) -> None:
        """The process ends: what has been claimed is let go of again."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _once(self, stream_id: str, work: Callable[[], Coroutine[None, None, bool]]) -> bool:
        """In a task of its own, one at a time for a stream: half of it may not happen. Whether this work was done."""
        others = self._under_way.get(stream_id)
        task = others or asyncio.create_task(work(), name=f"takeover of {stream_id}")
        if others is None:
            self._under_way[stream_id] = task
            task.add_done_callback(partial(self._is_over, stream_id))
        await asyncio.wait({task})
        return others is None and not task.cancelled() and task.result()

    def _is_over(self, stream_id: str, task: asyncio.Task[bool]) -> None:
        del self._under_way[stream_id]
        if not task.cancelled():
            task.exception()  # the request that waited for it may have left

    async def _take_over(self, store: Store, stream_id: str, headers: RawHeaders) -> bool:
        taken = await store.take_over(stream_id)
        if taken is None:
            return False
        try:
            relay = await self._relay(taken, _closed(taken), headers)
        except ValueError as trouble:
            logger.warning("stream %s cannot be taken over: %s", stream_id, trouble)
            _fail(taken)
        except Exception:
            logger.exception("stream %s could not be taken over", stream_id)
            _fail(taken)
        except BaseException:  # the process ends
            taken.writer.hand_over()
            raise
        else:
            noting.takeover("taken")
            logger.info("request %s: the stream is taken over", relay.splice.request_id)
            self._generations.start(relay, taken.writer, store)
        return True

    async def _stop(self, store: Store, stream_id: str) -> bool:
        if (taken := await store.take_over(stream_id)) is None:
            return False
        _closed(taken)
        _end(taken, State.STOPPED, interrupted_event(None, Reason.STOPPED, Reason.STOPPED))
        return True

    async def _relay(self, taken: Taken, delivered: bytes, headers: RawHeaders) -> Relay:
        origin, body = unpacked(taken.request, headers)
        planned = await asyncio.to_thread(plan, body, False, cache.current(), choice())
        if not isinstance(planned, Guarded):
            raise ValueError(f"its request would be passed through now: {planned.reason}")
        splice = splice_for(planned, origin.request_id)
        if len(delivered) <= AT_ONCE_BYTES:
            splice.was_delivered(delivered, time.monotonic())
        else:
            await asyncio.to_thread(splice.was_delivered, delivered, time.monotonic())
        continued = taken.standing.leg2_from > 0
        relay = relay_for(self._parts, splice, origin, None, keepalive=0)
        relay.step(lambda now: splice.taken_over(now, whole=taken.whole, continued=continued))
        return relay


def _closed(taken: Taken) -> bytes:
    """What the log holds. An event that was left open is ended: what comes next is another one."""
    entries = taken.entries
    if entries and entries[-1].open:
        number, part = entries[-1].cursor
        entries += (Entry(number, part + 1, closing(entries[-1].data)),)
        taken.writer.append(entries[-1:])
    return b"".join(entry.data for entry in entries)


def _fail(taken: Taken) -> None:
    """Nothing is known of the stream but its events."""
    noting.takeover("failed")
    reason, failure = Reason.NO_RECOVERABLE_CONTENT, Failure.DISCONNECT
    _end(taken, State.FAILED, interrupted_event(failure, reason, failure))


def _end(taken: Taken, state: State, ending: bytes) -> None:
    over = ending_of(taken.entries[-1].data) if taken.entries else None
    if over is None:
        entries, _ = Numbering(len(ending), taken.standing.last).feed(ending)
        taken.writer.append(entries)
    taken.writer.end(over or state)
