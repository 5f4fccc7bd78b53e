"""The lifespan protocol, for servers that have it (uvicorn, hypercorn; daphne has not)."""

import logging
from typing import Any

from continuation import lifecycle

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 5.0


async def lifespan(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """The start has happened as the server loaded the application. The shutdown ends the process."""
    while (await receive())["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
    try:
        await lifecycle.current().end(FLUSH_SECONDS)
    except Exception as trouble:
        logger.exception("the connections to downstream did not close")
        ending = {"type": "lifespan.shutdown.failed", "message": f"{type(trouble).__name__}: {trouble}"}
    else:
        ending = {"type": "lifespan.shutdown.complete"}
    await send(ending)
