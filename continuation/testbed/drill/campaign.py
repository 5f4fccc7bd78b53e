"""A whole drill: references first, then many streams at a time, each judged as it ends."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson

from continuation.testbed.drill.caller import Caller
from continuation.testbed.drill.flights import Flight
from continuation.testbed.drill.injector import CHAT, Injector
from continuation.testbed.drill.judging import DrillOutcome, Judgement, judge
from continuation.testbed.drill.ledger import AuditLedger, Row
from continuation.testbed.drill.plans import STALLS, Planner, Reference
from continuation.testbed.drill.questions import QUESTIONS, body_of
from continuation.testbed.drill.reading import read
from continuation.testbed.drill.sampling import Latencies, Sample, Trend, process, trends
from continuation.testbed.drill.stage import (
    SIMULATED,
    DrilledEngine,
    Gateway,
    other_engine,
    own_gateway,
    simulated_engine,
)
from continuation.testbed.drill.wire import BROKEN, Address, request_bytes, until
from continuation.testbed.processes import CannotGoOn

SAMPLE_SECONDS = 2.0
# The first part of a drill, in which a process fills its caches, is not compared with the last.
WARMING = 0.1
WRONG_SHOWN = 20
_WRONG_KEPT = 1000
_AUDIT_SECONDS = 5.0
_SETTLE_SECONDS = 60.0
_HEALTH_SECONDS = 10.0
_REFERENCE_SECONDS = 300.0
_NOTED_SECONDS = 5.0
_SETTLE_PAUSE_SECONDS = 0.2
# Here leg 2 has nothing new to say for a while, and the gateway is not what takes the time.
_SLOW_SEAMS = ("leg2_pause", "leg2_restarted", "leg2_departed")


@dataclass(frozen=True, slots=True)
class Choices:
    """What the command line said. engine: a manner to simulate, or a URL. minutes and total: whichever is first.

    gateway: URL of one that runs already and has `listen`, a port, as its downstream; "" to start one.
    only: numbers of the streams to be run, () for all. redis: where the started gateway has its resume log, "" for in
    its memory.
    """

    streams: int = 200
    minutes: float | None = 3.0
    total: int | None = None
    kinds: tuple[str, ...] = ()
    seed: int = 0
    engine: str = "vllm"
    continuation_engine: str = ""
    continuation_model: str = ""
    gateway: str = ""
    listen: int = 0
    idle_seconds: float = 4.0
    delay_ms: float = 50.0
    only: tuple[int, ...] = ()
    redis: str = ""

    @property
    def most(self) -> int | None:
        """Streams after which the drill ends; None without a limit."""
        return len(self.only) or self.total


@dataclass(frozen=True, slots=True)
class Wrong:
    """A stream, or the gateway as a whole (number None), that was not as it should be. noted: about its legs."""

    number: int | None
    kind: str
    request_id: str
    place: str
    troubles: tuple[str, ...]
    noted: tuple[str, ...] = ()


@dataclass(slots=True)
class Result:
    """tally: outcomes by kind. left_out: questions that could not be used, and why.

    rows: audit rows of the streams that are wrong, by number. audited: how many rows were compared.
    """

    choices: Choices
    tally: dict[str, Counter[str]] = field(default_factory=dict)
    wrong: list[Wrong] = field(default_factory=list)
    wrong_count: int = 0
    samples: list[Sample] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    rows: dict[int, Row] = field(default_factory=dict)
    audited: int | None = None
    seconds: float = 0.0
    stopped: bool = False
    latency: dict[str, float | None] = field(default_factory=dict)

    @property
    def done(self) -> int:
        return sum(sum(row.values()) for row in self.tally.values())

    @property
    def share(self) -> float:
        """How much of the drill is done, from 0 to 1: by time or by number, whichever is first."""
        choices, shares = self.choices, [0.0]
        if choices.minutes is not None:
            shares.append(self.seconds / max(choices.minutes * 60, 0.001))
        if choices.most:
            shares.append(self.done / choices.most)
        return min(1.0, max(shares))

    def count(self, outcome: DrillOutcome) -> int:
        return sum(row[outcome] for row in self.tally.values())

    @property
    def trends(self) -> list[Trend]:
        return trends(self.samples)

    def note(self, plan_kind: str, outcome: DrillOutcome) -> None:
        self.tally.setdefault(plan_kind, Counter())[outcome] += 1

    def add(self, wrong: Wrong) -> None:
        self.wrong_count += 1
        if len(self.wrong) < _WRONG_KEPT:
            self.wrong.append(wrong)


Progress = Callable[[Result, str, int], None]


async def drill(choices: Choices, progress: Progress) -> Result:
    """progress gets the result so far, what is being done, and how many streams are open. Raises CannotGoOn."""
    result = Result(choices)
    async with _stage(choices, result, progress) as on:
        campaign = Campaign(on, choices, result, progress)
        await campaign.run()
    return result


@dataclass(frozen=True, slots=True)
class DrillStage:
    engine: DrilledEngine
    gateway: Gateway
    injector: Injector
    references: tuple[Reference, ...]


@asynccontextmanager
async def _stage(choices: Choices, result: Result, progress: Progress) -> AsyncIterator[DrillStage]:
    """All that is made lies in one directory, which is deleted at the end."""
    async with AsyncExitStack() as closing:
        directory = Path(closing.enter_context(TemporaryDirectory(prefix="continuation-drill-")))
        progress(result, "starting the engine", 0)
        engine = await _engine(choices, directory, closing)
        progress(result, "asking for the uninterrupted answers", 0)
        references = await _references(engine, result)
        injector = Injector(
            Address.of(engine.url),
            Address.of(choices.continuation_engine or engine.url),
            choices.idle_seconds,
        )
        await _listening(injector, choices.listen)
        closing.push_async_callback(injector.stop)
        progress(result, "starting the gateway", 0)
        gateway = await _gateway(choices, engine, injector, directory, closing)
        yield DrillStage(engine, gateway, injector, references)


async def _listening(injector: Injector, port: int) -> None:
    try:
        await injector.start(port=port)
    except OSError as trouble:
        raise CannotGoOn(f"cannot listen on port {port}: {trouble}") from None


async def _engine(choices: Choices, directory: Path, closing: AsyncExitStack) -> DrilledEngine:
    if choices.engine not in SIMULATED:
        return await asyncio.to_thread(other_engine, choices.engine, choices.continuation_model)
    child, engine = await asyncio.to_thread(simulated_engine, choices.engine, choices.delay_ms, directory)
    closing.push_async_callback(asyncio.to_thread, child.stop)
    return engine


async def _gateway(
    choices: Choices, engine: DrilledEngine, injector: Injector, directory: Path, closing: AsyncExitStack
) -> Gateway:
    if choices.gateway:
        return Gateway(choices.gateway)
    starting = (engine, injector.url, choices.idle_seconds, directory, choices.redis)
    gateway = await asyncio.to_thread(own_gateway, *starting)
    assert gateway.child
    closing.push_async_callback(asyncio.to_thread, gateway.child.stop)
    return gateway


# -- uninterrupted answers ---------------------------------------------------------------------------


async def _references(engine: DrilledEngine, result: Result) -> tuple[Reference, ...]:
    """Each is asked for twice: an engine that answers differently cannot be compared with."""
    found = []
    asked = await asyncio.gather(*(_reference(engine, number) for number in range(len(QUESTIONS))))
    for number, (reference, why_not) in enumerate(asked):
        if reference is None:
            result.left_out.append(f"question {number}: {why_not}")
        else:
            found.append(reference)
    if not any(one.after_chars(1) for one in found):
        raise CannotGoOn("no answer of the engine can be used:\n  " + "\n  ".join(result.left_out))
    return tuple(found)


async def _reference(engine: DrilledEngine, number: int) -> tuple[Reference | None, str]:
    body = orjson.dumps(body_of(QUESTIONS[number], engine.name, "asked"))
    try:
        async with asyncio.timeout(_REFERENCE_SECONDS):
            answers = [await _answer(engine.url, body) for _ in range(2)]
    except (*BROKEN, TimeoutError) as trouble:
        return None, f"no whole answer ({trouble!r:.100})"
    told = [read(stream) for _, stream in answers]
    if answers[0][0] != 200:
        return None, f"status {answers[0][0]}, {answers[0][1][:100]!r}"
    if told[0].errors or len(told[0].finishes) != 1 or "finish" not in told[0].kinds:
        return None, f"its uninterrupted answer is not whole: {told[0].kinds[-3:]}"
    if told[0].said != told[1].said:
        return None, "two answers to the same question differ"
    return Reference.of(number, told[0], _texts(answers[0][1])), ""


async def _answer(url: str, body: bytes) -> tuple[int, bytes]:
    address = Address.of(url)
    connection = await address.connect()
    try:
        fields = {"host": f"{address.host}:{address.port}", "content-type": "application/json"}
        await connection.send(request_bytes("POST", address.prefix + CHAT, fields.items(), body))
        head = await connection.read_head()
        return head.status, await connection.body(head)
    finally:
        connection.close()


def _texts(stream: bytes) -> list[int]:
    """Characters of text in each event."""
    told = (read(block) for block in stream.split(b"\n\n") if block.strip())
    return [len(one.reasoning + one.content) for one in told]


# -- the streams -----------------------------------------------------------------------------------


class Campaign:
    def __init__(self, on: DrillStage, choices: Choices, result: Result, progress: Progress) -> None:
        self._on, self._choices, self._result, self._progress = on, choices, result, progress
        self._planner = Planner(choices.seed, choices.kinds, on.references)
        self._references = {one.question: one for one in on.references}
        self._ledger = AuditLedger(on.gateway.database) if on.gateway.database else None
        self._counted_as: dict[int, DrillOutcome] = {}  # each stream, by its number
        self._latencies, self._over_all = Latencies(), Latencies()
        self._numbers = iter(choices.only or range(choices.total or 2**62))
        self._began = time.monotonic()
        self._over = False
        self._open = 0

    async def run(self) -> None:
        """Until time or number is reached; when it is cancelled, what was judged until then is kept."""
        result = self._result
        watching = [
            asyncio.create_task(self._sampling(), name="samples"),
            asyncio.create_task(self._auditing(), name="audit"),
        ]
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._choices.streams):
                    group.create_task(self._worker(), name=f"client {number}")
                self._began = time.monotonic()
            self._over = True
        except asyncio.CancelledError:
            result.stopped = True
        finally:
            result.seconds = time.monotonic() - self._began
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
        if not result.stopped:
            await self._settle()
        self._look_into_the_log()
        result.latency = self._over_all.taken()

    async def _worker(self) -> None:
        gateway, model = Address.of(self._on.gateway.url), self._on.engine.name
        caller = Caller(gateway, model, self._choices.idle_seconds)
        try:
            while (number := self._next()) is not None:
                self._open += 1
                try:
                    await self._fly(caller, number)
                finally:
                    self._open -= 1
        finally:
            caller.close()

    def _next(self) -> int | None:
        minutes = self._choices.minutes
        if minutes is not None and time.monotonic() > self._began + minutes * 60:
            self._over = True
            return None
        number = next(self._numbers, None)
        self._over = self._over or number is None
        return number

    async def _fly(self, caller: Caller, number: int) -> None:
        plan = self._planner.plan(number)
        flight = Flight(plan, f"drill-{self._choices.seed}-{number}")
        self._on.injector.flights[str(number)] = flight
        try:
            await caller.call(flight)
            # the injector may still have to note how it ended what the client has read to its end
            await until(lambda: all(leg.ended for leg in flight.legs), _NOTED_SECONDS)
            finding = judge(flight, self._references[plan.question], self._choices.idle_seconds)
        finally:
            del self._on.injector.flights[str(number)]
        self._noted(flight, finding)

    def _noted(self, flight: Flight, finding: Judgement) -> None:
        plan, heard = flight.plan, flight.heard
        self._result.note(plan.kind, finding.outcome)
        if finding.troubles:
            self._wrong(plan.number, finding.troubles, tuple(leg.noted for leg in flight.legs))
        if self._ledger is not None:
            self._counted_as[plan.number] = finding.outcome
            certain = finding.row_is_certain
            self._ledger.expect(flight.request_id, plan.number, finding.due.row, decides=certain)
        first = heard.first_at - heard.sent_at if heard.first_at is not None else None
        slow = plan.kind in ("late", "client_slow", "pause") or bool(plan.returns)
        stalled = plan.leg1 is not None and plan.leg1.name in STALLS
        seam = None if stalled or slow or plan.kind in _SLOW_SEAMS else heard.seam_gap
        for latencies in (self._latencies, self._over_all):
            latencies.add(None if slow else first, () if slow or stalled else heard.gaps, seam)

    def _wrong(self, number: int | None, troubles: tuple[str, ...], noted: tuple[str, ...] = ()) -> None:
        if number is None:
            self._result.add(Wrong(None, "", "", "", troubles))
            return
        plan = self._planner.plan(number)
        request_id = f"drill-{self._choices.seed}-{number}"
        self._result.add(Wrong(number, plan.kind, request_id, plan.place, troubles, noted))

    # -- audit and log -----------------------------------------------------------------------------

    async def _auditing(self) -> None:
        while self._ledger is not None:
            await asyncio.sleep(_AUDIT_SECONDS)
            await self._compare(self._ledger)

    async def _compare(self, ledger: AuditLedger, *, final: bool = False) -> bool:
        """Whether there were new rows."""
        try:
            rows = await asyncio.to_thread(ledger.fetch)
        except sqlite3.Error as trouble:
            self._wrong(None, (f"the audit cannot be read: {trouble}",))
            return False
        for number, trouble_ in ledger.compare(rows, final=final):
            self._misjudged(number, trouble_)
        return bool(rows)

    def _misjudged(self, number: int | None, trouble: str) -> None:
        """A stream whose answer was right, and whose audit is not, is wrong as well."""
        if number is not None:
            kind = self._planner.plan(number).kind
            row = self._result.tally[kind]
            row[self._counted_as[number]] -= 1
            row[DrillOutcome.WRONG] += 1
            self._counted_as[number] = DrillOutcome.WRONG
        self._wrong(number, (trouble,))

    async def _settle(self) -> None:
        """Wait for the last audit rows."""
        ledger = self._ledger
        if ledger is None:
            return
        self._progress(self._result, "waiting for the last audit rows", 0)
        end = time.monotonic() + _SETTLE_SECONDS
        while True:
            came = await self._compare(ledger)
            if not came and (not ledger.waits or time.monotonic() > end):
                break
            await asyncio.sleep(_SETTLE_PAUSE_SECONDS)
        await self._compare(ledger, final=True)
        self._result.audited, self._result.rows = ledger.matched, ledger.of_wrong

    def _look_into_the_log(self) -> None:
        gateway = self._on.gateway
        if troubles := gateway.troubles():
            self._wrong(None, (f"the gateway's log tells of {len(troubles)} troubles", *troubles[:5]))
        if gateway.child is not None and not gateway.child.is_running:
            self._wrong(None, ("the gateway has ended",))

    # -- samples -----------------------------------------------------------------------------------

    async def _sampling(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            told = await self._health()
            result, pid = self._result, self._on.gateway.pid
            seen = process(pid)
            result.seconds = time.monotonic() - self._began
            full = result.done >= self._choices.streams == self._open
            steady = full and result.share >= WARMING and not self._over
            result.samples.append(
                Sample(
                    round(result.seconds, 2),
                    steady,
                    seen.memory_mb,
                    seen.descriptors,
                    seen.threads,
                    told.get("tasks"),
                    told.get("streams"),
                    self._open,
                    result.done,
                    result.wrong_count,
                    self._latencies.taken(),
                )
            )
            self._progress(result, "", self._open)

    async def _health(self) -> Mapping[str, Any]:
        """What the gateway shows of itself; {} where it shows nothing, or is too busy."""
        address = Address.of(self._on.gateway.url)
        with contextlib.suppress(*BROKEN, TimeoutError):
            async with asyncio.timeout(_HEALTH_SECONDS):
                connection = await address.connect()
                try:
                    fields = {"host": f"{address.host}:{address.port}", "connection": "close"}
                    await connection.send(request_bytes("GET", address.prefix + "/health", fields.items()))
                    head = await connection.read_head()
                    value = orjson.loads(await connection.body(head))
                    return value if isinstance(value, dict) else {}
                finally:
                    connection.close()
        return {}
