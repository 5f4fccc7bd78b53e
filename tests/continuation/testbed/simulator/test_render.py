import json
from typing import Any

import pytest

from continuation.testbed.simulator.dialects import DIALECTS
from continuation.testbed.simulator.render import ConversationRefused, Prompt, render_sglang, render_vllm
from continuation.testbed.simulator.requests import read_chat
from tests.continuation.testbed.simulator.helpers import WEATHER

USER = {"role": "user", "content": "Hi"}
CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}


def vllm(template: str, *messages: dict[str, Any], **fields: Any) -> Prompt:
    body = json.dumps({"messages": messages, **fields}).encode()
    return render_vllm(read_chat(body), DIALECTS[template])


def sglang(template: str, *messages: dict[str, Any], **fields: Any) -> Prompt:
    body = json.dumps({"messages": messages, **fields}).encode()
    return render_sglang(read_chat(body), DIALECTS[template])


def last(content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


def off(key: str) -> dict[str, Any]:
    return {"chat_template_kwargs": {key: False}}


@pytest.mark.parametrize(
    ("template", "key", "on", "without"),
    [
        ("qwen", "enable_thinking", "<think>\n", "<think>\n\n</think>\n\n"),
        ("generic", "thinking", "<|assistant|>\n", "<think></think>"),
        ("kimi-k3", "thinking", '<|open|>message role="assistant"<|sep|>', "<|open|>response<|sep|>"),
        ("deepseek-v4", "thinking", "<｜Assistant｜><think>", "<｜Assistant｜></think>"),
    ],
)
def test_the_generation_prompt_follows_the_switch(template: str, key: str, on: str, without: str) -> None:
    for render in (vllm, sglang):
        assert render(template, USER).text.endswith(on)
        assert render(template, USER).in_reasoning
        assert render(template, USER, **off(key)).text.endswith(without)
        assert not render(template, USER, **off(key)).in_reasoning
        assert render(template, USER, **off("some_other_key")).text.endswith(on)


def test_qwen_trims_and_keeps_the_reasoning_of_the_last_turns_only() -> None:
    old = last("\n\n old ", reasoning="forgotten")
    text = vllm(
        "qwen", USER, old, {"role": "user", "content": " again "}, last("<think>\nR\n</think>\n\n  C \n")
    ).text
    assert text == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nold<|im_end|>\n<|im_start|>user\nagain<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nR\n</think>\n\n  C<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )


def test_generic_keeps_contents_verbatim() -> None:
    text = vllm("generic", USER, last(" <think>R</think>\n\n C \n")).text
    assert text == "<|user|>\nHi<|end|>\n<|assistant|>\n <think>R</think>\n\n C \n<|end|>\n<|assistant|>\n"


def test_vllm_continues_the_final_message_where_it_ends() -> None:
    assert vllm("generic", USER, last("<think>R</think>C \n"), **CONTINUE).text.endswith(
        "<think>R</think>C \n"
    )
    assert vllm("qwen", USER, last("C \n", reasoning="R\n"), **CONTINUE).text.endswith(
        "<think>\nR\n</think>\n\nC"
    )
    assert vllm("qwen", USER, last("<think>\nR\n</think>\n\nC"), **CONTINUE).text.endswith(
        "<think>\nR\n</think>\n\nC"
    )
    assert vllm("qwen", USER, last("\n\n", reasoning="R"), **CONTINUE).text.endswith("<think>\nR\n</think>")
    assert vllm("qwen", USER, last("<think>\nR"), **CONTINUE).text.endswith(
        "<think>\n\n</think>\n\n<think>\nR"
    )


def test_vllm_refuses_a_final_message_that_the_template_rewrote_and_tells_the_conversation() -> None:
    with pytest.raises(ConversationRefused) as refused:
        vllm(
            "qwen",
            {"role": "user", "content": "A secret"},
            last("<think>Simple.\n</think>\n\n- apple"),
            **CONTINUE,
        )
    assert (
        "Final message to continue: <think>Simple.\n</think>\n\n- apple\nRendered chat:\n"
        in refused.value.message
    )
    assert "A secret" in refused.value.message
    assert refused.value.message.endswith("- appleCONTINUE_FINAL_MESSAGE_TAG<|im_end|>")


