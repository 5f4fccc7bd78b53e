"""Going on with a stream whose process is gone: its partial is rebuilt from the log and continued as leg 2."""

from __future__ import annotations

import asyncio
import logging

import orjson

from continuation import metrics
from continuation.events import Failure, Reason
from continuation.guard import Origin, choice, relay_for, splice_for
from continuation.http import RawHeaders
from continuation.plan import Guarded, plan
from continuation.relay import Relay
from continuation.resume import generation
from continuation.resume.log import State, Store, Taken
from continuation.resume.numbering import Numbering
from continuation.splice import interrupted_event
from strategies import cache

logger = logging.getLogger(__name__)

# What is not kept of a request: whoever comes back has the same, or could not come back.
PERSONAL = (b"authorization", b"cookie", b"proxy-authorization")
_VERSION = 1


def packed(origin: Origin, body: bytes) -> bytes:
    """A request as it is kept for a takeover."""
    told = {
        "v": _VERSION,
        "id": origin.request_id,
        "target": origin.target.decode("latin-1"),
        "headers": [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in origin.headers
            if name.lower() not in PERSONAL
        ],
    }
    return orjson.dumps(told) + b"\n" + body


def unpacked(kept: bytes, headers: RawHeaders) -> tuple[Origin, bytes]:
    """headers: of the request that comes back. Raises ValueError for what this version cannot read."""
    head, _, body = kept.partition(b"\n")
    told = orjson.loads(head)
    if not isinstance(told, dict) or told.get("v") != _VERSION:
        raise ValueError("a request that was kept by another version")
    own = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in told["headers"]]
    personal = [(name, value) for name, value in headers if name.lower() in PERSONAL]
    return Origin(told["id"], told["target"].encode("latin-1"), own + personal), body


async def take_over(store: Store, stream_id: str, headers: RawHeaders) -> None:
    """Go on with a stream, unless another process has begun to. Its readers find it in the store as before.

    headers: of the request that comes back. Raises StoreAway.
    """
    taken = await store.take_over(stream_id)
    metrics.takeover("taken" if taken else "another_was_first")
    if taken is None:
        return
    try:
        relay = await _relay(taken, headers)
    except ValueError as trouble:
        logger.warning("stream %s cannot be taken over: %s", stream_id, trouble)
        _fail(taken)
    except Exception:
        logger.exception("stream %s could not be taken over", stream_id)
        _fail(taken)
    else:
        logger.info("request %s: the stream is taken over", relay.splice.request_id)
        generation.start(relay, taken.writer, store)


async def _relay(taken: Taken, headers: RawHeaders) -> Relay:
    origin, body = unpacked(taken.request, headers)
    planned = await asyncio.to_thread(plan, body, False, cache.current(), choice())
    if not isinstance(planned, Guarded):
        raise ValueError(f"its request would be passed through now: {planned.reason}")
    splice = splice_for(planned, origin.request_id)
    delivered = b"".join(entry.data for entry in taken.entries)
    continued = taken.standing.leg2_from > 0
    relay = relay_for(splice, origin, None, keepalive=0)
    relay.step(lambda now: splice.taken_over(delivered, now, whole=taken.whole, continued=continued))
    return relay


async def stop_orphan(store: Store, stream_id: str) -> None:
    """End a stream whose process is gone. Raises StoreAway."""
    if (taken := await store.take_over(stream_id)) is not None:
        _end(taken, State.STOPPED, interrupted_event(None, Reason.STOPPED, Reason.STOPPED))


def _fail(taken: Taken) -> None:
    """Nothing is known of the stream but its events."""
    metrics.takeover("failed")
    reason, failure = Reason.NO_RECOVERABLE_CONTENT, Failure.DISCONNECT
    _end(taken, State.FAILED, interrupted_event(failure, reason, failure))


def _end(taken: Taken, state: State, ending: bytes) -> None:
    entries, _ = Numbering(len(ending), taken.standing.last).feed(ending)
    taken.writer.append(entries)
    taken.writer.end(state)
