"""When there is no leg 2, or it fails: the decision table, failed endings, answers that were whole already."""

from typing import Any

import pytest

from tests.e2e.asking import QUESTION, asking_usage, body, estimate
from tests.e2e.conftest import Chat, GatewayFor
from tests.e2e.faults import CUT, ENGINE_DIED, EOF, ERROR_EVENT, Fault
from tests.harness.client import Answer, Stream, one_failed_ending, one_whole_answer, parse_sse
from tests.harness.gateway import Gateway
from tests.harness.shapes import SGLANG, VLLM, VLLM_LEG2, ended, joined, started
from tests.harness.upstream import (
    DONE,
    Close,
    Cut,
    Gate,
    HoldOpen,
    Pause,
    Reply,
    Reset,
    Send,
    Step,
    Upstream,
    event,
    json_reply,
    whole,
)

QUICK = {"STALL_IDLE_TIMEOUT_SECONDS": "0.4"}
TOOL = [VLLM.tool(0, "get_weather", "call-1"), VLLM.tool(0, arguments='{"ci')]


def read(gateway: Gateway, upstream: Upstream, chat: Chat, asked: Any, *replies: Reply) -> Stream:
    upstream.script(*replies)
    return chat(gateway, asked).read_rest()


def told(gateway: Gateway, stream: Stream) -> tuple[str, ...]:
    row = gateway.event(stream.request_id)
    return tuple(row[name] for name in ("failure", "case", "decision", "outcome", "reason"))


# -- no leg 2 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [CUT, EOF], ids=str)
def test_after_a_tool_call_there_is_no_leg_2(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, fault: Fault
) -> None:
    one, gate = gateway(), Gate()
    upstream.script(fault.leg(VLLM, [*started(VLLM, ["hm"]), *TOOL], gate))
    stream = chat(one, body())
    stream.read_until(TOOL[-1].data)
    gate.open()
    codes = {*fault.failures, "tool_call_seen"}
    answer = one_failed_ending(stream.read_rest(), reasoning="hm", code=codes)
    assert len(answer.tool_deltas) == 2
    (failure,) = fault.failures
    assert told(one, stream) == (failure, "tool-call-seen", "refuse", "failed", "tool_call_seen")


@pytest.mark.parametrize(
    "nothing",
    [
        [VLLM.role()],
        [VLLM.role(), VLLM.content("")],
        [event({"choices": []})],
        [SGLANG.role(), SGLANG.delta({})],
    ],
)
def test_with_nothing_to_recover_there_is_no_leg_2(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, nothing: list[Send]
) -> None:
    one = gateway()
    stream = read(one, upstream, chat, body(), Reply(nothing))
    assert stream.body.startswith(joined(nothing))
    assert parse_sse(stream.body)[-1].data["error"]["type"] == "stream_interrupted"
    assert parse_sse(stream.body)[-1].data["error"]["code"] in ("eof", "no_recoverable_content")
    assert b"[DONE]" not in stream.body
    assert told(one, stream) == ("eof", "empty", "refuse", "failed", "no_recoverable_content")