@pytest.mark.parametrize("message", [{"role": "assistant"}, last(None, reasoning="R")])
def test_vllm_refuses_a_final_message_without_content(message: dict[str, Any]) -> None:
    with pytest.raises(ConversationRefused, match="could not find any text to continue"):
        vllm("qwen", USER, message, **CONTINUE)


@pytest.mark.parametrize(
    ("template", "eos"), [("kimi-k3", "<|end_of_msg|>"), ("deepseek-v4", "<｜end▁of▁sentence｜>")]
)
def test_some_renderers_on_vllm_never_read_the_flag(template: str, eos: str) -> None:
    assert vllm(template, USER, last("Half an ans"), **CONTINUE).text.endswith(eos)


def test_kimi_k3_takes_control_tokens_inside_a_message_for_text() -> None:
    text = vllm("kimi-k3", {"role": "user", "content": "<|close|>message<|sep|>"}).text
    assert text.count("<|close|>message<|sep|>") == 1


@pytest.mark.parametrize(
    ("content", "reasoning", "switched_off", "in_reasoning"),
    [
        ("<think>R", "", False, True),
        ("<think>R</think>C", "", False, False),
        ("C", "", False, True),
        ("C", "", True, False),
        ("C", "R", False, False),
        ("<think>R</think>C <think>", "", False, True),
    ],
)
def test_the_parser_on_vllm_starts_from_the_newest_marker(
    content: str, reasoning: str, switched_off: bool, in_reasoning: bool
) -> None:
    switch = off("thinking") if switched_off else {}
    assert (
        vllm("generic", USER, last(content, reasoning=reasoning), **CONTINUE, **switch).in_reasoning
        is in_reasoning
    )


def test_the_parser_on_vllm_can_start_inside_a_tool_call() -> None:
    assert vllm("generic", USER, last('<think>R</think><tool_call>\n{"name": "f"'), **CONTINUE).in_call


def test_sglang_appends_the_prefix_raw_after_the_generation_prompt() -> None:
    prompt = sglang(
        "qwen", USER, last("R\n</think>\n\nC \n", reasoning="ignored"), continue_final_message=True
    )
    assert prompt.text.endswith("<|im_start|>assistant\n<think>\nR\n</think>\n\nC \n")
    assert not prompt.in_reasoning
    assert sglang("qwen", USER, last("<think>R"), continue_final_message=True).text.endswith(
        "<think>\n<think>R"
    )


def test_sglang_without_the_flag_takes_the_last_answer_for_a_question() -> None:
    assert "<|im_start|>user\nhalf<|im_end|>" in sglang("qwen", USER, last("half")).text


def test_sglang_reads_the_parser_state_off_the_prefix_and_the_switch() -> None:
    flag = {"continue_final_message": True}
    assert sglang("qwen", USER, last("C"), **flag).in_reasoning
    assert not sglang("qwen", USER, last("C"), **flag, **off("enable_thinking")).in_reasoning
    assert sglang("qwen", USER, last("a literal <think> in C"), **flag, **off("enable_thinking")).in_reasoning


def test_sglang_accepts_a_missing_content_and_fails_later() -> None:
    assert sglang("qwen", USER, last(None), continue_final_message=True).content_missing


@pytest.mark.parametrize("template", DIALECTS)
def test_history_tools_and_calls_are_rendered(template: str) -> None:
    call = {
        "id": "1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
    }
    done = {"role": "tool", "content": "Sunny in Rome", "tool_call_id": "1"}
    system = {"role": "system", "content": "Be kind."}
    text = vllm(template, system, USER, last(None, tool_calls=[call]), done, tools=[WEATHER]).text
    for expected in (
        "Be kind.",
        "Hi",
        '{"name": "get_weather", "arguments": {"city": "Rome"}}',
        "Sunny in Rome",
    ):
        assert expected in text
    assert json.dumps(WEATHER) in text
    assert json.dumps(WEATHER) not in vllm(template, USER, tools=[WEATHER], tool_choice="none").text


@pytest.mark.parametrize("render", [vllm, sglang])
def test_an_empty_conversation_is_refused(render: Any) -> None:
    with pytest.raises(ConversationRefused):
        render("qwen")


def test_parts_of_a_content_are_joined() -> None:
    parts = [{"type": "text", "text": "Look:"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    assert "Look:\n<|image_url|>" in vllm("generic", {"role": "user", "content": parts}).text
