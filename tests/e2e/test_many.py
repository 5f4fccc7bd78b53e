"""Many streams at once lose nothing and leave nothing."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.e2e.asking import body
from tests.e2e.conftest import Chat, GatewayFor
from tests.harness.client import Stream, one_whole_answer
from tests.harness.shapes import VLLM, VLLM_LEG2, ended, started
from tests.harness.upstream import Cut, Gate, Pause, Reply, Request, Reset, Step, Upstream, event

STREAMS = 200
ENDS: list[list[Step]] = [[Cut()], [], [Reset()], [event({"error": {"message": "x", "code": 500}})]]


def _words(number: int) -> list[str]:
    return [f"{number}-{word} " for word in range(40)]


def _number(asked: dict[str, Any]) -> int:
    return int(asked["messages"][0]["content"])


def test_two_hundred_streams_are_rescued_at_once(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    one, gate = gateway(), Gate()

    def answer(request: Request) -> Reply:
        asked = request.json()
        number = _number(asked)
        words = _words(number)
        if not asked.get("continue_final_message"):
            return Reply([*started(VLLM, ["r"], words[:20]), Pause(gate), *ENDS[number % len(ENDS)]])
        said = asked["messages"][-1]["content"].removeprefix("<think>r</think>")
        rest = "".join(words).removeprefix(said)
        return Reply([*started(VLLM_LEG2, [], [rest]), *ended(VLLM_LEG2)])

    upstream.respond(answer)
    streams = [chat(one, body(messages=[{"role": "user", "content": str(n)}])) for n in range(STREAMS)]
    upstream.wait_for_requests(STREAMS, timeout=30)
    gate.open()
    with ThreadPoolExecutor(16) as readers:
        read: list[Stream] = list(readers.map(Stream.read_rest, streams))
    for number, stream in enumerate(read):
        one_whole_answer(stream, reasoning="r", content="".join(_words(number)), like=VLLM)
    assert len(upstream.requests) == 2 * STREAMS
    upstream.wait_until_idle()
    rows = [one.event(stream.request_id) for stream in read]
    assert {row["outcome"] for row in rows} == {"rescued"}
