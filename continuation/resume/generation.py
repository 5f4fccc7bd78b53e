"""Generations: relays that run to their end whether or not a client is there, and write into a log."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import aclosing, suppress

from django.conf import settings

from continuation.metrics import noting
from continuation.relay import Relay
from continuation.resume.log import LogWriter, State, Store, StoreAway
from continuation.resume.numbering import Numbering, ending_of
from continuation.splice.course import Phase
from continuation.splice.ending import interrupted_event
from continuation.vocabulary import Reason

logger = logging.getLogger(__name__)

# Seconds that a generation gets, when the process ends, to end itself and to have its log written.
ENDING_SECONDS = 2.0
# Readers in other processes are asked about no more often than this.
ASKING_SECONDS = 1.0
# Seconds that are added to a grace while it cannot be known whether there are readers.
UNKNOWN_SECONDS = 60.0
# Seconds after which a reader who takes nothing is waited for no longer, if another one reads elsewhere.
STUCK_SECONDS = 2.0


class Generation:
    """One stream's relay, as a task of its own.

    Without a reader it goes on for `grace` seconds; then downstream is released, and the log gets the failed ending.
    """

    def __init__(
        self,
        relay: Relay,
        writer: LogWriter,
        store: Store,
        all_here: Generations,
        *,
        grace: float,
        event_limit: int,
    ) -> None:
        """all_here: where it is found from its start to its end."""
        self.relay = relay
        self._all_here = all_here
        self.writer = writer
        self.log = writer.log
        self._store = store
        self._grace = grace
        self._numbering = Numbering(event_limit, writer.log.last)
        self._task: asyncio.Task[None] | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._question: asyncio.Task[None] | None = None
        self._given_up: State | None = None
        self._let_go = False
        self._failed = False
        self._read_at = 0.0  # by anybody, as far as is known
        self._overtakes_until = 0.0  # readers here are not waited for

    def start(self) -> None:
        self.relay.on_continuation = self.writer.leg2_begins
        self.writer.listen(self.stop, self.let_go)
        if self._let_go:  # it was lost before it began
            return
        self.log.readers_changed = self.look_after
        name = f"generation of {self.relay.splice.request_id}"
        self._task = asyncio.create_task(self._run(), name=name)
        self._all_here.add(self)
        self.look_after(least=ASKING_SECONDS)  # its first reader is on the way

    async def _run(self) -> None:
        try:
            async with aclosing(self.relay.pieces()) as pieces:
                async for piece in pieces:
                    if self._let_go:
                        break
                    entries, comments = self._numbering.feed(piece)
                    if comments:
                        self.writer.aside(comments)
                    # One by one: no reader who is here may be overtaken by the log's limits.
                    for entry in entries:
                        await self._make_room(len(entry.data))
                        self.writer.append((entry,))
            self.writer.append(self._numbering.finish())
        except Exception:
            logger.exception("request %s: the generation failed", self.relay.splice.request_id)
            self._fail()
        finally:
            self._over()

    def _fail(self) -> None:
        """The relay itself has raised, and may not have sent its ending."""
        newest = b"".join(entry.data for entry in self.log.since((self.log.last, -1)))
        if ending_of(newest) is None:
            ending = interrupted_event(None, Reason.INTERNAL_ERROR, Reason.INTERNAL_ERROR)
            self.writer.append(self._numbering.finish() + self._numbering.feed(ending)[0])
            self._failed = True

    def _over(self) -> None:
        if not self._let_go:
            self.writer.end(self._state)
        self._stop_waiting()
        self.log.readers_changed = None
        self._all_here.remove(self)

    @property
    def _state(self) -> State:
        if self.relay.splice.phase is Phase.DONE and not self._failed:
            return State.FINISHED
        return self._given_up or State.FAILED

    # -- ended from outside ------------------------------------------------------------------------

    def stop(self) -> None:
        """On its client's request."""
        self._give_up(State.STOPPED, Reason.STOPPED)

    def shut_down(self) -> None:
        """The process ends, and nobody else could go on."""
        self.relay.shut_down()
        self.log.hurry()

    def let_go(self) -> None:
        """Another process goes on with it: end without another word."""
        if self._let_go:
            return
        self._let_go, self.relay.audit = True, None
        if self._task is not None:
            # Not at once: a task that is cancelled before it has begun never comes to its end.
            asyncio.get_running_loop().call_soon(self._task.cancel)

    def hand_over(self) -> None:
        """Let another process go on with it."""
        self.let_go()
        self.writer.hand_over()

    def _give_up(self, state: State, reason: Reason) -> None:
        if self._given_up is None and not self.relay.splice.ended:
            self._given_up = state
            self.relay.give_up(reason)
            self.log.hurry()

    async def ended(self) -> None:
        if self._task is not None:
            await asyncio.wait({self._task})

    # -- the grace ---------------------------------------------------------------------------------

    def look_after(self, least: float = 0.0) -> None:
        """Readers have come or gone, or the process stops. least: seconds, however short the grace."""
        self._stop_waiting()
        is_detached = self.log.reader_count == 0
        self._all_here.note_readers(self)
        if is_detached:
            self._read_at = time.monotonic()
            self._wait(max(least, 0.0 if self._is_last_chance else self._grace))

    @property
    def _is_last_chance(self) -> bool:
        """Nobody can come back to a process that stops, and that alone has the log."""
        return self._all_here.is_stopping and not self.writer.is_shared

    def _wait(self, seconds: float) -> None:
        self._patience = asyncio.get_running_loop().call_later(seconds, self._grace_is_over)

    def _stop_waiting(self) -> None:
        patience, self._patience = self._patience, None
        if patience is not None:
            patience.cancel()
        question, self._question = self._question, None
        if question is not None:
            question.cancel()

    def _grace_is_over(self) -> None:
        self._question = asyncio.create_task(
            self._give_up_unless_read(), name=f"grace of {self.relay.splice.request_id}"
        )

    async def _give_up_unless_read(self) -> None:
        left = await self._grace_left()
        self._question = None
        if left > 0.0:
            self._wait(left)
        else:
            self._give_up(State.ABANDONED, Reason.CLIENT_GONE)

    async def _grace_left(self) -> float:
        """Seconds after which readers elsewhere have to be asked about again."""
        try:
            seen = await self._store.read_elsewhere(self.writer.stream_id)
        except StoreAway:  # which must not end a stream that is read there
            unread = time.monotonic() - self._read_at
            waits = unread < self._grace + UNKNOWN_SECONDS and not self._is_last_chance
            return ASKING_SECONDS if waits else 0.0
        if seen is None:
            return 0.0
        self._read_at = time.monotonic() - seen
        return self._grace - seen if seen else max(self._grace, ASKING_SECONDS)

    # -- readers who take nothing ------------------------------------------------------------------

    async def _make_room(self, coming: int) -> None:
        """Wait for the readers here; but where they take nothing and one reads elsewhere, they are overtaken."""
        if self.log.has_room(coming):
            self._overtakes_until = 0.0
            return
        was_stuck = self._overtakes_until > 0.0
        while time.monotonic() >= self._overtakes_until:
            if was_stuck and await self._is_read_elsewhere():
                self._overtakes_until = time.monotonic() + ASKING_SECONDS
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(STUCK_SECONDS):
                    await self.writer.room(coming)
                    self._overtakes_until = 0.0
                    return
            was_stuck = True

    async def _is_read_elsewhere(self) -> bool:
        with suppress(StoreAway):
            return await self._store.read_elsewhere(self.writer.stream_id) == 0
        return False


