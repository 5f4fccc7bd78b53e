"""The openai package of PyPI: one job a line on stdin, one result a line on stdout (see ../driving.py).

Ways: create, async, helper and async-helper (`chat.completions.stream`, and the completion that it adds up).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import openai
from jobs import Job, Result, choice, serve

_kept: dict[tuple[str, int, bool], Any] = {}


def client(job: Job, kind: type) -> Any:
    """Kept from job to job, as programs do: what one stream leaves behind, the next one meets."""
    key = (job["base_url"], job["retries"], kind is openai.AsyncOpenAI)
    if key not in _kept:
        _kept[key] = kind(base_url=job["base_url"], api_key="none", max_retries=job["retries"], timeout=60)
    return _kept[key]


def asked(job: Job) -> dict[str, Any]:
    return {**job["body"], "extra_headers": job["headers"]}


def without_stream(job: Job) -> dict[str, Any]:
    return {name: value for name, value in asked(job).items() if name != "stream"}


def take(result: Result, chunk: Any) -> None:
    if chunk.id not in result["ids"]:
        result["ids"].append(chunk.id)
    if chunk.usage:
        take_usage(result, chunk.usage)
    for each in chunk.choices:
        into = choice(result, each.index)
        extra = each.delta.model_extra or {}
        into["reasoning"] += extra.get("reasoning") or extra.get("reasoning_content") or ""
        into["content"] += each.delta.content or ""
        if each.finish_reason:
            into["finish"].append(each.finish_reason)
        for call in each.delta.tool_calls or []:
            if call.id:
                into["tools"].append({"id": call.id, "name": "", "arguments": ""})
            tool = into["tools"][call.index]
            tool["name"] += call.function.name or ""
            tool["arguments"] += call.function.arguments or ""


def take_usage(result: Result, usage: Any) -> None:
    result["usages"].append([usage.prompt_tokens, usage.completion_tokens, usage.total_tokens])


def take_whole(result: Result, completion: Any) -> None:
    result["ids"].append(completion.id)
    if completion.usage:
        take_usage(result, completion.usage)
    for each in completion.choices:
        into = choice(result, each.index)
        extra = each.message.model_extra or {}
        into["reasoning"] = extra.get("reasoning") or extra.get("reasoning_content") or ""
        into["content"] = each.message.content or ""
        into["finish"] = [each.finish_reason]
        into["tools"] = [_tool(call) for call in each.message.tool_calls or []]


def _tool(call: Any) -> dict[str, str]:
    return {"id": call.id, "name": call.function.name, "arguments": call.function.arguments}


def take_event(result: Result, events: Counter[str], event: Any) -> None:
    events[event.type] += 1
    if event.type == "chunk":
        take(result, event.chunk)
    elif event.type == "content.done":
        result["extra"]["content.done"] = event.content
    elif event.type == "tool_calls.function.arguments.done":
        result["extra"].setdefault("arguments.done", []).append(event.arguments)


def take_final(result: Result, events: Counter[str], final: Any) -> None:
    del events["chunk"]  # how many chunks there are is the engine's affair
    result["extra"]["events"] = sorted(events)
    message = final.choices[0].message
    kept = message.model_extra or {}
    result["extra"]["final"] = {
        "reasoning": kept.get("reasoning") or kept.get("reasoning_content") or "",
        "content": message.content,
        "finish": final.choices[0].finish_reason,
        "tools": [[call.function.name, call.function.arguments] for call in message.tool_calls or []],
    }


def create(job: Job, result: Result) -> None:
    raw = client(job, openai.OpenAI).chat.completions.with_raw_response.create(**asked(job))
    result["watched"] = raw.headers.get("x-continuation")
    answer = raw.parse()
    if not job["body"].get("stream"):
        take_whole(result, answer)
        return
    with answer as stream:
        for chunk in stream:
            take(result, chunk)


async def create_async(job: Job, result: Result) -> None:
    raw = await client(job, openai.AsyncOpenAI).chat.completions.with_raw_response.create(**asked(job))
    result["watched"] = raw.headers.get("x-continuation")
    answer = raw.parse()
    if not job["body"].get("stream"):
        take_whole(result, answer)
        return
    async with answer as stream:
        async for chunk in stream:
            take(result, chunk)


def helper(job: Job, result: Result) -> None:
    events: Counter[str] = Counter()
    with client(job, openai.OpenAI).chat.completions.stream(**without_stream(job)) as stream:
        for event in stream:
            take_event(result, events, event)
        take_final(result, events, stream.get_final_completion())


async def helper_async(job: Job, result: Result) -> None:
    events: Counter[str] = Counter()
    async with client(job, openai.AsyncOpenAI).chat.completions.stream(**without_stream(job)) as stream:
        async for event in stream:
            take_event(result, events, event)
        take_final(result, events, await stream.get_final_completion())


if __name__ == "__main__":
    serve({"create": create, "async": create_async, "helper": helper, "async-helper": helper_async})
