"""What openai-python reads of the gateway's streams."""

from typing import Any

import openai

from tests.e2e.asking import body
from tests.e2e.conftest import GatewayFor
from tests.e2e.scenes import LEG2
from tests.harness.gateway import Gateway
from tests.harness.shapes import VLLM, started
from tests.harness.upstream import Cut, Pause, Reply, Send, Step, Upstream


def _read(one: Gateway, **asked: Any) -> tuple[str, list[str]]:
    with openai.OpenAI(base_url=f"{one.url}/v1", api_key="k", max_retries=0) as client:
        chunks = list(client.chat.completions.create(**body(**asked)))
    choices = [choice for chunk in chunks for choice in chunk.choices]
    text = "".join(choice.delta.content or "" for choice in choices)
    return text, [choice.finish_reason for choice in choices if choice.finish_reason]


def test_openai_loses_nothing_to_a_bom_or_to_odd_line_ends(plain: Gateway, upstream: Upstream) -> None:
    bom = Send(b"\xef\xbb\xbf")
    first = [Send(step.data.replace(b"\n", b"\r\n")) for step in started(VLLM, [], ["some "])]
    second = [Send(step.data.replace(b"data: ", b"data:")) for step in LEG2.steps if isinstance(step, Send)]
    upstream.script(Reply([bom, *first, Cut()]), Reply([bom, *second]))
    assert _read(plain) == ("some text", ["stop"])


def test_openai_reads_past_comments_of_the_gateway_between_events_with_ids(
    gateway: GatewayFor, upstream: Upstream
) -> None:
    """Once there was an id it takes a block without data for an event."""
    numbered = [Send(b"id: %d\n" % n + step.data) for n, step in enumerate(started(VLLM, [], ["so", "me "]))]
    slow: list[Step] = [part for step in numbered for part in (step, Pause(0.35))]
    upstream.script(Reply([*slow, Cut()]), Reply(LEG2.steps, before=[Pause(0.5)]))
    assert _read(gateway(KEEPALIVE_SECONDS="0.1")) == ("some text", ["stop"])
