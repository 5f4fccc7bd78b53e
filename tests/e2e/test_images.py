"""Chats with large images."""

import base64
import json

from tests.e2e.asking import body
from tests.e2e.conftest import Chat, GatewayFor
from tests.e2e.scenes import WHOLE_LEG2
from tests.harness.client import one_whole_answer
from tests.harness.shapes import VLLM, ended, started
from tests.harness.upstream import Reply, Upstream


def _with_image(megabytes: float) -> bytes:
    image = base64.b64encode(bytes(int(megabytes * 750_000))).decode()
    url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}
    return json.dumps(body(messages=[{"role": "user", "content": [url]}])).encode()


def test_a_chat_with_twelve_megabytes_of_image_goes_through(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    sent = _with_image(12)
    upstream.script(Reply([*started(VLLM, [], ["a"]), *ended(VLLM)]))
    stream = chat(gateway(), sent).read_rest()
    assert stream.all("X-Continuation") == ["passthrough; reason=body_too_large"]
    one_whole_answer(stream, reasoning="", content="a", like=VLLM)
    assert upstream.requests[0].body == sent


def test_a_chat_with_nine_megabytes_of_image_is_continued_with_it(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    sent = _with_image(9)
    upstream.script(Reply(started(VLLM, [], ["a"])), WHOLE_LEG2)
    one_whole_answer(chat(gateway(), sent).read_rest(), reasoning="", content="ab", like=VLLM)
    leg1, leg2 = upstream.requests
    assert leg1.body == sent
    assert leg2.json()["messages"][:-1] == json.loads(sent)["messages"]
    assert leg2.all("Content-Length") == [str(len(leg2.body))]
