"""What the token route reads of an engine's stream of chunks, whatever that is."""

from __future__ import annotations

import pytest

from continuation.downstream.client import Upstream
from continuation.plan import Guarded
from continuation.splice.actions import OpenTokens
from continuation.token_route import route
from continuation.token_route.route import Endpoints, _generated, _Route
from strategies.types import CompiledStrategy, Partial

CHUNK = b'data: {"choices": [{"index": 0, "token_ids": [5]}]}'


class Reads:
    """The body of an answer that comes in these reads."""

    def __init__(self, *reads: bytes) -> None:
        self._reads = [*reads]
        self.closed = False

    async def read(self) -> bytes:
        return self._reads.pop(0) if self._reads else b""

    def read_nowait(self) -> bytes:
        return b""

    @property
    def at_end(self) -> bool:
        return not self._reads

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.close()


async def generated(body: Reads) -> list[object]:
    return [chunk async for chunk in _generated(Upstream(200, [], body))]


async def test_an_event_without_end_is_not_gathered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route, "EVENT_BYTES", 100)
    body = Reads(CHUNK + b"\n\n", b"data: ", *[b"x" * 60] * 50)
    first, raw = await generated(body)
    assert first == {"choices": [{"index": 0, "token_ids": [5]}]}
    assert isinstance(raw, bytes)
    assert 100 < len(raw) < 200
    assert body.closed


async def test_a_last_chunk_that_lacks_its_blank_line_counts() -> None:
    assert len(await generated(Reads(CHUNK + b"\n\n" + CHUNK))) == 2
    assert await generated(Reads(b"data: [DONE]")) == []


async def told_as_chat(*reads: bytes) -> bytes:
    async def nobody(_path: str, _body: bytes) -> Upstream:
        raise AssertionError("nothing more is asked for")

    plan = Guarded(b"{}", CompiledStrategy("s", "s"))
    job = OpenTokens(plan, plan.strategy, Partial("", "a"), (), None, (), (), stop_shown=False)
    pieces = _Route(job, Endpoints(), "http://there", nobody)._chatted(Upstream(200, [], Reads(*reads)))
    return b"".join([piece async for piece in pieces])


async def test_of_completions_a_done_is_told_only_behind_a_finish() -> None:
    text = b'data: {"choices": [{"index": 0, "text": "b", "finish_reason": null}]}\n\n'
    finish = b'data: {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}\n\n'
    broken = await told_as_chat(text)
    assert b'"content":"b"' in broken
    assert b"[DONE]" not in broken
    assert (await told_as_chat(text, finish)).endswith(b"data: [DONE]\n\n")