class Generations:
    """Those that run in this process."""

    def __init__(self) -> None:
        self._running: dict[str, Generation] = {}  # by stream id
        self._detached: set[str] = set()  # of these, the ones that nobody in this process reads
        self.on_end: list[Callable[[], None]] = []  # called after each end
        self.is_stopping = False  # the process lets nobody in any more

    def start(self, relay: Relay, writer: LogWriter, store: Store) -> None:
        """From now on the stream runs by itself, with readers or without."""
        grace, limit = settings.RESUME_GRACE_SECONDS, relay.splice.options.event_limit
        Generation(relay, writer, store, self, grace=grace, event_limit=limit).start()

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def detached(self) -> int:
        """How many run although nobody in this process reads them."""
        return len(self._detached)

    def find(self, stream_id: str) -> Generation | None:
        """If it runs in this process."""
        return self._running.get(stream_id)

    def readers(self, stream_id: str) -> int:
        """Those in this process; what others read of a stream that runs here is not counted."""
        generation = self.find(stream_id)
        return generation.log.reader_count if generation else 0

    def break_leg(self, stream_id: str) -> bool:
        """Break the current leg of a stream as if its engine had died; False if it does not run in this process."""
        generation = self.find(stream_id)
        if generation is None or generation.relay.splice.ended:
            return False
        generation.relay.break_leg()
        return True

    # -- what a generation reports ---------------------------------------------------------------------

    def add(self, generation: Generation) -> None:
        self._running[generation.writer.stream_id] = generation

    def note_readers(self, generation: Generation) -> None:
        is_detached = generation.log.reader_count == 0
        (self._detached.add if is_detached else self._detached.discard)(generation.writer.stream_id)
        self._note()

    def remove(self, generation: Generation) -> None:
        """It has ended. Another one of the same stream, which has been taken over again, stays."""
        stream_id = generation.writer.stream_id
        if self.find(stream_id) is generation:
            del self._running[stream_id]
            self._detached.discard(stream_id)
        self._note()
        for call in self.on_end:
            call()

    def _note(self) -> None:
        noting.generations(self.running, self.detached)

    # -- the process ends ----------------------------------------------------------------------------

    def begin_stopping(self) -> None:
        """The process lets nobody in any more."""
        self.is_stopping = True
        for generation in self._running.values():
            generation.look_after()

    def shut_down(self, stream_id: str) -> bool:
        """The process ends, and waits for this stream no longer: another one goes on with it, if there is any, else it
        gets the failed ending. Whether its readers see an ending here."""
        generation = self.find(stream_id)
        if generation is None:
            return False
        if generation.writer.is_shared:
            generation.hand_over()
            return False
        generation.shut_down()
        return True

    def shut_down_all(self) -> None:
        for stream_id in list(self._running):
            self.shut_down(stream_id)

    async def put_away(self) -> None:
        """What is left when the process ends."""
        self.shut_down_all()
        left = [generation.ended() for generation in self._running.values()]
        with suppress(TimeoutError):
            async with asyncio.timeout(ENDING_SECONDS):
                await asyncio.gather(*left)