def test_while_it_is_disabled_there_is_no_leg_2(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    one = gateway(CONTINUATION_ENABLED="false", **QUICK)
    stream = read(one, upstream, chat, body(), Reply(started(VLLM, ["hm"], ["a"])))
    one_failed_ending(stream, reasoning="hm", content="a", code={"eof", "continuation_disabled"})
    assert told(one, stream) == ("eof", "content-done", "refuse", "failed", "continuation_disabled")


def test_with_an_estimated_budget_used_up_the_stream_fails(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    one = gateway()
    spent = estimate("some text of it")
    for limit in (spent, spent - 1):
        stream = read(
            one, upstream, chat, body(max_tokens=limit), Reply(started(VLLM, [], ["some text ", "of it"]))
        )
        one_failed_ending(stream, content="some text of it", code={"eof", "budget_exhausted"})
        assert told(one, stream) == ("eof", "content-done", "refuse", "failed", "budget_exhausted")
        row = one.event(stream.request_id)
        assert (row["budget_before"], row["budget_after"]) == (limit, limit - spent)


def test_with_an_exact_budget_used_up_the_answer_is_at_its_limit(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    one = gateway()
    leg1 = [VLLM.role(usage=VLLM.counts(21, 0)), VLLM.content("ab", usage=VLLM.counts(21, 2))]
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = read(one, upstream, chat, body(max_tokens=2, stream_options=options), Reply(leg1))
    answer = Answer.of(stream.body)
    assert (answer.content, answer.finish_reasons, answer.done, answer.errors) == ("ab", ["length"], 1, [])
    assert answer.ids == {VLLM.id}
    last = answer.chunks[-1]
    assert last["choices"] == []
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == (21, 2)
    assert told(one, stream) == ("eof", "content-done", "complete", "completed", "budget_exhausted")


@pytest.mark.parametrize("code", [400, "404", 422])
def test_an_error_that_is_the_clients_own_is_handed_on(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, code: Any
) -> None:
    one = gateway()
    error = event({"error": {"message": "too long", "type": "BadRequestError", "param": None, "code": code}})
    leg1 = started(VLLM, [], ["a"])
    stream = read(one, upstream, chat, body(), Reply([*leg1, error, DONE]))
    one_failed_ending(stream, content="a")
    assert stream.body == joined([*leg1, error])
    assert told(one, stream) == ("error_event", "content-done", "refuse", "failed", "client_error")


@pytest.mark.parametrize("code", [408, 409, 425, 429, 500, 503, None, "internal"])
def test_any_other_error_is_continued(gateway: GatewayFor, upstream: Upstream, chat: Chat, code: Any) -> None:
    error = event({"error": {"message": "busy", "code": code}})
    legs = (
        Reply([*started(VLLM, [], ["a"]), error, DONE]),
        Reply([*started(VLLM_LEG2, [], ["b"]), *ended(VLLM_LEG2)]),
    )
    one_whole_answer(read(gateway(), upstream, chat, body(), *legs), reasoning="", content="ab", like=VLLM)


def test_an_engines_error_that_is_not_continued_is_handed_on(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    """After a tool call, say: the held event comes in place of the gateway's own."""
    leg1 = [*started(VLLM), *TOOL]
    error = event({"error": ENGINE_DIED})
    stream = read(gateway(), upstream, chat, body(), Reply([*leg1, error, DONE]))
    assert stream.body == joined([*leg1, error])
    assert one_failed_ending(stream).errors == [ENGINE_DIED]


def test_an_event_error_without_an_error_key_reaches_the_client_as_one(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    leg1 = [*started(VLLM), *TOOL]
    error = Send(b'event: error\ndata: {"message": "out of memory"}\n\n')
    stream = read(gateway(), upstream, chat, body(), Reply([*leg1, error]))
    answer = one_failed_ending(stream)
    assert "out of memory" in str(answer.errors[0])


@pytest.mark.parametrize("end", [[VLLM.finish("abort"), DONE], [VLLM.finish("error"), DONE]])
def test_an_abort_that_is_not_continued_never_looks_finished(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, end: list[Send]
) -> None:
    stream = read(gateway(), upstream, chat, body(), Reply([*started(VLLM), *TOOL, *end]))
    one_failed_ending(stream, code={"aborted", "tool_call_seen"})


def test_a_malformed_event_that_is_not_continued_is_not_shown(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    stream = read(gateway(), upstream, chat, body(), Reply([*started(VLLM), *TOOL, Send(b"data: {half\n\n")]))
    one_failed_ending(stream, code={"malformed", "tool_call_seen"})
    assert b"{half" not in stream.body


# -- before the first event --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "steps", [[], [DONE], [Cut()], [Reset()], [Send(b": ping\n\n")], [Send(b'data: {"id"'), Cut()]]
)
def test_a_stream_that_ends_before_its_first_event_fails(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, steps: list[Step]
) -> None:
    one, gate = gateway(), Gate()
    upstream.script(Reply([Pause(gate), *steps]))
    stream = chat(one, body()).read_head()
    gate.open()
    one_failed_ending(
        stream.read_rest(), code={"eof", "disconnect", "before_first_event", "no_recoverable_content"}
    )
    row = one.event(stream.request_id)
    assert (row["decision"], row["outcome"], row["case"]) == ("refuse", "failed", "empty")


def test_an_error_as_the_first_event_is_handed_on(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    error = event({"error": ENGINE_DIED})
    stream = read(gateway(), upstream, chat, body(), Reply([error, DONE]))
    assert stream.body == error.data
    one_failed_ending(stream)


# -- finished, and then the ending was lost ----------------------------------------------------------

LOST: list[list[Step]] = [[], [Cut()], [Send(b'data: {"id": "half'), Cut()], [HoldOpen()]]


@pytest.mark.parametrize("lost", [LOST[0], LOST[1], LOST[2]], ids=["eof", "cut", "cut-inside-an-event"])
@pytest.mark.parametrize("ask", [False, True], ids=["plain", "usage"])
def test_an_ending_lost_after_the_finish_is_added(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, lost: list[Step], ask: bool
) -> None:
    one, gate = gateway(), Gate()
    upstream.script(Reply([*started(VLLM, ["hm, "], ["yes"]), VLLM.finish(), Pause(gate), *lost]))
    stream = chat(one, asking_usage() if ask else body())
    stream.read_until(VLLM.finish().data)
    gate.open()
    answer = one_whole_answer(stream.read_rest(), reasoning="hm, ", content="yes", like=VLLM, usage=ask)
    if ask:
        spent = estimate("hm, ") + estimate("yes")
        assert answer.usage["completion_tokens"] == spent
        assert answer.usage["prompt_tokens"] == estimate(QUESTION["content"])
        assert answer.usage["total_tokens"] == spent + estimate(QUESTION["content"])
    row = one.event(stream.request_id)
    assert (row["decision"], row["outcome"]) == ("complete", "completed")


def test_only_the_done_is_added_where_the_usage_came(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    leg1 = [*started(VLLM, [], ["yes"]), VLLM.finish(), VLLM.usage(21, 2)]
    stream = read(gateway(), upstream, chat, asking_usage(), Reply(leg1))
    assert stream.body == joined([*leg1, DONE])


def test_a_last_event_without_its_blank_line_counts(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    leg1 = started(VLLM, [], ["yes"])
    for missing in (1, 2):
        bare = Send(VLLM.finish().data[:-missing])
        stream = read(gateway(), upstream, chat, body(), Reply([*leg1, bare]))
        one_whole_answer(stream, reasoning="", content="yes", like=VLLM)


@pytest.mark.parametrize(
    "last", [b"data", b"data:", b"data: ", b"event: message\ndata", b"id: 4", b"event: error", b": pi"]
)
def test_a_beginning_of_an_event_is_not_shown(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, last: bytes
) -> None:
    legs = (
        Reply([*started(VLLM, [], ["a"]), Send(last), Cut()]),
        Reply([*started(VLLM_LEG2, [], ["b"]), *ended(VLLM_LEG2)]),
    )
    stream = read(gateway(), upstream, chat, body(), *legs)
    one_whole_answer(stream, reasoning="", content="ab", like=VLLM)


SILENT: dict[str, list[Step]] = {
    "silence": [HoldOpen()],
    "pings": [step for _ in range(200) for step in (Send(b": ping\n\n"), Pause(0.05))],
    "empty-deltas": [step for _ in range(200) for step in (VLLM.delta({"content": ""}), Pause(0.05))],
}


@pytest.mark.parametrize("silence", SILENT.values(), ids=SILENT)
@pytest.mark.parametrize("enabled", ["true", "false"])
@pytest.mark.parametrize("calls", [False, True], ids=["text", "tool-calls"])
def test_silence_after_the_finish_ends_the_answer_and_releases_downstream(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, silence: list[Step], enabled: str, calls: bool
) -> None:
    one = gateway(CONTINUATION_ENABLED=enabled, **QUICK)
    said = [
        *started(VLLM, [], ["yes"]),
        *(TOOL if calls else []),
        VLLM.finish("tool_calls" if calls else "stop"),
    ]
    stream = read(one, upstream, chat, asking_usage(), Reply([*said, *silence]))
    answer = Answer.of(stream.body)
    assert stream.body.startswith(joined(said))
    assert (stream.complete, answer.done, len(answer.usages), answer.errors) == (True, 1, 1, [])
    upstream.wait_until_idle(2)
    assert told(one, stream)[::3] == ("idle_timeout", "completed")


@pytest.mark.parametrize("silence", SILENT.values(), ids=SILENT)
def test_silence_after_the_finish_of_leg_2_ends_the_answer_and_releases_it(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, silence: list[Step]
) -> None:
    one = gateway(**QUICK)
    leg2 = Reply([*started(VLLM_LEG2, [], ["b"]), VLLM_LEG2.finish(), *silence])
    stream = read(one, upstream, chat, asking_usage(), Reply(started(VLLM, [], ["a"])), leg2)
    one_whole_answer(stream, reasoning="", content="ab", like=VLLM, usage=True)
    upstream.wait_until_idle(2)
    assert told(one, stream)[3] == "rescued"


@pytest.mark.parametrize("end", [[], [Cut()], [Reset()]], ids=["eof", "cut", "reset"])
def test_usage_in_the_chunk_of_a_finish_whose_ending_is_lost_is_told_once(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, end: list[Step]
) -> None:
    gate = Gate()
    said = [*started(VLLM, [], ["yes"]), VLLM.finish(usage=VLLM.counts(21, 2))]
    upstream.script(Reply([*said, Pause(gate), *end]))
    stream = chat(gateway(), asking_usage())
    stream.read_until(said[-1].data)
    gate.open()
    assert stream.read_rest().body == joined([*said, DONE])


def test_an_error_after_the_finish_leaves_the_answer_whole(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    leg1 = [*started(VLLM, [], ["yes"]), VLLM.finish()]
    stream = read(gateway(), upstream, chat, body(), Reply([*leg1, event({"error": ENGINE_DIED}), DONE]))
    one_whole_answer(stream, reasoning="", content="yes", like=VLLM)


def test_after_done_the_client_is_let_go_at_once(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    one = gateway(**QUICK)
    upstream.script(Reply([*started(VLLM, [], ["yes"]), *ended(VLLM), HoldOpen()]))
    stream = chat(one, body()).read_rest()
    one_whole_answer(stream, reasoning="", content="yes", like=VLLM)
    upstream.wait_until_idle(2)
    assert one.events(stream.request_id, count=0) == []


def test_what_comes_after_done_is_not_shown(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    steps = [*started(VLLM, [], ["yes"]), *ended(VLLM)]
    upstream.script(Reply([*steps, VLLM.content("ghost"), DONE]))
    stream = chat(gateway(), body()).read_rest()
    one_whole_answer(stream, reasoning="", content="yes", like=VLLM)


def test_a_tool_call_that_finished_is_whole(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    steps = [*started(VLLM), *TOOL, *ended(VLLM, "tool_calls")]
    stream = read(gateway(), upstream, chat, body(), Reply(steps))
    assert stream.body == joined(steps)


def test_usage_on_every_chunk_ends_nothing(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    counted = [VLLM.content(str(n), usage=VLLM.counts(21, n + 1)) for n in range(10)]
    steps = [VLLM.role(), *counted, *ended(VLLM, usage=(21, 10, 0))]
    stream = read(gateway(), upstream, chat, asking_usage(), Reply(steps))
    assert stream.body == joined(steps)


# -- leg 2 fails -------------------------------------------------------------------------------------

CONVERSATION = "Rendered chat: <|im_start|>user List three fruits. SECRET of the client"
REFUSAL = f"the final message does not appear in the chat.Final message to continue: a\n{CONVERSATION}"


@pytest.mark.parametrize(
    "refusal",
    [
        json_reply(
            {"error": {"message": REFUSAL, "type": "BadRequestError", "code": 400}}, "400 Bad Request"
        ),
        json_reply(
            {"object": "error", "message": REFUSAL, "type": "BadRequest", "code": 400}, "400 Bad Request"
        ),
        json_reply({"detail": CONVERSATION}, "404 Not Found"),
        whole(CONVERSATION.encode() * 1000, "500 Oops", [("Content-Type", "text/html")]),
        whole(CONVERSATION.encode(), "200 OK", [("Content-Type", "text/html")]),
        json_reply({"object": "chat.completion", "choices": [{"message": {"content": CONVERSATION}}]}),
        whole(b"", "307 Temporary Redirect", [("Location", "http://127.0.0.1:9/SECRET")]),
    ],
    ids=["vllm", "sglang", "detail", "html-500", "html-200", "no-stream", "redirect"],
)
def test_a_refused_leg_2_fails_and_leaks_nothing(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, refusal: Reply
) -> None:
    one = gateway()
    stream = read(one, upstream, chat, body(), Reply(started(VLLM, ["r"], ["a"])), refusal)
    answer = one_failed_ending(
        stream, reasoning="r", content="a", code={"eof", "leg2_refused", "leg2_broken", "leg2_empty"}
    )
    assert "SECRET" not in str(stream.body)
    assert "final message" not in str(answer.errors)
    assert len(upstream.requests) == 2
    row = one.event(stream.request_id)
    assert (row["failure"], row["decision"], row["outcome"]) == ("eof", "continue", "failed")
    assert row["leg2_status"] == int(refusal.status[:3])
    assert "SECRET" not in str(row)
    assert "fruits" not in str(row)
    assert len(row["leg2_message"]) <= 200
    assert "SECRET" not in one.log


def test_the_reason_of_a_refusal_is_recorded(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    one = gateway()
    refusal = json_reply({"error": {"message": "The server is overloaded.\nMore", "code": 503}}, "503 Away")
    stream = read(one, upstream, chat, body(), Reply(started(VLLM, [], ["a"])), refusal)
    row = one.event(stream.request_id)
    assert (row["reason"], row["leg2_status"], row["leg2_message"]) == (
        "leg2_refused",
        503,
        "The server is overloaded.",
    )


def test_an_unreachable_leg_2_fails(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, refusing_url: str
) -> None:
    one = gateway(CONTINUATION_URL=refusing_url)
    stream = read(one, upstream, chat, body(), Reply(started(VLLM, [], ["a"])))
    one_failed_ending(stream, content="a", code={"eof", "leg2_unreachable"})
    assert told(one, stream)[2:] == ("continue", "failed", "leg2_unreachable")
    assert one.event(stream.request_id)["leg2_status"] is None


def test_a_leg_2_that_takes_no_connection_fails(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, unanswering_url: str
) -> None:
    one = gateway(CONTINUATION_URL=unanswering_url, CONNECT_TIMEOUT_SECONDS="0.3")
    stream = read(one, upstream, chat, body(), Reply(started(VLLM, [], ["a"])))
    one_failed_ending(stream, content="a", code={"eof", "leg2_unreachable"})
    assert told(one, stream)[2:] == ("continue", "failed", "leg2_unreachable")


BROKEN_LEG2: list[tuple[str, list[Step]]] = [
    ("eof", []),
    ("cut", [Cut()]),
    ("done", [DONE]),
    ("error", [event({"error": ENGINE_DIED}), DONE]),
    ("abort", [VLLM_LEG2.finish("abort"), DONE]),
    ("malformed", [Send(b"data: {half\n\n")]),
    ("cut-inside-an-event", [Send(VLLM_LEG2.content("unseen").data[:-30]), Cut()]),
]


@pytest.mark.parametrize("steps", [steps for _, steps in BROKEN_LEG2], ids=[name for name, _ in BROKEN_LEG2])
@pytest.mark.parametrize("fault", [EOF, ERROR_EVENT], ids=str)
def test_a_leg_2_that_breaks_fails_and_there_is_no_third(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, fault: Fault, steps: list[Step]
) -> None:
    one, gate = gateway(), Gate()
    leg2 = Reply([*started(VLLM_LEG2, [], ["b", "c"]), Pause(gate), *steps])
    upstream.script(fault.leg(VLLM, started(VLLM, [], ["a"])), leg2)
    stream = chat(one, asking_usage())
    stream.read_until('"c"')
    gate.open()
    answer = one_failed_ending(stream.read_rest(), content="abc")
    assert len(upstream.requests) == 2
    assert (answer.ids, answer.usages) == ({VLLM.id}, [])
    assert told(one, stream)[2:] == ("continue", "failed", "leg2_broken")


@pytest.mark.parametrize("usage", [None, (30, 0, 0), (30, 1, 0)])
def test_a_leg_2_that_stops_at_once_says_so_in_one_way(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, usage: Any
) -> None:
    """The model had said all, or the engine closed the turn: one request, one ending."""
    one = gateway()
    legs = Reply(started(VLLM, [], ["a"])), Reply([VLLM_LEG2.role(), *ended(VLLM_LEG2, usage=usage)])
    stream = read(one, upstream, chat, body(), *legs)
    answer = Answer.of(stream.body)
    assert stream.complete
    assert len(upstream.requests) == 2
    assert answer.content == "a"
    assert (len(answer.errors), len(answer.finish_reasons), answer.done) in [(1, 0, 0), (0, 1, 1)]
    row = one.event(stream.request_id)
    assert row["outcome"] == ("failed" if answer.errors else "rescued")


def test_a_leg_2_that_starts_over_and_departs_fails(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    one = gateway()
    text = "The quick brown fox jumps over the lazy dog, and then it sleeps in the sun."
    other = [VLLM_LEG2.content(text[:50]), VLLM_LEG2.content(" or maybe not at all.")]
    legs = Reply(started(VLLM, [], [text])), Reply([VLLM_LEG2.role(), *other, *ended(VLLM_LEG2)])
    stream = read(one, upstream, chat, body(), *legs)
    one_failed_ending(stream, content=text, code={"eof", "leg2_restarted", "leg2_broken"})
    assert told(one, stream)[2:] == ("continue", "failed", "leg2_restarted")


def test_done_in_leg_1_does_not_end_leg_2(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    one, gate = gateway(), Gate()
    upstream.script(
        Reply([*started(VLLM, [], ["a"]), DONE]), Reply([*started(VLLM_LEG2, [], ["b"]), Pause(gate), Cut()])
    )
    stream = chat(one, body())
    stream.read_until('"b"')
    gate.open()
    one_failed_ending(stream.read_rest(), content="ab", code={"eof", "leg2_broken", "disconnect"})


def test_an_ending_of_leg_2_lost_after_its_finish_is_added(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    legs = Reply(started(VLLM, [], ["some"])), Reply([*started(VLLM_LEG2, [], [" text"]), VLLM_LEG2.finish()])
    answer = one_whole_answer(
        read(gateway(), upstream, chat, asking_usage(), *legs),
        reasoning="",
        content="some text",
        like=VLLM,
        usage=True,
    )
    assert answer.usage["completion_tokens"] in (estimate("some text"), estimate("some") + estimate(" text"))


# -- silence -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name,settings,said",
    [
        ("tool call", {}, [*started(VLLM, ["hm"]), *TOOL]),
        ("empty", {}, [VLLM.role()]),
        ("disabled", {"CONTINUATION_ENABLED": "false"}, started(VLLM, [], ["a"])),
    ],
    ids=["tool-call", "empty", "disabled"],
)
def test_there_is_no_idle_stop_where_there_could_be_no_leg_2(
    gateway: GatewayFor,
    upstream: Upstream,
    chat: Chat,
    name: str,
    settings: dict[str, str],
    said: list[Send],
) -> None:
    one = gateway(**QUICK, **settings)
    rest = [VLLM.content("and on"), *ended(VLLM)] if name != "tool call" else ended(VLLM, "tool_calls")
    upstream.script(Reply([*said, Pause(1.0), *rest]))
    stream = chat(one, body()).read_rest()
    assert stream.body == joined([*said, *rest])
    assert stream.complete


def test_the_first_event_may_be_waited_for(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    steps = [*started(VLLM, [], ["a"]), *ended(VLLM)]
    upstream.script(Reply([Pause(0.7), *steps], before=[Pause(0.7)]))
    stream = chat(gateway(**QUICK), body()).read_rest()
    assert stream.body == joined(steps)


def test_a_slow_but_living_stream_is_left_alone(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    slow = [step for n in range(8) for step in (Pause(0.2), VLLM.content(str(n)))]
    upstream.script(Reply([*started(VLLM, [], ["a"]), *slow, *ended(VLLM)]))
    stream = chat(gateway(**QUICK), body()).read_rest()
    one_whole_answer(stream, reasoning="", content="a01234567", like=VLLM)
    assert len(upstream.requests) == 1


def test_silence_after_the_finish_is_no_stall(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    """The answer is whole; its usage may take its time."""
    one = gateway(**QUICK)
    upstream.script(
        Reply([*started(VLLM, [], ["a"]), VLLM.finish(), Pause(0.2), VLLM.usage(21, 2), DONE, Close()])
    )
    stream = chat(one, asking_usage()).read_rest()
    one_whole_answer(stream, reasoning="", content="a", like=VLLM, usage=True)
    assert len(upstream.requests) == 1


def test_a_stall_is_found_in_its_time(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    upstream.script(
        Reply([*started(VLLM, [], ["a"]), HoldOpen()]),
        Reply([*started(VLLM_LEG2, [], ["b"]), *ended(VLLM_LEG2)]),
    )
    stream = chat(gateway(**QUICK), body()).read_rest()
    leg1, leg2 = upstream.requests
    assert 0.35 <= leg2.at - leg1.at <= 2.5
    one_whole_answer(stream, reasoning="", content="ab", like=VLLM)


def test_comments_come_through(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    steps = [VLLM.role(), Send(b": WORKING\n\n"), VLLM.content("a"), Send(b":\n\n"), *ended(VLLM)]
    stream = read(gateway(), upstream, chat, body(), Reply(steps))
    assert Answer.of(stream.body).comments == ["WORKING", ""]
    assert stream.body == joined(steps)


def test_odd_line_ends_and_a_bom_are_read(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    """CRLF, CR, `data:` without its space, one event over two data lines, a BOM cut in two, then a cut."""
    role, first = VLLM.role().data, VLLM.content("渐😀").data.replace(b"\n", b"\r")
    second = VLLM.content("b").data.replace(b"data: ", b"data:").replace(b'"choices"', b'\ndata: "choices"')
    odd = [Send(b"\xef\xbb"), Send(b"\xbf"), *_cut_up(role.replace(b"\n", b"\r\n") + first + second, 7)]
    legs = Reply(odd), Reply([*started(VLLM_LEG2, [], ["c"]), *ended(VLLM_LEG2)])
    stream = read(gateway(), upstream, chat, body(), *legs)
    assert not stream.body.startswith(b"\xef\xbb\xbf")
    one_whole_answer(stream, reasoning="", content="渐😀bc", like=VLLM)


def _cut_up(data: bytes, size: int) -> list[Send]:
    return [Send(data[at : at + size]) for at in range(0, len(data), size)]
