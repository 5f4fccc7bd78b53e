"""A process that runs streams in Redis until it is killed:

    python -m tests.continuation.resume.store.owner URL STREAMS EVENTS SECONDS

It prints `begun ID` for each stream, `written` once Redis has that many events of each, and `lost ID` for each stream
that another process has taken over. One event of each follows per SECONDS.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial

from continuation.resume.log import START, Limits
from continuation.resume.store.redis.store import RedisStore
from tests.continuation.resume.streams import begun, event, events, new_id, taken


def say(*words: str) -> None:
    print(*words, flush=True)


async def main(url: str, streams: int, first: int, seconds: float) -> None:
    store = RedisStore(url, Limits())
    writers = [await begun(store, new_id(), b"asked for") for _ in range(streams)]
    for writer in writers:
        say("begun", writer.stream_id)
        writer.listen(lambda: None, partial(say, "lost", writer.stream_id))
        writer.append(events(1, first))
    for writer in writers:
        await taken(writer.log.reader(START), first)
    say("written")
    number = first
    while True:
        await asyncio.sleep(seconds)
        number += 1
        for writer in writers:
            writer.append([event(number)])


asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
