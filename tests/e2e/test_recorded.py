"""Streams recorded from real engines, whole and killed, replayed through the gateway."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Chat, GatewayFor
from tests.harness.client import Answer, one_failed_ending, parse_sse
from tests.harness.shapes import SGLANG_LEG2, VLLM_LEG2, Sglang, Vllm, ended, started
from tests.harness.upstream import Cut, Headers, Reply, Request, Send, SendRaw, Step, Upstream

RECORDED = Path(__file__).resolve().parents[1] / "data" / "transcripts"
VLLM_WHOLE = [
    "chat_usage",
    "chat_reasoning",
    "chat_continuous_usage",
    "tools_one",
    "tools_two",
    "length",
    "logprobs",
    "stop_string",
]
SGLANG_WHOLE = ["chat_basic", "chat_cont_usage", "badmodel"]
VLLM_KILLED = {
    "kill_api_SIGKILL": "disconnect",
    "kill_api_SIGTERM": "error_event",
    "kill_engine_SIGKILL": "error_event",
    "kill_engine_SIGTERM": "aborted",
    "kill_worker_SIGKILL": "error_event",
}
SGLANG_KILLED = {
    "kill_abort": "aborted",
    "kill_pause_abort": "aborted",
    "kill_running_timeout": "error_event",
    "kill_sigkill_main": "disconnect",
    "kill_sigkill_sched": "disconnect",
}
FRUITS = {"role": "user", "content": "List three fruits."}
ASKED = {
    "model": "tiny-qwen3",
    "messages": [FRUITS],
    "stream": True,
    "stream_options": {"include_usage": True},
}


@dataclass(frozen=True, slots=True)
class Recording:
    status: str
    headers: Headers
    body: bytes


def recording(path: Path) -> Recording:
    head, _blank, body = path.read_bytes().partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = [line.partition(": ") for line in lines]
    return Recording(first.partition(" ")[2], [(name, value) for name, _colon, value in pairs], body)


def pieces(body: bytes, size: int = 997) -> list[Step]:
    """Boundaries that have nothing to do with those of events or characters."""
    return [Send(body[at : at + size]) for at in range(0, len(body), size)]


def replay(of: Recording) -> Reply:
    own = {"transfer-encoding", "content-length"}
    headers = [(name, value) for name, value in of.headers if name.lower() not in own]
    chunked = "transfer-encoding" in {name.lower() for name, _value in of.headers}
    framing: Any = "chunked" if chunked else "length"
    return Reply(pieces(of.body), of.status, headers, framing, len(of.body))


def texts(body: bytes) -> tuple[str, str]:
    """Reasoning and content of all events of a recorded body, also of a last one that lacks its blank line alone."""
    events, end, last = body.rpartition(b"\n\n")
    complete = events + end + (last.rstrip() + b"\n\n" if _is_whole(last) else b"")
    deltas = [
        choice["delta"]
        for block in parse_sse(complete)
        if isinstance(block.data, dict)
        for choice in block.data.get("choices") or []
    ]
    reasoning = "".join(d.get("reasoning") or d.get("reasoning_content") or "" for d in deltas)
    return reasoning, "".join(d.get("content") or "" for d in deltas)


def _is_whole(event: bytes) -> bool:
    try:
        return isinstance(json.loads(event.removeprefix(b"data: ")), dict)
    except ValueError:
        return False


def unchunked(body: bytes) -> bytes:
    out = b""
    while body:
        size, _crlf, body = body.partition(b"\r\n")
        out += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
    return out


@pytest.mark.parametrize("name", VLLM_WHOLE)
def test_a_whole_stream_of_vllm_arrives_as_it_was(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, name: str
) -> None:
    recorded = recording(RECORDED / "vllm" / f"{name}.http")
    upstream.script(replay(recorded))
    stream = chat(gateway(), (RECORDED / "vllm" / f"{name}.request.json").read_bytes()).read_rest()
    assert stream.all("X-Continuation") == ["guarded"]
    assert stream.body == recorded.body
    assert stream.complete


@pytest.mark.parametrize("name", SGLANG_WHOLE)
def test_a_whole_stream_of_sglang_arrives_as_it_was(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, name: str
) -> None:
    body = (RECORDED / "sglang" / f"{name}.sse").read_bytes()
    upstream.script(Reply(pieces(body)))
    stream = chat(gateway(), (RECORDED / "sglang" / f"{name}.req.json").read_bytes()).read_rest()
    assert stream.all("X-Continuation") == ["guarded"]
    assert stream.body == body
    assert stream.complete


def test_a_stream_with_token_ids_arrives_as_it_was(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    body = (RECORDED / "vllm" / "rg0_original_with_token_ids.sse").read_bytes()
    upstream.script(Reply(pieces(body)))
    asked = (RECORDED / "vllm" / "rg0_original_with_token_ids.request.json").read_bytes()
    assert chat(gateway(), asked).read_rest().body == body


@pytest.mark.parametrize(
    "name",
    [
        "n2",
        "continue_400_think",
        "continue_ok_structured",
        "continue_ok_open_think",
        "err_bad_model",
        "err_bad_json",
        "err_bad_type",
        "err_too_long",
        "method_not_allowed",
    ],
)
def test_what_is_no_guarded_stream_arrives_as_it_was(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, name: str
) -> None:
    recorded = recording(RECORDED / "vllm" / f"{name}.http")
    upstream.script(replay(recorded))
    stream = chat(gateway(), (RECORDED / "vllm" / f"{name}.request.json").read_bytes()).read_rest()
    assert f"{stream.status} {stream.reason}" == recorded.status
    assert stream.body == recorded.body
    kinds = [value for header, value in recorded.headers if header == "content-type"]
    assert stream.all("Content-Type") == kinds


def _is_continued(
    gateway: GatewayFor,
    upstream: Upstream,
    chat: Chat,
    leg1: Reply,
    told: tuple[str, str],
    failure: str,
    second: Vllm | Sglang,
    engine: str,
) -> None:
    one = gateway(CONTINUATION_MODEL="qwen3.6-tiny", CONTINUATION_ENGINE=engine)
    leg2 = [*started(second, [], ["; and ", "so it ends."]), *ended(second, usage=(80, 7, 0))]
    upstream.script(leg1, Reply(leg2))
    stream = chat(one, ASKED).read_rest()
    answer = Answer.of(stream.body)
    assert stream.complete
    assert (answer.reasoning, answer.content) == (told[0], f"{told[1]}; and so it ends.")
    assert (answer.roles, answer.finish_reasons, answer.done, answer.errors) == (1, ["stop"], 1, [])
    assert len(answer.ids) == len(answer.created) == len(answer.models) == 1
    assert second.id not in answer.ids
    assert answer.usage["completion_tokens"] > 7
    row = one.event(stream.request_id)
    assert (row["failure"], row["case"], row["outcome"]) == (failure, "content-done", "rescued")


@pytest.mark.parametrize("name,failure", VLLM_KILLED.items())
def test_a_killed_stream_of_vllm_is_continued(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, name: str, failure: str
) -> None:
    """The bytes that came off the socket, chunked framing included."""
    recorded = recording(RECORDED / "vllm" / f"{name}.rawhttp")
    leg1 = Reply([SendRaw(recorded.body), Cut()], recorded.status, recorded.headers, "none")
    told = texts(unchunked(recorded.body))
    _is_continued(gateway, upstream, chat, leg1, told, failure, VLLM_LEG2, "vllm")


@pytest.mark.parametrize("name,failure", SGLANG_KILLED.items())
def test_a_killed_stream_of_sglang_is_continued(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, name: str, failure: str
) -> None:
    body = (RECORDED / "sglang" / f"{name}.sse").read_bytes()
    end: list[Step] = [Cut()] if failure == "disconnect" else []
    leg1 = Reply([*pieces(body), *end])
    _is_continued(gateway, upstream, chat, leg1, texts(body), failure, SGLANG_LEG2, "sglang")


# -- cut anywhere ------------------------------------------------------------------------------------


def _remainder(request: Request, reasoning: str, content: str, engine: Vllm | Sglang) -> Reply:
    """An engine that goes on exactly where the generic prefix stops."""
    prefix = request.json()["messages"][-1]["content"]
    thought, closed, said = prefix.removeprefix("<think>").partition("</think>")
    assert reasoning.startswith(thought), prefix
    assert content.startswith(said), prefix
    more = [] if closed else [engine.reasoning(reasoning[len(thought) :])]
    rest = [step for step in [*more, engine.content(content[len(said) :])] if b'""' not in step.data]
    return Reply([engine.role(), *rest, *ended(engine, usage=(80, 7, 2))])


def _offsets(body: bytes, count: int) -> Iterator[int]:
    """Spread out, and off by one around the ends of some events."""
    ends = [at for at in range(len(body)) if body[at - 2 : at] == b"\n\n"]
    yield from range(0, len(body), max(1, len(body) // count))
    for end in ends[:: max(1, len(ends) // 10)]:
        yield from (end - 2, end - 1, end)


@pytest.mark.parametrize("name", ["vllm/chat_usage", "vllm/chat_reasoning", "sglang/chat_basic"])
def test_a_recorded_stream_that_is_cut_anywhere_reads_the_same(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, name: str
) -> None:
    path = next(RECORDED.glob(f"{name}.[hs]*"))
    body = recording(path).body if path.suffix == ".http" else path.read_bytes()
    reasoning, content = texts(body)
    whole = Answer.of(body)
    second = VLLM_LEG2 if name.startswith("vllm") else SGLANG_LEG2
    one = gateway()
    asked = json.loads(next(RECORDED.glob(f"{name}.req*")).read_bytes()) | {"max_tokens": 1000}
    endings = set()
    for at in _offsets(body, 50):
        upstream.script(
            Reply([*pieces(body[:at]), Cut()]),
            lambda request: _remainder(request, reasoning, content, second),
        )
        stream = chat(one, asked).read_rest()
        told = texts(body[:at])
        nothing_left = told == (reasoning, "") and not content and len(upstream.requests) == 2
        if told == ("", "") or nothing_left:  # a thinking that just ends has not been continued
            one_failed_ending(stream, reasoning=told[0])
            endings.add("failed")
            continue
        answer = Answer.of(stream.body)
        assert (answer.reasoning, answer.content) == (reasoning, content), at
        assert (answer.roles, answer.done, answer.errors, len(answer.finish_reasons)) == (1, 1, [], 1), at
        assert (answer.ids, answer.created) == (whole.ids, whole.created), at
        assert len(answer.usages) == len(whole.usages), at
        endings.add("whole" if len(upstream.requests) == 1 else "continued")
    assert endings == {"failed", "continued", "whole"}


def test_the_recordings_are_all_used() -> None:
    """A recording that no test replays would prove nothing."""
    named = {*VLLM_KILLED, *SGLANG_KILLED, *VLLM_WHOLE, *SGLANG_WHOLE, "n2", "rg0_original_with_token_ids"}
    files = [path.name.partition(".")[0] for path in RECORDED.glob("*/*")]
    assert {name for name in files if not name.startswith(("err_", "continue_", "method_"))} == named
