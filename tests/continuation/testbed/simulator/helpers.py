"""What the tests of the simulator share: requests, partials, raw sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

from continuation.testbed.simulator.engine import Answer, Config, SimulatedEngine, SimulatedEvent

QUESTION = "What does the gateway do when a stream breaks? 请说明 🙂"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Look up the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def engine(name: str = "vllm", template: str = "qwen", **options: Any) -> SimulatedEngine:
    return SimulatedEngine(Config(engine=name, template=template, **options))  # type: ignore[arg-type]


def ask(question: str = QUESTION, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}], "stream": True, **fields}


def answer(one: SimulatedEngine, body: dict[str, Any] | None = None) -> Answer:
    found = one.chat(json.dumps(body or ask()).encode())
    assert isinstance(found, Answer), found
    return found


def events(one: SimulatedEngine, body: dict[str, Any] | None = None) -> list[SimulatedEvent]:
    return list(answer(one, body).events())


def chunks(blocks: Iterable[SimulatedEvent | str]) -> list[dict[str, Any]]:
    texts = (block.data if isinstance(block, SimulatedEvent) else block for block in blocks)
    lines = (text.strip().removeprefix("data: ") for text in texts)
    return [json.loads(line) for line in lines if line and line != "[DONE]"]


@dataclass
class Told:
    """What a client makes of a stream."""

    reasoning: str = ""
    content: str = ""
    finish: str | None = None
    calls: dict[int, dict[str, str]] = field(default_factory=dict)
    usage: dict[str, Any] | None = None

    def add(self, chunk: dict[str, Any]) -> Told:
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk.get("choices", []):
            delta = choice["delta"]
            self.reasoning += delta.get("reasoning") or delta.get("reasoning_content") or ""
            self.content += delta.get("content") or ""
            for call in delta.get("tool_calls", []):
                row = self.calls.setdefault(call["index"], {"name": "", "arguments": ""})
                row["name"] += call["function"].get("name") or ""
                row["arguments"] += call["function"].get("arguments") or ""
            self.finish = choice["finish_reason"] or self.finish
        return self


def told(blocks: Iterable[SimulatedEvent | str]) -> Told:
    result = Told()
    for chunk in chunks(blocks):
        result.add(chunk)
    return result


# -- sockets ---------------------------------------------------------------------------------------


@dataclass
class Raw:
    """Bytes off the socket and how it ended: "eof", "reset" or "open" (nothing more came for a while)."""

    data: bytes
    end: str

    @property
    def head(self) -> str:
        return self.data.partition(b"\r\n\r\n")[0].decode()

    @property
    def status(self) -> int:
        return int(self.head.split()[1])

    @property
    def wire(self) -> bytes:
        return self.data.partition(b"\r\n\r\n")[2]

    @property
    def body(self) -> bytes:
        """Chunked framing removed, as far as it goes."""
        if "transfer-encoding: chunked" not in self.head:
            return self.wire
        body, rest = b"", self.wire
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            if not int(size, 16):
                break
            body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        return body

    @property
    def closed_cleanly(self) -> bool:
        return self.wire.endswith(b"0\r\n\r\n")

    @property
    def blocks(self) -> list[str]:
        return [block + "\n\n" for block in self.body.decode("utf-8", "replace").split("\n\n") if block]


def request_bytes(path: str, body: object = None, method: str = "POST", **headers: str) -> bytes:
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    names = {"host": "simulator", "content-length": str(len(data)), **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in names.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + data


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def read_to_the_end(reader: asyncio.StreamReader, patience: float, until: bytes | None = None) -> Raw:
    """Read until the end of the connection or of a body of known length, `until`, or `patience` seconds of silence."""
    data = b""
    while True:
        try:
            async with asyncio.timeout(patience):
                more = await reader.read(65536)
        except TimeoutError:
            return Raw(data, "open")
        except ConnectionResetError:
            return Raw(data, "reset")
        data += more
        if not more:
            return Raw(data, "eof")
        if (until and until in data) or _is_whole(data):
            return Raw(data, "open")


def _is_whole(data: bytes) -> bool:
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    return bool(length) and len(body) >= int(length[1]) and b"connection: close" not in head


async def exchange(url: str, raw: bytes, patience: float = 5.0, until: bytes | None = b"0\r\n\r\n") -> Raw:
    async with connected(url) as (reader, writer):
        writer.write(raw)
        await writer.drain()
        return await read_to_the_end(reader, patience, until)


async def call(
    url: str, path: str, body: object = None, method: str = "GET", **headers: str
) -> tuple[int, Any]:
    """A small JSON exchange on a connection of its own: (status, parsed body or None)."""
    raw = await exchange(url, request_bytes(path, body, method, connection="close", **headers), until=None)
    return raw.status, json.loads(raw.wire) if raw.wire else None


async def chat(url: str, body: dict[str, Any] | None = None, fault: str = "", **rest: Any) -> Raw:
    headers = {"X_Simulate_Fault": fault} if fault else {}
    return await exchange(url, request_bytes("/v1/chat/completions", body or ask(), **headers), **rest)


def continued_ask(reasoning: str, content: str) -> dict[str, Any]:
    """A continuation in content, as vLLM with the qwen template takes it."""
    message = {"role": "assistant", "reasoning": reasoning, "content": content}
    flags = {"continue_final_message": True, "add_generation_prompt": False}
    return {**ask(), "messages": [*ask()["messages"], message], **flags}
