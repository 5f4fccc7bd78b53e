"""A strategy is tested on a live engine: greedy answers are cut at every kind of place, continued by the gateway's own
code in every way that the strategy could be set, and compared with the uninterrupted answer.

Probes come first: what the engine is and what its chat template does. Then each prompt is answered once in full. A
cut is a recording of that answer that breaks off; Splice, Relay and the token route do with it what they would do
with a real one, but leave no audit rows. A continuation request is sent once: equal ones share its answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx

from continuation.downstream.client import Upstream
from continuation.downstream.troubles import describe
from continuation.plan import Guarded
from continuation.relay import Relay
from continuation.shapes.encoding import dump
from continuation.splice.actions import OpenLeg, OpenTokens, Send
from continuation.splice.machine import Splice
from continuation.splice.options import Options
from continuation.splice.record import StreamRecord
from continuation.token_route.route import COMPLETIONS, Endpoints, open_tokens
from continuation.verification import cuts, heard, verdicts
from continuation.verification.cuts import Cut, Place
from continuation.verification.door import CHAT_PATH, EngineDoor, WholeAnswer
from continuation.verification.heard import HeardAnswer
from continuation.verification.knowledge import Knowledge, Probe
from continuation.verification.order import DEFAULT_PROMPTS, Order, Progress, Trouble, greedy_body
from continuation.verification.probes import Probing
from continuation.verification.ranking import Measured, Recommendation, finalists, recommend
from continuation.verification.recording import RecordedAnswer, Recording, learn_from, record_answer
from continuation.verification.variants import Variant, variants
from continuation.verification.verdicts import Finding, Likeness
from continuation.vocabulary import Decision, Reason

# Cuts of each kind that decide which combinations of chat-continue are looked at more closely.
SCREENING_CUTS = 2


@dataclass(frozen=True, slots=True)
class Report:
    known: Knowledge
    probes: tuple[Probe, ...]
    measured: tuple[Measured, ...]
    recommendation: Recommendation
    cuts: Mapping[Place, int]

    @property
    def configured(self) -> Measured:
        return next(one for one in self.measured if one.variant.configured)


async def verify(order: Order) -> AsyncGenerator[Progress | Report, None]:
    """Yield Progress during the run, and the Report at its end. Raises Trouble."""
    async with EngineDoor(order) as door:
        yield Progress(0, 0, "asking the engine")
        known, probes = await Probing(door, order).found()
        answers: list[RecordedAnswer] = []
        bodies = [greedy_body(prompt, order, known) for prompt in order.prompts or DEFAULT_PROMPTS]
        for number, body in enumerate(bodies, 1):
            yield Progress(0, 0, f"answering prompt {number} of {len(bodies)}")
            answers.append(await record_answer(door, body, known))
        known, more = await learn_from(door, known, answers, order.strategy)
        bench = _Bench(door, order, known, answers)
        async with aclosing(bench.run()) as rounds:
            async for progress in rounds:
                yield progress
        recommendation = recommend(bench.measured, order.strategy, known)
        yield Report(known, (*probes, *more), tuple(bench.measured), recommendation, bench.cuts_by_place)


class _Whole:
    """A body that was received before. With `cut` it raises a ReadError at its end."""

    def __init__(self, data: bytes, *, cut: bool = False) -> None:
        self._data = data
        self._cut = cut

    async def read(self) -> bytes:
        data, self._data = self._data, b""
        if not data and self._cut:
            raise httpx.ReadError("cut for the verification")
        return data

    def read_nowait(self) -> bytes:
        return b""

    @property
    def at_end(self) -> bool:
        return not self._data

    def close(self) -> None:
        self._data = b""

    async def aclose(self) -> None:
        self.close()


class _Bench:
    """Every variant at every cut."""

    def __init__(
        self, door: EngineDoor, order: Order, known: Knowledge, answers: Sequence[RecordedAnswer]
    ) -> None:
        self._door = door
        self._order = order
        self._known = known
        self._answers = answers
        self.measured = [Measured(variant) for variant in variants(order.strategy, known)]
        every = [
            cut
            for number, answer in enumerate(answers)
            for cut in cuts.cuts_of(number, answer.again.steps, answer.again.heard)
        ]
        self._cuts = cuts.choose(every, order.cuts)
        if not self._cuts:
            raise Trouble("no answer had anything to cut; give other prompts, or a larger --max-tokens")
        self._asked: dict[bytes, asyncio.Task[WholeAnswer]] = {}
        self._uninterrupted: dict[tuple[int, bool], HeardAnswer] = {}
        self._done = self._total = 0
        self._gone = ""
        # Its own memory of missing endpoints, apart from that of the gateway and of other runs. Variants that hide the
        # scale-out endpoints have a second one, for what they find out is true for them alone.
        self._endpoints = {hides: Endpoints() for hides in (False, True)}

    @property
    def cuts_by_place(self) -> dict[Place, int]:
        return {place: n for place in Place if (n := sum(cut.place is place for cut in self._cuts))}

    async def run(self) -> AsyncGenerator[Progress, None]:
        first = cuts.choose(self._cuts, SCREENING_CUTS)
        rest = [cut for cut in self._cuts if cut not in first]
        self._total = len(self.measured) * len(first)
        async with aclosing(self._round(self.measured, first)) as screening:
            async for progress in screening:
                yield progress
        chosen = finalists(self.measured, self._order.strategy, self._known)
        for one in chosen:
            one.finalist = True
        self._total += len(chosen) * len(rest)
        async with aclosing(self._round(chosen, rest)) as closer_look:
            async for progress in closer_look:
                yield progress

    async def _round(
        self, measured: Iterable[Measured], cuts: Sequence[Cut]
    ) -> AsyncGenerator[Progress, None]:
        """Try all variants at one cut before the next cut, so that equal requests come together."""
        places = asyncio.Semaphore(self._order.parallel)

        async def one(of: Measured, cut: Cut) -> None:
            async with places:
                of.tally(cut.place).add(await self._finding(of.variant, cut))

        jobs = [(of, cut) for cut in cuts for of in measured]
        tasks = [asyncio.create_task(one(*job), name="verification") for job in jobs]
        try:
            for task in tasks:
                await task
                self._done += 1
                if self._gone:
                    await self._check_engine()
                yield Progress(self._done, self._total, "continuing at the cuts")
        finally:
            started: list[asyncio.Task[Any]] = [*tasks, *self._asked.values()]
            for left in started:
                left.cancel()
            await asyncio.gather(*started, return_exceptions=True)

    async def _check_engine(self) -> None:
        """Raise Trouble if the engine has gone. If it is there, the continuation that failed counts as refused."""
        if not await self._door.is_there():
            raise Trouble(f"the engine at {self._order.base_url} went away during the run: {self._gone}")
        self._gone = ""

    async def _finding(self, variant: Variant, cut: Cut) -> Finding:
        answer = self._answers[cut.prompt]
        plan = Guarded.of(dump(answer.body), answer.body, variant.strategy)
        recording = answer.again if plan.carries_ids else answer.plain
        events = cuts.events_at(cut, recording.steps)
        if not events:
            return Finding(Likeness.NOT_TRIED, "nothing had been told by then")
        want = self._whole(cut.prompt, plan, recording)
        beginning = b"".join(event.raw for event in recording.events[:events])
        splice = self._splice(plan)
        try:
            async with asyncio.timeout(self._order.seconds):
                got = await self._continued(splice, beginning, variant)
        except TimeoutError:
            return Finding(Likeness.REFUSED, f"no ending within {self._order.seconds:g} seconds")
        record = splice.record()
        if record is None:
            return Finding(Likeness.NOT_TRIED, "the answer was whole already")
        return verdicts.judge(
            want,
            heard.heard_answer(got),
            heard.heard_answer(beginning),
            decided=record.decision == Decision.CONTINUE,
            counts_exact=record.tokens_exact,
            reason=_reason(record),
        )

    def _whole(self, prompt: int, plan: Guarded, recording: Recording) -> HeardAnswer:
        """The answer that a client sees when nothing breaks."""
        key = prompt, plan.carries_ids
        if key not in self._uninterrupted:
            splice = self._splice(plan)
            splice.leg1_opened(time.monotonic())
            actions = splice.received(b"".join(event.raw for event in recording.events), time.monotonic())
            self._uninterrupted[key] = heard.heard_answer(
                b"".join(a.data for a in actions if isinstance(a, Send))
            )
        return self._uninterrupted[key]

    def _splice(self, plan: Guarded) -> Splice:
        options = Options(estimator=self._order.estimator)
        return Splice(plan, options, "verification", datetime.now(UTC), time.monotonic())

    async def _continued(self, splice: Splice, beginning: bytes, variant: Variant) -> bytes:
        async def open_continuation(action: OpenLeg | OpenTokens) -> Upstream:
            if isinstance(action, OpenTokens):
                endpoints, post = self._endpoints[variant.hides_scale_out], self._post_for(variant)
                return await open_tokens(
                    action, endpoints, self._order.base_url, post, self._order.batch_chunks
                )
            heard = await self._once(action.body)
            return Upstream(heard.status, heard.headers, _Whole(heard.data))

        upstream = Upstream(200, [], _Whole(beginning, cut=True))
        relay = Relay(
            splice,
            upstream,
            open_continuation,
            keepalive=0,
            silence=self._order.seconds,
            audit=None,  # no client was there
        )
        pieces = relay.pieces()
        try:
            return b"".join([piece async for piece in pieces])
        finally:
            await pieces.aclose()

    def _post_for(self, variant: Variant) -> Callable[[str, bytes], Awaitable[Upstream]]:
        async def post(path: str, body: bytes) -> Upstream:
            if variant.hides_scale_out and path not in ("/tokenize", "/v1/tokenize", COMPLETIONS):
                return Upstream(403, [], _Whole(b""))
            try:
                return await self._door.open(path, body)
            except httpx.HTTPError as trouble:
                self._gone = describe(trouble)
                raise

        return post

    async def _once(self, body: bytes) -> WholeAnswer:
        """Send a continuation request, and return its answer. An equal request is not sent again."""
        key = hashlib.blake2b(body).digest()
        if key not in self._asked:
            asking = self._door.heard(CHAT_PATH, body, self._order.seconds)
            self._asked[key] = asyncio.create_task(asking, name="continuation of a verification")
        try:
            return await asyncio.shield(self._asked[key])
        except httpx.HTTPError as trouble:
            self._asked.pop(key, None)
            self._gone = describe(trouble)
            raise
        except TimeoutError as trouble:
            self._asked.pop(key, None)
            raise httpx.ReadTimeout(f"no answer within {self._order.seconds:g} seconds") from trouble


def _reason(record: StreamRecord) -> str:
    why = str(record.reason)
    if record.reason == Reason.TOOL_CALL_SEEN:
        why = "this route does not continue after a tool call has begun"
    status = f", status {record.leg2_status}" if record.leg2_status not in (None, 200) else ""
    return f"{why}{status}" + (f": {record.leg2_message}" if record.leg2_message else "")
