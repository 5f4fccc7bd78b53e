"""The endpoints of the engine that is verified, over a client of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from continuation.downstream.client import Upstream
from continuation.downstream.transport import AiohttpTransport
from continuation.downstream.troubles import describe
from continuation.http.headers import RawHeaders
from continuation.shapes.chat.chunks import error_object, text_of
from continuation.shapes.encoding import JSON, dump, parse
from continuation.verification.order import Order, Trouble

CHAT_PATH = "/v1/chat/completions"
ANSWER_BYTES = 2**26
PROBE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """An HTTP answer that has been read to its end. status is 0 if there was no answer."""

    status: int
    headers: RawHeaders
    data: bytes

    @property
    def json(self) -> JSON:
        try:
            value = parse(self.data)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def message(self) -> str:
        """Message of an error answer, in one line."""
        text = str(error_object(self.json).get("message") or "") if self.json else ""
        return f"status {self.status}" + (f": {text.splitlines()[0][:160]}" if text.strip() else "")


class EngineDoor:
    """The engine's endpoints. A client of its own: the gateway's belongs to another event loop."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._url = httpx.URL(order.base_url)
        transport = AiohttpTransport(limit=0, connect_timeout=order.connect_timeout)
        self._client = httpx.AsyncClient(transport=transport, trust_env=False, timeout=None)
        self._headers: RawHeaders = [
            (b"content-type", b"application/json"),
            (b"accept-encoding", b"identity"),
        ]
        if order.api_key:
            self._headers.append((b"authorization", b"Bearer " + order.api_key.encode()))

    async def __aenter__(self) -> EngineDoor:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.aclose()

    async def open(self, path: str, body: bytes | None = None) -> Upstream:
        """POST the body, or GET without one. Raises httpx.HTTPError."""
        prefix = self._url.raw_path.rstrip(b"/")
        request = httpx.Request(
            "GET" if body is None else "POST",
            self._url.copy_with(raw_path=prefix or b"/"),
            headers=self._headers,
            content=body,
            extensions={"target": prefix + path.encode()},
        )
        answer = await self._client.send(request, stream=True)
        return Upstream(answer.status_code, list(answer.headers.raw), answer.extensions["body"])

    async def heard(
        self, path: str, body: bytes | None = None, seconds: float = PROBE_SECONDS
    ) -> WholeAnswer:
        """Send a request and read the whole answer. Raises httpx.HTTPError, TimeoutError."""
        async with asyncio.timeout(seconds):
            upstream = await self.open(path, body)
            read = b""
            try:
                while len(read) < ANSWER_BYTES and (more := await upstream.body.read()):
                    read += more
            finally:
                upstream.body.close()
        return WholeAnswer(upstream.status, upstream.headers, read)

    async def asked(self, path: str, value: JSON | None = None) -> WholeAnswer:
        """Send a probe. The status is 0 if the engine did not answer."""
        return await self.asked_raw(path, None if value is None else dump(value))

    async def asked_raw(self, path: str, body: bytes | None) -> WholeAnswer:
        try:
            return await self.heard(path, body)
        except (httpx.HTTPError, TimeoutError) as trouble:
            return WholeAnswer(0, [], dump({"error": {"message": describe(trouble)}}))

    async def streamed(self, body: bytes) -> bytes:
        """An answer that must come. Raises Trouble."""
        seconds = self._order.seconds
        try:
            heard = await self.heard(CHAT_PATH, body, seconds)
        except TimeoutError:
            raise Trouble(f"no whole answer to a prompt within {seconds:g} seconds") from None
        except httpx.HTTPError as trouble:
            raise Trouble(f"the engine at {self._order.base_url} broke off: {describe(trouble)}") from trouble
        if heard.status != 200:
            raise Trouble(f"the engine refused a prompt with {heard.message}")
        return heard.data

    async def is_there(self) -> bool:
        return (await self.asked("/v1/models")).status == 200


async def detokenized(door: EngineDoor, model: str, ids: Sequence[int]) -> str:
    """ "" where the engine does not say."""
    answer = (await door.asked("/detokenize", {"model": model, "tokens": list(ids)})).json
    return text_of(answer.get("prompt")) or text_of(answer.get("text"))
