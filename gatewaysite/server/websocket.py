"""WebSocket connections: there is no page for them, so each handshake is refused."""

from typing import Any


async def refuse(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Close before accepting, which servers answer with status 403."""
    message = await receive()
    if message["type"] == "websocket.connect":
        await send({"type": "websocket.close"})
