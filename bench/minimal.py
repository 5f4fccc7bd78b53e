"""A relay of aiohttp alone that does the least a gateway must: forward, split lines, parse each chunk, note its text.

usage: minimal.py PORT ENGINE_URL
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator

from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

PORT, ENGINE = int(sys.argv[1]), sys.argv[2]
IDLE_SECONDS = 20
SESSION = web.AppKey("session", ClientSession)


def note(line: bytes, texts: list[str]) -> None:
    if line.startswith(b"data: {"):
        choices = json.loads(line[6:])["choices"]
        texts.extend(choice["delta"].get("content") or "" for choice in choices)


async def chat(request: web.Request) -> web.StreamResponse:
    body = await request.read()
    json.loads(body)
    headers = {"Content-Type": "application/json"}
    engine = await request.app[SESSION].post(ENGINE + request.path_qs, data=body, headers=headers)
    answer = web.StreamResponse(
        status=engine.status, headers={"Content-Type": engine.headers["Content-Type"]}
    )
    await answer.prepare(request)
    texts: list[str] = []
    rest = b""
    while read := await asyncio.wait_for(engine.content.readany(), IDLE_SECONDS):
        await answer.write(read)
        *lines, rest = (rest + read).split(b"\n")
        for line in lines:
            note(line, texts)
    await answer.write_eof()
    return answer


async def session(app: web.Application) -> AsyncIterator[None]:
    async with ClientSession(connector=TCPConnector(limit=0), timeout=ClientTimeout(total=None)) as opened:
        app[SESSION] = opened
        yield


app = web.Application()
app.cleanup_ctx.append(session)
app.router.add_post("/v1/chat/completions", chat)
web.run_app(app, host="127.0.0.1", port=PORT, print=None, access_log=None)
