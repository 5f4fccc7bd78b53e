"""LangChain's ChatOpenAI: one job a line on stdin, one result a line on stdout (see ../driving.py).

Ways: stream and astream. What does not stream is asked by invoke and ainvoke.
"""

from __future__ import annotations

import json
from typing import Any

from jobs import Job, Result, choice, serve
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_openai import ChatOpenAI


def model(job: Job) -> Any:
    body = job["body"]
    chat = ChatOpenAI(
        model=body["model"],
        base_url=job["base_url"],
        api_key="none",
        max_retries=job["retries"],
        timeout=60,
        default_headers=job["headers"],
        stream_usage=bool(body.get("stream_options")),
    )
    bound = {
        name: value
        for name, value in body.items()
        if name not in ("model", "messages", "stream", "stream_options", "tools")
    }
    if body.get("tools"):
        return chat.bind_tools(body["tools"], **bound)
    return chat.bind(**bound) if bound else chat


def take(result: Result, so_far: AIMessageChunk | None, chunk: AIMessageChunk) -> AIMessageChunk:
    """Chunks add up to a message: that is how LangChain wants them read."""
    if chunk.usage_metadata:
        _take_usage(result, chunk)
    found = chunk.response_metadata.get("finish_reason")
    if found:
        choice(result, 0)["finish"].append(found)
    joined = chunk if so_far is None else so_far + chunk
    _take_message(result, joined)
    return joined


def _take_message(result: Result, message: AIMessage) -> None:
    into = choice(result, 0)
    assert isinstance(message.content, str), message.content
    into["content"] = message.content
    into["reasoning"] = message.additional_kwargs.get("reasoning_content") or ""
    if isinstance(message, AIMessageChunk):
        calls = message.tool_call_chunks
        into["tools"] = [{"id": c["id"], "name": c["name"], "arguments": c["args"] or ""} for c in calls]
    else:
        into["tools"] = [
            {
                "id": call["id"],
                "name": call["name"],
                "arguments": json.dumps(call["args"], ensure_ascii=False),
            }
            for call in message.tool_calls
        ]
    result["ids"] = [message.id]


def _take_usage(result: Result, message: AIMessage) -> None:
    usage = message.usage_metadata
    assert usage is not None
    result["usages"].append([usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]])


def _take_whole(result: Result, message: AIMessage) -> None:
    _take_message(result, message)
    choice(result, 0)["finish"] = [message.response_metadata.get("finish_reason")]
    if message.usage_metadata:
        _take_usage(result, message)


def _parsed(result: Result, so_far: AIMessageChunk | None) -> None:
    """The arguments as LangChain hands them to a tool."""
    if so_far is not None:
        result["extra"]["called"] = [[call["name"], call["args"]] for call in so_far.tool_calls]


def stream(job: Job, result: Result) -> None:
    if not job["body"].get("stream"):
        _take_whole(result, model(job).invoke(job["body"]["messages"]))
        return
    so_far = None
    for chunk in model(job).stream(job["body"]["messages"]):
        so_far = take(result, so_far, chunk)
    _parsed(result, so_far)


async def astream(job: Job, result: Result) -> None:
    if not job["body"].get("stream"):
        _take_whole(result, await model(job).ainvoke(job["body"]["messages"]))
        return
    so_far = None
    async for chunk in model(job).astream(job["body"]["messages"]):
        so_far = take(result, so_far, chunk)
    _parsed(result, so_far)


if __name__ == "__main__":
    serve({"stream": stream, "astream": astream})
