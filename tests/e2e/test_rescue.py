"""A leg that died is continued: the client reads one whole answer, and leg 2 is asked for as it should be."""

from typing import Any

import pytest

from tests.e2e.asking import QUESTION, asking_usage, body, estimate
from tests.e2e.conftest import Chat, GatewayFor
from tests.e2e.faults import ABORT, CUT, ENGINE_DIED, EOF, ERROR_EVENT, FAULTS, STALL, Fault
from tests.harness.client import Answer, Stream, one_whole_answer
from tests.harness.gateway import Gateway
from tests.harness.shapes import SGLANG, SGLANG_LEG2, VLLM, VLLM_LEG2, Sglang, Vllm, ended, started
from tests.harness.upstream import (
    DONE,
    EVENT_STREAM,
    Gate,
    Headers,
    Pause,
    Reply,
    Send,
    SendRaw,
    Step,
    Upstream,
    event,
)

ENGINES = [(VLLM, VLLM_LEG2), (SGLANG, SGLANG_LEG2)]
REASONING = ["Simple: apple, ", "ban", "ana, 樱桃 🍌.\n"]
CONTENT = ["\n\n- apple 🍎\n", "- ban"]
MORE = ["ana\n", "- cherry 樱桃"]
USAGE = (67, 20, 5)

QUICK = {"STALL_IDLE_TIMEOUT_SECONDS": "0.4"}


def leg2(engine: Vllm | Sglang, pieces: list[Send]) -> Reply:
    return Reply([engine.role(), *pieces, *ended(engine, usage=USAGE)])


def broken(
    gateway: Gateway,
    upstream: Upstream,
    chat: Chat,
    fault: Fault,
    engines: tuple[Any, Any],
    *,
    reasoning: list[str],
    content: list[str],
    then: list[Send],
    asked: dict[str, Any],
    headers: Headers = (),
) -> Stream:
    """A stream whose leg 1 says its pieces and dies, and whose leg 2 says `then` and ends."""
    first, second = engines
    gate = Gate()
    upstream.script(fault.leg(first, started(first, reasoning, content), gate), leg2(second, then))
    stream = chat(gateway, asked, headers)
    gate.wait_reached()
    stream.read_until(started(first, reasoning, content)[-1].data)
    gate.open()
    return stream.read_rest()


@pytest.mark.parametrize("fault", FAULTS, ids=str)
@pytest.mark.parametrize("engines", ENGINES, ids=["vllm", "sglang"])
def test_broken_in_the_content_it_is_continued(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, fault: Fault, engines: tuple[Any, Any]
) -> None:
    one = gateway(**QUICK) if fault.stalls else gateway()
    more = [engines[1].content(piece) for piece in MORE]
    stream = broken(
        one, upstream, chat, fault, engines, reasoning=REASONING, content=CONTENT, then=more, asked=body()
    )
    one_whole_answer(stream, reasoning="".join(REASONING), content="".join(CONTENT + MORE), like=engines[0])
    assert len(upstream.requests) == 2


@pytest.mark.parametrize("fault", FAULTS, ids=str)
@pytest.mark.parametrize("engines", ENGINES, ids=["vllm", "sglang"])
def test_broken_in_the_thinking_it_is_continued(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, fault: Fault, engines: tuple[Any, Any]
) -> None:
    one = gateway(**QUICK) if fault.stalls else gateway()
    first, second = engines
    more = [second.reasoning("more of it"), *(second.content(piece) for piece in CONTENT)]
    stream = broken(
        one, upstream, chat, fault, engines, reasoning=REASONING, content=[], then=more, asked=asking_usage()
    )
    told = "".join([*REASONING, "more of it"])
    answer = one_whole_answer(stream, reasoning=told, content="".join(CONTENT), like=first, usage=True)
    _, completion, reasoning = USAGE
    usage = answer.usage
    if fault is not ABORT:  # which reported counts of its own
        assert usage["completion_tokens"] == completion + estimate("".join(REASONING))
        assert usage["completion_tokens_details"]["reasoning_tokens"] == reasoning + estimate(
            "".join(REASONING)
        )
        assert usage["prompt_tokens"] == USAGE[0] - estimate("".join(REASONING))
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert answer.chunks[-1]["choices"] == []


