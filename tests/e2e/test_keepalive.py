"""While nothing else is sent, the client gets a comment now and then, and it harms nothing."""

from openai import OpenAI

from tests.e2e.asking import body
from tests.e2e.conftest import Chat, GatewayFor
from tests.harness.client import one_whole_answer
from tests.harness.shapes import VLLM, VLLM_LEG2, ended, started
from tests.harness.upstream import Cut, Gate, Pause, Reply, Upstream

COMMENT = b": keepalive\n"
KEEPALIVE = {"KEEPALIVE_SECONDS": "0.1"}


def test_comments_come_while_leg_1_is_silent_and_while_leg_2_is_awaited(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    silence, waiting = Gate(), Gate()
    upstream.script(
        Reply([*started(VLLM, [], ["some "]), Pause(silence), *started(VLLM, [], ["more "])[1:], Cut()]),
        Reply([*started(VLLM_LEG2, [], ["text"]), *ended(VLLM_LEG2)], before=[Pause(waiting)]),
    )
    stream = chat(gateway(**KEEPALIVE), body())
    stream.read_until(COMMENT)
    silence.open()
    waiting.wait_reached()
    seen = len(stream.body)
    while COMMENT not in stream.body[seen:]:
        assert stream.read_piece()
    waiting.open()
    one_whole_answer(stream.read_rest(), reasoning="", content="some more text", like=VLLM)


def test_without_the_setting_nothing_is_added(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    steps = [*started(VLLM, [], ["some "]), Pause(0.3), *ended(VLLM)]
    upstream.script(Reply(steps))
    assert COMMENT not in chat(gateway(), body()).read_rest().body


def test_openai_reads_past_the_comments(gateway: GatewayFor, upstream: Upstream) -> None:
    one = gateway(**KEEPALIVE)
    upstream.script(Reply([*started(VLLM, [], ["some "]), Pause(0.4), *ended(VLLM)]))
    with OpenAI(base_url=f"http://127.0.0.1:{one.port}/v1", api_key="k", max_retries=0) as client:
        chunks = list(client.chat.completions.create(**body()))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "some "
