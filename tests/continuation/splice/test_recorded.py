"""Recorded streams of real engines: cut in and around every event, cut into any reads, killed in every way."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from continuation.splice.course import Phase
from continuation.vocabulary import Failure
from tests.continuation.splice.playbook import DONE, Play, Told, chunk, content, told
from tests.continuation.splice.recorded import Recorded, recorded, rest_of

ASKS = {"stream_options": {"include_usage": True}}
WHOLE = [
    recorded(name)
    for name in (
        "vllm/chat_reasoning.http",
        "vllm/chat_usage.http",
        "vllm/chat_continuous_usage.http",
        "vllm/logprobs.http",
        "vllm/length.http",
        "vllm/stop_string.http",
        "vllm/tools_one.http",
        "vllm/tools_two.http",
        "vllm/rg0_original_with_token_ids.sse",
        "sglang/chat_basic.sse",
        "sglang/chat_cont_usage.sse",
        "sglang/badmodel.sse",
    )
]
KILLED = {
    "vllm/kill_api_SIGKILL.rawhttp": (Failure.DISCONNECT, "disconnect"),
    "vllm/kill_api_SIGTERM.rawhttp": (Failure.EOF, "error_event"),
    "vllm/kill_engine_SIGKILL.rawhttp": (Failure.EOF, "error_event"),
    "vllm/kill_engine_SIGTERM.rawhttp": (Failure.EOF, "aborted"),
    "vllm/kill_worker_SIGKILL.rawhttp": (Failure.EOF, "error_event"),
    "sglang/kill_abort.sse": (Failure.EOF, "aborted"),
    "sglang/kill_pause_abort.sse": (Failure.EOF, "aborted"),
    "sglang/kill_running_timeout.sse": (Failure.EOF, "error_event"),
    "sglang/kill_sigkill_main.sse": (Failure.DISCONNECT, "disconnect"),
    "sglang/kill_sigkill_sched.sse": (Failure.DISCONNECT, "disconnect"),
}


def request_of(recording: Recorded) -> dict[str, object]:
    """As recorded, but for stop strings, which the rest of the answer here does not know."""
    return {key: value for key, value in recording.request.items() if key != "stop"}


def continued(play: Play, recording: Recorded) -> Told:
    finish = told(recording.stream).finishes[0]
    partial = play.splice.course.partial
    name = "reasoning" if recording.name in VLLM_NAMES else "reasoning_content"
    play.leg2(*rest_of(recording.stream, partial.reasoning, partial.content, name, finish))
    return play.whole()


# One of each shape: each cut reads all before it anew.
CUT_EVERYWHERE = [
    one for one in WHOLE if one.name in ("chat_usage", "chat_continuous_usage", "tools_one", "chat_basic")
]
VLLM_NAMES = {one.name for one in WHOLE[:9]}


@pytest.mark.parametrize("recording", WHOLE, ids=str)
def test_untouched_it_is_forwarded_to_the_byte(recording: Recorded) -> None:
    play = Play(request_of(recording)).reads(recording.stream)
    assert play.sent == recording.stream
    assert play.splice.phase is Phase.DONE
    assert play.splice.record() is None


def cuts_of(stream: bytes) -> Iterator[tuple[int, Failure]]:
    """Each kind of place of each event: before its first byte and after it, within the name of its field, within its
    JSON, before its line ends, and between its two line ends. At each kind of place both ends of a stream occur."""
    start = 0
    for number, event in enumerate(stream.split(b"\n\n")[:-1]):
        end = start + len(event)
        for place, cut in enumerate((start, start + 1, start + 4, (start + end) // 2, end - 1, end, end + 1)):
            yield cut, (Failure.EOF, Failure.DISCONNECT)[(number + place) % 2]
        start = end + 2


@pytest.mark.parametrize("recording", CUT_EVERYWHERE, ids=str)
def test_cut_in_and_around_every_event_it_is_whole_or_says_that_it_is_not(recording: Recorded) -> None:
    stream, expected = recording.stream, told(recording.stream)
    starts = (stream.find(b'"reasoning":"'), stream.find(b'_content":"'))
    first_event = stream.find(b"\n\n", min(at for at in starts if at > 0))
    for cut, failure in cuts_of(stream):
        play = Play(request_of(recording)).reads(stream[:cut]).ends(failure)
        if play.legs:
            answer = continued(play, recording)
        elif play.splice.phase is Phase.DONE:
            answer = play.whole()
        else:
            assert cut < first_event or play.failed().tool_calls, cut
            continue
        assert (answer.reasoning, answer.content) == (expected.reasoning, expected.content), cut
        assert answer.finishes == expected.finishes, cut
        assert bool(answer.usages) == play.plan.asks_usage, cut


@settings(max_examples=60)
@given(st.sampled_from(WHOLE), st.data())
def test_cut_into_any_reads_the_client_gets_the_same_bytes(recording: Recorded, data: st.DataObject) -> None:
    stream = recording.stream
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=30)))
    reads = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert Play(request_of(recording)).reads(*reads).sent == stream


@settings(max_examples=60)
@given(st.sampled_from(WHOLE[:6]), st.data())
def test_both_legs_cut_into_any_reads_give_the_same_answer(recording: Recorded, data: st.DataObject) -> None:
    cut = data.draw(st.integers(len(recording.stream) // 4, len(recording.stream) - 1))
    play = Play(request_of(recording)).reads(recording.stream[:cut]).ends(Failure.DISCONNECT)
    if not play.legs:
        return
    partial = play.splice.course.partial
    finish = told(recording.stream).finishes[0]
    rest = b"".join(rest_of(recording.stream, partial.reasoning, partial.content, "reasoning", finish))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rest)), max_size=30)))
    play.leg2(*[rest[a:b] for a, b in zip([0, *cuts], [*cuts, len(rest)], strict=True)])
    expected = told(recording.stream)
    assert (play.whole().reasoning, play.told.content) == (expected.reasoning, expected.content)


@pytest.mark.parametrize("name", KILLED)
def test_killed_it_is_continued(name: str) -> None:
    recording = recorded(name)
    end, failure = KILLED[name]
    play = Play(ASKS).reads(recording.stream)
    if not play.legs:
        play.ends(end)
    before = play.told
    assert (before.errors, before.finishes, before.done) == ([], [], 0)
    play.leg2(content(" and the rest", {"id": "x"}), chunk({}, "stop", ident={"id": "x"}), DONE)
    answer = play.whole()
    assert play.record.failure == failure
    assert answer.content == before.content + " and the rest"
    assert answer.reasoning == before.reasoning
    assert len(answer.usages) == 1