def test_each_failure_is_recorded_under_its_name(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    quick, slow = gateway(**QUICK), gateway()
    asked = [
        broken(
            quick if fault.stalls else slow,
            upstream,
            chat,
            fault,
            ENGINES[0],
            reasoning=REASONING,
            content=CONTENT,
            then=[VLLM_LEG2.content("x")],
            asked=body(max_tokens=100),
        ).request_id
        for fault in FAULTS
    ]
    spent = estimate("".join(REASONING)) + estimate("".join(CONTENT))
    for fault, request_id in zip(FAULTS, asked, strict=True):
        row = (quick if fault.stalls else slow).event(request_id)
        assert row["failure"] in fault.failures, fault
        told = [row[name] for name in ("case", "decision", "route", "outcome", "reason")]
        assert told == ["content-done", "continue", "chat-continue", "rescued", ""], fault
        assert (row["requested_model"], row["strategy_name"]) == ("any-name", "generic")
        assert (row["reasoning_chars"], row["content_chars"]) == (
            len("".join(REASONING)),
            len("".join(CONTENT)),
        )
        assert row["completion_id"] == VLLM.id
        assert row["leg2_status"] == 200
        assert (row["partial_text"], row["continued_text"]) == ("", "")
        if fault is not ABORT and fault.name != "running-timeout":
            assert row["tokens_recovered"] == spent
            assert (row["budget_before"], row["budget_after"]) == (100, 100 - spent)


def test_a_healthy_stream_leaves_no_row(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    one = gateway()
    upstream.script(Reply([*started(VLLM, [], ["a"]), *ended(VLLM)]))
    healthy = chat(one, body()).read_rest()
    later = broken(
        one,
        upstream,
        chat,
        EOF,
        ENGINES[0],
        reasoning=[],
        content=["a"],
        then=[VLLM_LEG2.content("b")],
        asked=body(),
    )
    one.event(later.request_id)
    assert one.events(healthy.request_id, count=0) == []


# -- what leg 2 is asked ---------------------------------------------------------------------------


def asked_of_leg2(upstream: Upstream) -> dict[str, Any]:
    leg1, second = upstream.wait_for_requests(2)
    assert second.method == "POST"
    assert second.target == leg1.target == "/v1/chat/completions"
    assert second.all("Content-Length") == [str(len(second.body))]
    assert second.all("Accept-Encoding") == ["identity"]
    assert second.header("Content-Type") == "application/json"
    found = second.json()
    assert isinstance(found, dict)
    return found


CLIENT_EXTRAS = {
    "temperature": 0.3,
    "seed": 7,
    "stop": ["###"],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "user": "somebody",
    "unknown_to_us": {"kept": [1, 2.5, None, "é"]},
    "add_generation_prompt": True,
}
R, C = "".join(REASONING), "".join(CONTENT)
FORMS = [
    # model, engine, message for content-done, message for thinking-partial, thinking key
    ("house-model", "", f"<think>{R}</think>{C}", f"<think>{R}", "thinking"),
    ("house-model", "vllm", f"<think>{R}</think>{C}", f"<think>{R}", "thinking"),
    ("qwen3.6-35b", "vllm", {"reasoning": R, "content": C}, f"<think>{R}", "enable_thinking"),
    ("Qwen/Qwen3.6-35B-A3B", "vllm", {"reasoning": R, "content": C}, f"<think>{R}", "enable_thinking"),
    ("qwen3.6-35b", "sglang", f"{R}</think>{C}", R, "enable_thinking"),
    (
        "Kimi-K3",
        "sglang",
        f"<|open|>think<|sep|>{R}<|close|>think<|sep|><|open|>response<|sep|>{C}",
        f"<|open|>think<|sep|>{R}",
        "thinking",
    ),
    ("DeepSeek-V4-Flash", "sglang", f"{R}</think>{C}", R, "thinking"),
    ("GLM-5.3", "", f"<think>{R}</think>{C}", f"<think>{R}", None),
]


@pytest.mark.parametrize("case", ["content-done", "thinking-partial", "no-reasoning"])
@pytest.mark.parametrize(
    "model,engine,done,partial,key", FORMS, ids=[f"{form[0]}-{form[1]}" for form in FORMS]
)
def test_leg_2_is_the_clients_body_with_the_prefix_of_the_strategy(
    gateway: GatewayFor,
    upstream: Upstream,
    chat: Chat,
    model: str,
    engine: str,
    done: Any,
    partial: str,
    key: str,
    case: str,
) -> None:
    one = gateway(CONTINUATION_MODEL=model, CONTINUATION_ENGINE=engine)
    asked = body(**CLIENT_EXTRAS, chat_template_kwargs={"theirs": 1})
    broken(
        one,
        upstream,
        chat,
        CUT,
        ENGINES[0],
        reasoning=[] if case == "no-reasoning" else REASONING,
        content=[] if case == "thinking-partial" else CONTENT,
        then=[VLLM_LEG2.content("x")],
        asked=asked,
    )
    form = {"content-done": done, "thinking-partial": partial, "no-reasoning": C}[case]
    message = {"role": "assistant", **({"content": form} if isinstance(form, str) else form)}
    sent = asked_of_leg2(upstream)
    kwargs = sent.pop("chat_template_kwargs")
    assert sent == {
        **{name: value for name, value in asked.items() if name != "chat_template_kwargs"},
        "messages": [QUESTION, message],
        "continue_final_message": True,
        "add_generation_prompt": False,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if case == "thinking-partial":
        assert kwargs == {"theirs": 1}
    elif key is not None:
        assert kwargs == {"theirs": 1, key: False}


def test_leg_2_adds_no_budget_and_reduces_the_clients(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    one = gateway()
    spent = estimate(R) + estimate(C)
    limits = {"max_tokens": 90, "max_completion_tokens": 80, "min_tokens": spent + 3}
    for given, left in [
        ({}, {}),
        ({"max_tokens": 90}, {"max_tokens": 90 - spent}),
        (limits, {"max_tokens": 90 - spent, "max_completion_tokens": 80 - spent, "min_tokens": 3}),
        ({"min_tokens": 2}, {"min_tokens": 0}),
    ]:
        more = [VLLM_LEG2.content("x")]
        broken(
            one,
            upstream,
            chat,
            EOF,
            ENGINES[0],
            reasoning=REASONING,
            content=CONTENT,
            then=more,
            asked=body(**given),
        )
        sent = asked_of_leg2(upstream)
        names = ("max_tokens", "max_completion_tokens", "min_tokens")
        assert {name: sent[name] for name in names if name in sent} == left


def test_leg_2_is_told_the_exact_budget_where_leg_1_reported_it(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    leg1 = [
        VLLM.role(usage=VLLM.counts(21, 0)),
        VLLM.reasoning("some", usage=VLLM.counts(21, 7, 7)),
        VLLM.content("x", usage=VLLM.counts(21, 11, 7)),
    ]
    upstream.script(Reply(leg1), leg2(VLLM_LEG2, [VLLM_LEG2.content("y", usage=VLLM.counts(40, 1))]))
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = chat(gateway(), body(max_tokens=50, stream_options=options)).read_rest()
    sent = asked_of_leg2(upstream)
    assert sent["max_tokens"] == 39
    assert sent["stream_options"] == options
    answer = Answer.of(stream.body)
    counts = [usage["completion_tokens"] for usage in answer.usages]
    assert counts == sorted(counts)
    last = answer.usages[-1]
    assert (last["prompt_tokens"], last["completion_tokens"], last["total_tokens"]) == (21, 31, 52)
    assert last["completion_tokens_details"]["reasoning_tokens"] == 12


def test_leg_2_carries_the_clients_authorization(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    headers = [
        ("Authorization", "Bearer of-the-client"),
        ("Cookie", "a=1"),
        ("Connection", "X-Mine"),
        ("X-Mine", "s"),
    ]
    broken(
        gateway(),
        upstream,
        chat,
        EOF,
        ENGINES[0],
        reasoning=[],
        content=["a"],
        then=[VLLM_LEG2.content("b")],
        asked=body(),
        headers=headers,
    )
    second = upstream.requests[1]
    assert second.all("Authorization") == ["Bearer of-the-client"]
    assert second.all("X-Mine") == []


def test_leg_2_goes_to_its_own_url_with_its_own_key(
    gateway: GatewayFor, upstream: Upstream, second_upstream: Upstream, chat: Chat
) -> None:
    one = gateway(CONTINUATION_URL=f"{second_upstream.url}/engines", CONTINUATION_API_KEY="of-the-operator")
    upstream.script(Reply(started(VLLM, [], ["a"])))
    second_upstream.script(leg2(VLLM_LEG2, [VLLM_LEG2.content("b")]))
    stream = chat(one, body(), [("Authorization", "Bearer of-the-client")]).read_rest()
    one_whole_answer(stream, reasoning="", content="ab", like=VLLM)
    assert upstream.requests[0].all("Authorization") == ["Bearer of-the-client"]
    (second,) = second_upstream.requests
    assert second.target == "/engines/v1/chat/completions"
    assert second.all("Authorization") == ["Bearer of-the-operator"]
    assert second.all("Host") == [f"127.0.0.1:{second_upstream.port}"]


# -- the seam --------------------------------------------------------------------------------------

SEAMS = [
    ("imple", "mented"),
    ("The", " cat"),
    ("The ", "cat"),
    ("a\n", "\nb"),
    ("渐", "😀"),
    ("very ", "very good"),
]


@pytest.mark.parametrize("before,after", SEAMS)
def test_text_is_joined_as_received(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, before: str, after: str
) -> None:
    more = [VLLM_LEG2.content(after)]
    stream = broken(
        gateway(), upstream, chat, CUT, ENGINES[0], reasoning=[], content=[before], then=more, asked=body()
    )
    one_whole_answer(stream, reasoning="", content=before + after, like=VLLM)


def test_white_space_that_the_template_trimmed_comes_once(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    trims = gateway(CONTINUATION_MODEL="qwen3.6-35b", CONTINUATION_ENGINE="vllm")
    for before, then, whole in [
        ("one\n\n", ["\n", "\ntwo"], "one\n\ntwo"),
        ("one ", [" two"], "one two"),
        ("one", ["\ntwo"], "one\ntwo"),
        ("one\n", ["two"], "one\ntwo"),
    ]:
        more = [VLLM_LEG2.content(piece) for piece in then]
        stream = broken(
            trims, upstream, chat, CUT, ENGINES[0], reasoning=["r"], content=[before], then=more, asked=body()
        )
        one_whole_answer(stream, reasoning="r", content=whole, like=VLLM)


def test_leg_2_that_starts_over_is_swallowed_as_far_as_it_repeats(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    text = "The quick brown fox jumps over the lazy dog, and then it "
    again = [VLLM_LEG2.content(text[at : at + 9]) for at in range(0, len(text), 9)]
    more = [*again, VLLM_LEG2.content("sleeps.")]
    stream = broken(
        gateway(), upstream, chat, CUT, ENGINES[0], reasoning=[], content=[text], then=more, asked=body()
    )
    one_whole_answer(stream, reasoning="", content=f"{text}sleeps.", like=VLLM)


def test_leg_2_under_another_reasoning_name_is_renamed(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    pairs: list[tuple[Any, Any]] = [(VLLM, SGLANG_LEG2), (SGLANG, VLLM_LEG2)]
    for first, second in pairs:
        more = [second.reasoning("it through"), second.content("yes")]
        stream = broken(
            gateway(),
            upstream,
            chat,
            ERROR_EVENT,
            (first, second),
            reasoning=["think "],
            content=[],
            then=more,
            asked=body(),
        )
        one_whole_answer(stream, reasoning="think it through", content="yes", like=first)


def test_content_that_leg_2_files_under_reasoning_is_put_right(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    more = [VLLM_LEG2.reasoning("and "), VLLM_LEG2.reasoning("more")]
    stream = broken(
        gateway(),
        upstream,
        chat,
        CUT,
        ENGINES[0],
        reasoning=["r"],
        content=["text "],
        then=more,
        asked=body(),
    )
    one_whole_answer(stream, reasoning="r", content="text and more", like=VLLM)


def test_a_closing_token_in_the_text_of_leg_2_ends_the_reasoning(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    more = [VLLM_LEG2.reasoning(piece) for piece in ["so be it</thi", "nk>", "\n\nYes."]]
    stream = broken(
        gateway(), upstream, chat, CUT, ENGINES[0], reasoning=["think "], content=[], then=more, asked=body()
    )
    one_whole_answer(stream, reasoning="think so be it", content="\n\nYes.", like=VLLM)


def test_a_stop_string_across_the_seam_ends_the_answer(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    more = [VLLM_LEG2.content(piece) for piece in ["# and", " more"]]
    stream = broken(
        gateway(),
        upstream,
        chat,
        CUT,
        ENGINES[0],
        reasoning=[],
        content=["one ##"],
        then=more,
        asked=body(stop=["###"]),
    )
    answer = Answer.of(stream.body)
    assert (answer.finish_reasons, answer.done, answer.errors) == (["stop"], 1, [])
    assert "and" not in answer.content
    assert answer.content in ("one ", "one ##")  # what was delivered cannot be taken back


def test_odd_first_chunks_of_leg_2_are_no_trouble(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    odd = [
        event({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "y", "choices": []}),
        event({"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": None}]}),
        event({"object": "chat.completion.chunk"}),
        Send(b": comment\n\n"),
        VLLM_LEG2.content("b"),
    ]
    upstream.script(Reply(started(VLLM, [], ["a"])), Reply([*odd, *ended(VLLM_LEG2)]))
    stream = chat(gateway(), body()).read_rest()
    one_whole_answer(stream, reasoning="", content="ab", like=VLLM)


def test_the_fingerprint_is_leg_1s(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    first, second = {"system_fingerprint": "fp-1"}, {"system_fingerprint": "fp-2"}
    leg1 = [VLLM.role(**first), VLLM.content("a", **first)]
    upstream.script(
        Reply(leg1),
        Reply([VLLM_LEG2.role(**second), VLLM_LEG2.content("b", **second), *ended(VLLM_LEG2, usage=USAGE)]),
    )
    answer = Answer.of(chat(gateway(), asking_usage()).read_rest().body)
    assert [chunk.get("system_fingerprint") for chunk in answer.chunks] == ["fp-1"] * len(answer.chunks)


def test_the_finish_reason_is_leg_2s(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    upstream.script(
        Reply(started(VLLM, [], ["a"])),
        Reply([*started(VLLM_LEG2, [], ["b"]), *ended(VLLM_LEG2, "length", USAGE)]),
    )
    stream = chat(gateway(), body()).read_rest()
    one_whole_answer(stream, reasoning="", content="ab", like=VLLM, finish="length")


def test_leg_2_may_call_a_tool(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    call = [VLLM_LEG2.tool(0, "get_weather", "call-1"), VLLM_LEG2.tool(0, arguments='{"city": "Paris"}')]
    upstream.script(
        Reply(started(VLLM, ["I ha"])),
        Reply([VLLM_LEG2.role(), VLLM_LEG2.reasoning("ve a tool"), *call, *ended(VLLM_LEG2, "tool_calls")]),
    )
    stream = chat(gateway(), body()).read_rest()
    answer = one_whole_answer(stream, reasoning="I have a tool", content="", like=VLLM, finish="tool_calls")
    assert [delta["function"].get("name") for delta in answer.tool_deltas] == ["get_weather", None]
    assert "".join(delta["function"]["arguments"] for delta in answer.tool_deltas) == '{"city": "Paris"}'


def test_usage_of_a_request_with_an_image_comes_from_leg_2(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    asked = asking_usage(messages=[{"role": "user", "content": [{"type": "text", "text": "What?"}, image]}])
    upstream.script(
        Reply(started(VLLM, [], ["some text"])),
        Reply([*started(VLLM_LEG2, [], ["b"]), *ended(VLLM_LEG2, usage=(300, 4, 0))]),
    )
    stream = chat(gateway(), asked).read_rest()
    usage = one_whole_answer(stream, reasoning="", content="some textb", like=VLLM, usage=True).usage
    assert usage["prompt_tokens"] == 300 - estimate("some text")
    assert usage["completion_tokens"] == 4 + estimate("some text")


def test_lone_surrogates_in_the_partial_do_no_harm(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    half = Send(VLLM.content("?").data.replace(b'"?"', rb'"\ud83d"'))
    other = Send(VLLM.content("?").data.replace(b'"?"', rb'"\ude00"'))
    upstream.script(
        Reply([VLLM.role(), half, other, VLLM.content("a"), half]), leg2(VLLM_LEG2, [VLLM_LEG2.content("b")])
    )
    stream = chat(gateway(), body()).read_rest()
    assert Answer.of(stream.body).done == 1
    assert asked_of_leg2(upstream)["messages"][-1]["content"] == "😀a"


def test_the_first_leg_is_released_before_the_second_begins(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    gate = Gate()
    upstream.script(
        STALL.leg(VLLM, started(VLLM, [], ["a"]), gate), leg2(VLLM_LEG2, [VLLM_LEG2.content("b")])
    )
    stream = chat(gateway(**QUICK), body())
    gate.wait_reached()
    gate.open()
    stream.read_rest()
    leg1, second = upstream.requests
    assert leg1.connection.wait_closed_by_peer() <= second.at + 0.5
    one_whole_answer(stream, reasoning="", content="ab", like=VLLM)


def at_once(steps: list[Send]) -> Reply:
    """A whole answer in one write, whose connection lives on."""
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(step.data), step.data) for step in steps)
    headers = [*EVENT_STREAM, ("Transfer-Encoding", "chunked")]
    return Reply([SendRaw(chunks + b"0\r\n\r\n")], headers=headers, framing="none")


def test_leg_2_has_a_connection_of_its_own(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    """An engine that is told to stop ends its answers in good order, and just after that their connections."""
    one = gateway()
    told = [*started(VLLM, [], ["a"]), event({"error": ENGINE_DIED}), DONE]
    more = [VLLM_LEG2.role(), VLLM_LEG2.content("b"), *ended(VLLM_LEG2)]
    for _ in range(2):
        upstream.script(at_once(told), at_once(more))
        stream = chat(one, body()).read_rest()
        one_whole_answer(stream, reasoning="", content="ab", like=VLLM)
        leg1, second = upstream.requests
        assert (leg1.connection.peer_closed_at or second.at) >= second.at, "else there was nothing to take"
        assert second.connection.served == 1


def test_leg_2_has_no_idle_stop(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    one = gateway(**QUICK)
    silence: list[Step] = [Pause(0.9), VLLM_LEG2.content("b"), Pause(0.9), *ended(VLLM_LEG2)]
    upstream.script(Reply(started(VLLM, [], ["a"])), Reply([VLLM_LEG2.role(), *silence]))
    stream = chat(one, body()).read_rest()
    one_whole_answer(stream, reasoning="", content="ab", like=VLLM)
    assert len(upstream.requests) == 2
