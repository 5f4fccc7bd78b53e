import json

from continuation.testbed.simulator.dialects import QWEN
from continuation.testbed.simulator.parsing import Decoding, Parser, Segment, Step, StopStrings, Strand
from continuation.testbed.simulator.vocabulary import encode


def decode(
    text: str, stops: tuple[str, ...] = (), limit: int = 1000, *, in_reasoning: bool = True
) -> list[Step]:
    tokens = encode(text)
    return list(Decoding(QWEN, Parser(QWEN, in_reasoning), StopStrings(stops), limit).steps(tokens))


def text(steps: list[Step], channel: Strand) -> str:
    return "".join(delta.text for step in steps for delta in step.deltas if delta.channel == channel)


def test_text_is_sorted_by_control_tokens() -> None:
    steps = decode("R\n</think>\n\nC<|im_end|>")
    assert text(steps, Strand.REASONING) == "R\n"
    assert text(steps, Strand.CONTENT) == "\n\nC"
    assert steps[-1].finish == "stop"
    assert steps[-1].stop is None
    assert steps[-1].reasoning == len(encode("R\n"))
    assert steps[-1].completion == len(steps)


def test_half_characters_bring_no_text() -> None:
    steps = decode("🌊了解杭州<|im_end|>")
    assert "" in ["".join(delta.text for delta in step.deltas) for step in steps[:-1]]
    assert text(steps, Strand.REASONING) == "🌊了解杭州"
    assert "\ufffd" not in text(steps, Strand.REASONING)


def test_the_limit_ends_an_answer_with_its_last_token() -> None:
    steps = decode("</think>one two three four", limit=3)
    assert [step.finish for step in steps] == [None, None, "length"]
    assert steps[-1].deltas


def test_a_stop_string_is_cut_off_and_what_could_begin_it_is_held_back() -> None:
    steps = decode("</think>All is well that ends<|im_end|>", ("well",))
    assert text(steps, Strand.CONTENT) == "All is "
    assert (steps[-1].finish, steps[-1].stop) == ("stop", "well")
    early = decode("</think>All is we", ("well",), limit=len(encode("</think>All is we")) + 5)
    assert text(early, Strand.CONTENT) == "All is we"[:-3]


def test_held_back_text_comes_at_the_end_of_the_turn() -> None:
    steps = decode("</think>All is we<|im_end|>", ("well",))
    assert text(steps, Strand.CONTENT) == "All is we"
    assert steps[-1].finish == "stop"


def test_a_stop_string_can_lie_across_the_end_of_the_reasoning() -> None:
    assert text(decode("ab</think>cd<|im_end|>", ("b</think>c",)), Strand.REASONING) == "a"


def test_held_back_control_tokens_are_released_as_a_whole() -> None:
    stops = StopStrings(("abcd",))
    assert stops.push(Segment("</think>", marker=True)) == []
    assert stops.push(Segment("xyz")) == [Segment("</think>", marker=True)]
    assert stops.flush() == [Segment("xyz")]


def test_tool_calls_come_name_first_and_the_arguments_lack_nothing() -> None:
    calls = [("get_weather", {"city": "Paris, {France}"}), ("other", {"a": {"b": [1, 2]}, "c": "}}"})]
    envelopes = (json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls)
    turn = "</think>Let me see.\n\n" + "\n".join(
        f"<tool_call>\n{envelope}\n</tool_call>" for envelope in envelopes
    )
    steps = decode(turn + "<|im_end|>")
    deltas = [delta for step in steps for delta in step.deltas]
    assert steps[-1].finish == "tool_calls"
    assert text(steps, Strand.CONTENT) == "Let me see.\n\n"
    for number, (name, arguments) in enumerate(calls):
        own = [delta for delta in deltas if delta.channel.startswith("call_") and delta.call == number]
        assert (own[0].channel, own[0].text) == (Strand.CALL_NAME, name)
        assert json.loads("".join(delta.text for delta in own[1:])) == arguments
        assert len(own) > 3


def test_the_rest_of_a_call_that_the_prompt_began_is_arguments() -> None:
    parser = Parser(QWEN, in_reasoning=False, in_call=True)
    segments = [Segment('ris"}}\n'), Segment("</tool_call>", marker=True)]
    assert "".join(delta.text for delta in parser.feed(segments)) == 'ris"}'


def test_the_end_of_a_call_that_nobody_began_is_content() -> None:
    parser = Parser(QWEN, in_reasoning=False)
    deltas = list(parser.feed([Segment('ris"}}\n'), Segment("</tool_call>", marker=True)]))
    assert {delta.channel for delta in deltas} == {Strand.CONTENT}
