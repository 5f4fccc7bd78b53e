"""The lifespan protocol, for servers that have it (uvicorn, hypercorn; daphne has not)."""

import asyncio
import logging
from typing import Any

from continuation.audit import writer
from continuation.downstream import client

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 5.0


async def lifespan(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Startup has happened at import. Shutdown closes downstream connections, then writes the audit."""
    while (await receive())["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
    try:
        await put_away(FLUSH_SECONDS)
    except Exception as trouble:
        logger.exception("the connections to downstream did not close")
        ending = {"type": "lifespan.shutdown.failed", "message": f"{type(trouble).__name__}: {trouble}"}
    else:
        ending = {"type": "lifespan.shutdown.complete"}
    await send(ending)


async def put_away(seconds: float) -> None:
    """What a process does last: close the connections to downstream, then write the audit for up to so many seconds."""
    try:
        await client.close_shared()
    finally:
        await asyncio.to_thread(writer.flush, seconds)
