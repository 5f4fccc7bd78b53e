"""The openai package reads what the gateway gives, unmodified."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.e2e.asking import QUESTION
from tests.e2e.conftest import GatewayFor
from tests.e2e.faults import FAULTS, Fault
from tests.harness.gateway import Gateway
from tests.harness.shapes import SGLANG, SGLANG_LEG2, VLLM, VLLM_LEG2, Sglang, Vllm, ended, started
from tests.harness.upstream import DONE, Cut, Reply, Upstream, event, json_reply

ASKED: dict[str, Any] = {"model": "any-name", "messages": [QUESTION], "stream": True}
WITH_USAGE: dict[str, Any] = ASKED | {"stream_options": {"include_usage": True}}


@pytest.fixture
def client(plain: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{plain.url}/v1", api_key="k", max_retries=0) as client:
        yield client


def read(client: openai.OpenAI, asked: dict[str, Any]) -> dict[str, Any]:
    """Texts, finish and usage; raises what the package raises."""
    found: dict[str, Any] = {"reasoning": "", "content": "", "finish": [], "usage": [], "ids": set()}
    with client.chat.completions.create(**asked) as stream:
        for chunk in stream:
            found["ids"].add(chunk.id)
            if chunk.usage:
                found["usage"].append(chunk.usage)
            for choice in chunk.choices:
                extra = choice.delta.model_extra or {}
                found["reasoning"] += extra.get("reasoning") or extra.get("reasoning_content") or ""
                found["content"] += choice.delta.content or ""
                found["finish"] += [choice.finish_reason] if choice.finish_reason else []
    return found


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if not fault.stalls], ids=str)
@pytest.mark.parametrize("engines", [(VLLM, VLLM_LEG2), (SGLANG, SGLANG_LEG2)], ids=["vllm", "sglang"])
def test_a_rescued_stream_is_read_whole(
    client: openai.OpenAI, upstream: Upstream, fault: Fault, engines: tuple[Vllm | Sglang, Vllm | Sglang]
) -> None:
    first, second = engines
    leg2 = [second.role(), second.content(" Welt 渐😀"), *ended(second, usage=(67, 20, 5))]
    upstream.script(fault.leg(first, started(first, ["so "], ["Hallo"])), Reply(leg2))
    found = read(client, WITH_USAGE)
    assert (found["reasoning"], found["content"]) == ("so ", "Hallo Welt 渐😀")
    assert found["finish"][-1] == "stop"
    assert found["ids"] == {first.id}
    (usage,) = found["usage"]
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.completion_tokens > 20
    assert usage.completion_tokens_details.reasoning_tokens > 5


def test_a_whole_stream_is_read_as_it_was(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(Reply([*started(VLLM, ["so "], ["Hallo"]), *ended(VLLM, usage=(21, 4, 1))]))
    found = read(client, WITH_USAGE)
    assert (found["reasoning"], found["content"], found["finish"]) == ("so ", "Hallo", ["stop"])
    assert found["usage"][0].completion_tokens == 4


def test_a_passed_through_stream_is_read_as_it_was(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(Reply([*started(VLLM, ["so "], ["Hallo"]), *ended(VLLM)]))
    found = read(client, ASKED | {"extra_headers": {"X-Continuation": "off"}})
    assert (found["reasoning"], found["content"], found["finish"]) == ("so ", "Hallo", ["stop"])


@pytest.mark.parametrize(
    "leg2",
    [
        json_reply({"error": {"message": "no", "code": 400}}, "400 Bad Request"),
        Reply([*started(VLLM_LEG2, [], ["b"]), Cut()]),
        Reply([*started(VLLM_LEG2, [], ["b"]), DONE]),
        Reply([VLLM_LEG2.role(), event({"error": {"message": "x", "code": 500}})]),
    ],
    ids=["refused", "cut", "done", "error"],
)
def test_a_failed_stream_raises(client: openai.OpenAI, upstream: Upstream, leg2: Reply) -> None:
    upstream.script(Reply(started(VLLM, [], ["a"])), leg2)
    with pytest.raises(openai.APIError) as raised:
        read(client, ASKED)
    assert not isinstance(raised.value, openai.APIConnectionError)
    assert raised.value.type == "stream_interrupted"


def test_an_engines_own_error_raises(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(
        Reply([*started(VLLM, [], ["a"]), event({"error": {"message": "too long", "code": 400}}), DONE])
    )
    with pytest.raises(openai.APIError, match="too long"):
        read(client, ASKED)


def test_an_unreachable_upstream_raises_by_its_status(gateway: GatewayFor, refusing_url: str) -> None:
    away = gateway(DOWNSTREAM_URL=refusing_url)
    with openai.OpenAI(base_url=f"{away.url}/v1", api_key="k", max_retries=0) as client:
        with pytest.raises(openai.InternalServerError) as raised:
            read(client, ASKED)
        with pytest.raises(openai.InternalServerError):
            client.models.list()
    assert raised.value.status_code == 502


async def test_the_async_client_reads_a_rescued_stream(plain: Gateway, upstream: Upstream) -> None:
    upstream.script(
        Reply([*started(VLLM, [], ["Hallo"]), Cut()]),
        Reply([*started(VLLM_LEG2, [], [" Welt"]), *ended(VLLM_LEG2)]),
    )
    text = ""
    async with openai.AsyncOpenAI(base_url=f"{plain.url}/v1", api_key="k", max_retries=0) as client:
        async for chunk in await client.chat.completions.create(**ASKED):
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
    assert text == "Hallo Welt"


def test_a_request_without_streaming_is_answered(client: openai.OpenAI, upstream: Upstream) -> None:
    message = {"role": "assistant", "content": "Hallo"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    upstream.script(
        json_reply({"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]})
    )
    answer = client.chat.completions.create(model="any-name", messages=[QUESTION])  # type: ignore[list-item]
    assert answer.choices[0].message.content == "Hallo"
