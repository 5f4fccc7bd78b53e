"""Characters that are split over tokens, on the token route."""

import pytest

from tests.e2e.asking import asking_usage, body
from tests.e2e.conftest import Chat, GatewayFor
from tests.e2e.scenes import BYTE, EVERYTHING, PROMPT, SAID, THOUGHT, ByteServer, ids_of, shown_of
from tests.e2e.test_token_route import TOKEN_ROUTE, rows_edited
from tests.harness.client import one_whole_answer
from tests.harness.shapes import VLLM, started
from tests.harness.upstream import Cut, Step, Upstream


@pytest.mark.parametrize("batch", ["1", "2", "3", "7"])
@pytest.mark.parametrize("told", [(THOUGHT[:6], ""), (THOUGHT, SAID[:1])], ids=["thinking", "content"])
def test_characters_that_are_split_over_batches_of_tokens_come_out_whole(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, batch: str, told: tuple[str, str]
) -> None:
    reasoning, content = told
    server = ByteServer([*started(VLLM, [reasoning], [content] if content else []), Cut()])
    upstream.respond(server)
    one = gateway(**TOKEN_ROUTE, DERENDER_BATCH_CHUNKS=batch)
    stream = chat(one, body()).read_rest()
    one_whole_answer(stream, reasoning=THOUGHT, content=SAID, like=VLLM)
    assert "\N{REPLACEMENT CHARACTER}" not in stream.body.decode()
    assert any(0x80 <= ids[0] - BYTE < 0xC0 for ids in server.batches if ids)  # begins inside a character


def _reporting_ids(ids: list[int], size: int = 1) -> list[Step]:
    """Leg 1 with the ids of its tokens, `size` to a chunk, also of those that show no text yet."""
    steps: list[Step] = [VLLM.role(usage=VLLM.counts(len(PROMPT), 0), prompt_token_ids=PROMPT)]
    for start in range(0, len(ids), size):
        number = min(start + size, len(ids))
        before, now = shown_of(ids[:start]), shown_of(ids[:number])
        delta = {"reasoning": now[0][len(before[0]) :], "content": now[1][len(before[1]) :]}
        delta = {name: text for name, text in delta.items() if text}
        choice = {"index": 0, "delta": delta, "finish_reason": None, "token_ids": ids[start:number]}
        steps.append(VLLM._event([choice], {"usage": VLLM.counts(len(PROMPT), number)}))
    return steps


def test_a_cut_inside_a_character_is_continued_inside_it_where_ids_are_carried(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    one = gateway(**TOKEN_ROUTE, STRATEGY_REFRESH_SECONDS="0.1")
    rows_edited(one, "token_exact = 1")
    try:
        banana = len(ids_of(THOUGHT[: THOUGHT.index("🍌")]))
        for cut in range(banana, banana + 5):
            upstream.respond(ByteServer([*_reporting_ids(EVERYTHING[:cut]), Cut()]))
            stream = chat(one, asking_usage()).read_rest()
            answer = one_whole_answer(stream, reasoning=THOUGHT, content=SAID, like=VLLM, usage=True)
            assert answer.usage["completion_tokens"] == len(EVERYTHING)
            assert one.event(stream.request_id)["route"] == "carried-ids"
    finally:
        rows_edited(one, "token_exact = 0")


@pytest.mark.parametrize("size", [1, 2, 3], ids=lambda size: f"{size} tokens to an event")
def test_ids_that_end_inside_a_character_do_not_bring_the_prompt_into_the_answer_on_the_last_resort(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, size: int
) -> None:
    one = gateway(**TOKEN_ROUTE, STRATEGY_REFRESH_SECONDS="0.1", CONNECT_TIMEOUT_SECONDS="198")
    rows_edited(one, "token_exact = 1, without_scale_out = 'completions'")
    try:
        banana = len(ids_of(THOUGHT[: THOUGHT.index("🍌")]))
        for cut in range(banana - 1, banana + 5):
            server = ByteServer([*_reporting_ids(EVERYTHING[:cut], size), Cut()])
            server.missing = {"/v1/chat/completions/render": 403}
            upstream.respond(server)
            stream = chat(one, asking_usage(max_tokens=200)).read_rest()
            answer = one_whole_answer(stream, reasoning=THOUGHT, content=SAID, like=VLLM, usage=True)
            if size == 1:
                assert answer.usage["completion_tokens"] == len(EVERYTHING)
    finally:
        rows_edited(one, "token_exact = 0, without_scale_out = 'none'")
