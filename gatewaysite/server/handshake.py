"""What a connection becomes whose client asks for a WebSocket: daphne's, with handshakes that are none refused."""

from __future__ import annotations

from typing import Any

from autobahn.websocket.types import ConnectionDeny
from daphne.ws_protocol import WebSocketFactory, WebSocketProtocol  # type: ignore[import-untyped]


class WebSocket(WebSocketProtocol):  # type: ignore[misc]
    """`request` is set once its handshake has been read."""

    request = None

    def onConnect(self, request: Any) -> Any:
        if not request.headers.get("sec-websocket-protocol", "").isascii():
            raise ConnectionDeny(400, "Invalid header value")  # type: ignore[no-untyped-call]
        return super().onConnect(request)

    def onClose(self, *how: Any) -> None:
        """A handshake that is none comes here too; of it the server knows nothing."""
        if self.request is not None:
            super().onClose(*how)


class WebSockets(WebSocketFactory):  # type: ignore[misc]
    protocol = WebSocket
