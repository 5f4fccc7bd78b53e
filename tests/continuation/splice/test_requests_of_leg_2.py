"""What leg 2 is asked."""

from typing import Any

import pytest

from continuation.vocabulary import Failure
from strategies.types import CompiledStrategy
from tests.continuation.splice.playbook import QUESTION, Play, chunk, content, reasoning, role
from tests.continuation.splice.plays import broken

QWEN = CompiledStrategy(
    "qwen", "qwen", open="<think>\n", thinking_key="enable_thinking", structured=True, template_trims=True
)


@pytest.mark.parametrize("strategy", [None, QWEN], ids=["generic", "structured"])
def test_a_cut_right_after_the_reasoning_leaves_it_open_and_a_refusal_ends_it_cleanly(
    strategy: CompiledStrategy | None,
) -> None:
    body = {"chat_template_kwargs": {"enable_thinking": True}}
    play = Play(body, strategy) if strategy else Play(body)
    play.reads(role(), reasoning("so.\n"), chunk({"content": ""})).ends(Failure.DISCONNECT)
    message = play.legs[0]["messages"][-1]
    assert message == {"role": "assistant", "content": f"{strategy.open if strategy else '<think>'}so.\n"}
    assert play.legs[0]["chat_template_kwargs"] == {"enable_thinking": True}
    play.does(play.splice.leg2_refused(400, b'{"error": {"message": "no such text", "code": 400}}', 0))
    error = play.failed().errors[0]
    assert (error["code"], error["type"]) == ("disconnect", "stream_interrupted")
    assert "no such text" not in error["message"]


@pytest.mark.parametrize("flags", [{"add_generation_prompt": True}, {"continue_final_message": False}, {}])
def test_leg_2_asks_for_a_continuation_whatever_flags_the_client_sent(flags: dict[str, bool]) -> None:
    play = broken(role(), content("a"), body=flags)
    sent = play.legs[0]
    assert (sent["continue_final_message"], sent["add_generation_prompt"]) == (True, False)
    added = {"continue_final_message", "add_generation_prompt", "stream_options", "chat_template_kwargs"}
    assert set(sent) == {"model", "stream", "messages", *added}
    assert sent["messages"] == [QUESTION, {"role": "assistant", "content": "a"}]


@pytest.mark.parametrize("message", [{"role": "assistant", "content": None}, {"role": "assistant"}])
def test_the_last_message_has_a_string_for_content_whatever_came_before(message: dict[str, Any]) -> None:
    asked = [QUESTION, message | {"tool_calls": []}, QUESTION]
    for strategy in (CompiledStrategy("plain", "plain"), QWEN):
        for said in ([reasoning("r")], [content("c")], [reasoning("r"), content("c")]):
            play = Play({"messages": asked}, strategy).reads(role(), *said).ends()
            assert play.legs[0]["messages"][:-1] == asked
            assert isinstance(play.legs[0]["messages"][-1]["content"], str)


CONVERSATIONS: dict[str, list[Any]] = {
    "an answer begun by the client": [QUESTION, {"role": "assistant", "content": "a"}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}],
    "tools": [
        QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "f"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "12 degrees"},
    ],
    "thoughts": [QUESTION, {"role": "assistant", "reasoning": "hm", "content": "a"}, QUESTION],
    "fields of their own": [{"role": "user", "content": "a", "name": "n", "cache_control": {"x": 1}}],
    "none": [],
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_leg_2_gets_the_conversation_unchanged_and_one_message_more(name: str) -> None:
    asked = CONVERSATIONS[name]
    play = broken(role(), content("a"), body={"messages": asked})
    assert play.legs[0]["messages"] == [*asked, {"role": "assistant", "content": "a"}]
