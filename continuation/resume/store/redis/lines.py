"""Connections to Redis. All trouble with it leaves this module as StoreAway, whatever it was."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import hiredis
from redis.asyncio.connection import AbstractConnection, ConnectionPool, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError

from continuation.patience import Patience
from continuation.resume.log import StoreAway
from continuation.resume.store.redis.scripts import SCRIPTS, Command

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 1.0
ASK_SECONDS = 1.0
# Seconds that a question waits for its turn while Redis answers others.
TURN_SECONDS = 10.0
# Connections for questions: open at most, open always, and seconds after which others are closed when unused.
ASKING_LINES = 16
IDLE_LINES = 4
IDLE_SECONDS = 10.0


@contextmanager
def _translated() -> Generator[None]:
    try:
        yield
    except TimeoutError as error:
        raise StoreAway("Redis does not answer in time") from error
    except (RedisError, OSError, EOFError) as error:
        raise StoreAway(f"{type(error).__name__}: {error}") from error


class Line:
    """One connection. Closed after any trouble, and after a question whose answer was not waited for."""

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection

    async def open(self) -> None:
        try:
            with _translated():
                async with Patience(CONNECT_SECONDS):
                    await self._connection.connect()  # type: ignore[no-untyped-call]
        except BaseException:
            await self.aclose()
            raise

    async def ask(
        self, commands: Sequence[Command], seconds: float = ASK_SECONDS, answered: str | None = None
    ) -> list[Any]:
        """The answers, in order. Raises StoreAway, also where one of the answers is an error; but errors that say
        `answered` are answers."""
        try:
            answers = await self._ask(commands, seconds)
            if any(isinstance(answer, NoScriptError) for answer in answers):
                await self._ask([("SCRIPT", "LOAD", script.text) for script in SCRIPTS], seconds)
                answers = await self._ask(commands, seconds)  # all that changes anything may be sent twice
            for answer in answers:
                if isinstance(answer, RedisError) and (answered is None or answered not in str(answer)):
                    raise StoreAway(f"{type(answer).__name__}: {answer}") from answer
        except BaseException:
            await self.aclose()
            raise
        return answers

    async def _ask(self, commands: Sequence[Command], seconds: float) -> list[Any]:
        connection = self._connection
        with _translated():
            async with Patience(seconds):
                packed = [hiredis.pack_command(command) for command in commands]  # type: ignore[arg-type]
                await connection.send_packed_command(packed, check_health=False)
                answers: list[Any] = []
                while len(answers) < len(commands):
                    try:
                        answers.append(await connection.read_response())
                    except ResponseError as error:
                        answers.append(error)
                return answers

    async def next_message(self) -> Any:
        """What comes without having been asked for, however long that takes. Raises StoreAway."""
        with _translated():
            return await self._connection.read_response()

    async def aclose(self) -> None:
        with suppress(RedisError, OSError, TimeoutError):
            await self._connection.disconnect(nowait=True)


class Lines:
    """Where Redis is, and connections to it for single questions. Raises ValueError for what is not its URL."""

    def __init__(self, url: str) -> None:
        # Used to read the URL and to make connections; it never hands one out.
        self._pool = ConnectionPool.from_url(url)
        self._pool.connection_kwargs |= {
            "protocol": 2,
            "decode_responses": False,
            "socket_timeout": None,
            "socket_connect_timeout": CONNECT_SECONDS,
            "health_check_interval": 0,
            "retry": Retry(NoBackoff(), 0),
        }
        if not issubclass(self._pool.connection_class, UnixDomainSocketConnection):
            self._pool.connection_kwargs["socket_keepalive"] = True
        self._idle: list[tuple[Line, float]] = []  # since when; the first one for longest
        self._heard_at = 0.0
        self._places = asyncio.Semaphore(ASKING_LINES)
        self._is_closed = False

    async def open(self) -> Line:
        """A connection of one's own. Raises StoreAway."""
        if self._is_closed:
            raise StoreAway("the process ends")
        line = Line(self._pool.make_connection())  # type: ignore[no-untyped-call]
        await line.open()
        return line

    async def ask(self, *commands: Command, seconds: float = ASK_SECONDS) -> list[Any]:
        """Raises StoreAway `seconds` after Redis should have answered; no question is asked before its turn."""
        with _translated():
            async with Patience(seconds, lambda: self._heard_at, TURN_SECONDS):
                await self._places.acquire()
            try:
                async with Patience(seconds):
                    return await self._asked(commands, seconds)
            finally:
                self._places.release()

    async def _asked(self, commands: Sequence[Command], seconds: float) -> list[Any]:
        while self._idle:  # such a one may have been cut off meanwhile: then the next one says
            with suppress(StoreAway):
                return await self._asked_on(self._idle.pop()[0], commands, seconds)
        return await self._asked_on(await self.open(), commands, seconds)

    async def _asked_on(self, line: Line, commands: Sequence[Command], seconds: float) -> list[Any]:
        answers = await line.ask(commands, seconds)
        self._heard_at = now = asyncio.get_running_loop().time()
        if self._is_closed:
            await line.aclose()
        else:
            self._idle.append((line, now))
        return answers

    async def close_unused(self) -> None:
        """Those that a rush has left."""
        unused_since = asyncio.get_running_loop().time() - IDLE_SECONDS
        while len(self._idle) > IDLE_LINES and self._idle[0][1] < unused_since:
            await self._idle.pop(0)[0].aclose()

    @asynccontextmanager
    async def line(self) -> AsyncGenerator[Line]:
        """A connection of one's own, for a block. Raises StoreAway."""
        line = await self.open()
        try:
            yield line
        finally:
            await line.aclose()

    async def aclose(self) -> None:
        self._is_closed = True
        while self._idle:
            await self._idle.pop()[0].aclose()
