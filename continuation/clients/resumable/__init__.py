"""A client whose stream survives its own connection: it comes back with its token and the number of the last event.

    from continuation.clients.resumable import stream_chat

    with stream_chat("http://gateway:8000", {"model": "chat", "messages": [...]}) as stream:
        for event in stream:
            print(event.data["choices"])          # each event once and in order, however often the line broke

    async with astream_chat(...) as stream:       # the same, with `async for` and `await stream.stop()`
        async for event in stream: ...

It needs httpx and nothing else of this project. `for` ends with the answer's `[DONE]`, which is not an event; an answer
that ends otherwise raises:

    Failed          the gateway's failed ending: the answer is not whole, and nothing more will come
    Refused         a status that asking again does not change; on the way back BadCursor, NotFound or Gone
    Disconnected    the connection broke and there is no way back: the answer was not resumable
    GaveUp          there was one, but it was not found within the limits of `Retries`
    NotUnderstood   the answer is not what a gateway sends

All are StreamErrors; their `position` is where one can go on, as is `stream.position` at any time, in this process or
another, now or later (until the gateway's log of the stream expires):

    saved = stream.position.to_json()             # it holds the token: who has it, and the same Authorization, can read
    ...
    with resume(Position.from_json(saved), headers={"Authorization": ...}) as stream: ...

Leaving the `with` block closes the connection and no more: the generation goes on, and one can come back to it, as long
as the gateway waits for a reader. `stream.stop()` ends the generation itself, for all its readers.

The question is sent once: if it gets no answer, only the caller knows whether asking it twice is harmless. What is
tried again is the way back to an answer that has begun.
"""

from .aio import AsyncChatStream, aresume, astream_chat
from .errors import (
    BadCursor,
    Disconnected,
    Failed,
    GaveUp,
    Gone,
    NotFound,
    NotUnderstood,
    Refused,
    StreamError,
)
from .sync import ChatStream, resume, stream_chat
from .values import Event, Options, Position, Retries

__all__ = [
    "AsyncChatStream",
    "BadCursor",
    "ChatStream",
    "Disconnected",
    "Event",
    "Failed",
    "GaveUp",
    "Gone",
    "NotFound",
    "NotUnderstood",
    "Options",
    "Position",
    "Refused",
    "Retries",
    "StreamError",
    "aresume",
    "astream_chat",
    "resume",
    "stream_chat",
]
