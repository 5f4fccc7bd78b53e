"""Built-in strategies against an engine whose next token depends on the exact prompt: a rescued answer equals the
uninterrupted one only if the gateway rebuilt the prompt exactly."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from continuation.testbed.simulator import Config, Simulator
from tests.e2e.asking import asking_usage
from tests.e2e.conftest import Chat, GatewayFor
from tests.harness.client import Answer
from tests.harness.gateway import Gateway


@contextmanager
def running(config: Config) -> Iterator[Simulator]:
    """A simulator with an event loop and a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="simulator")
    thread.start()
    simulator = Simulator(config)

    def wait_for(what: object) -> None:
        asyncio.run_coroutine_threadsafe(what, loop).result(20)  # type: ignore[arg-type]

    wait_for(simulator.start())
    try:
        yield simulator
    finally:
        wait_for(simulator.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()


# engine, template, CONTINUATION_MODEL
PAIRS = [
    ("vllm", "qwen", "Qwen/Qwen3.6-35B-A3B"),
    ("sglang", "qwen", "Qwen/Qwen3.6-35B-A3B"),
    ("vllm", "generic", "house-model"),
    ("sglang", "generic", "GLM-5.3"),
    ("sglang", "kimi-k3", "moonshotai/Kimi-K3"),
    ("sglang", "deepseek-v4", "DeepSeek-V4-Flash"),
]
FAULTS = {
    "vllm": [
        "reset",
        "disconnect",
        "eof",
        "cut_inside_event",
        "error_event",
        "aborted",
        "malformed",
        "stall_with_pings",
    ],
    "sglang": [
        "reset",
        "disconnect",
        "half_closed",
        "done_without_finish",
        "error_event",
        "aborted",
        "stall",
    ],
}
PLACES = ["in=reasoning; after=1", "in=reasoning; after=9", "in=content; after=1", "in=content; after=30"]


@pytest.mark.parametrize(("engine", "template", "model"), PAIRS)
def test_a_rescued_answer_equals_the_uninterrupted_one(
    gateway: GatewayFor, chat: Chat, engine: str, template: str, model: str
) -> None:
    with running(Config(engine=engine, template=template, model="served")) as simulator:
        one = gateway(
            DOWNSTREAM_URL=simulator.url,
            CONTINUATION_MODEL=model,
            CONTINUATION_ENGINE=engine,
            STALL_IDLE_TIMEOUT_SECONDS="0.5",
        )
        ask = asking(one, chat)
        for number, fault in enumerate(FAULTS[engine]):
            question = f"question {number}"
            whole = ask(question, "")
            assert whole.reasoning
            for place in PLACES:
                rescued = ask(question, f"{fault}; {place}")
                assert (rescued.reasoning, rescued.content) == (whole.reasoning, whole.content), (
                    fault,
                    place,
                )
                assert (rescued.finish_reasons, rescued.done, rescued.errors) == (["stop"], 1, []), (
                    fault,
                    place,
                )
                assert len(rescued.usages) == 1
        asked = len(FAULTS[engine]) * (1 + 2 * len(PLACES))
        assert len(simulator.requests) == asked
        assert simulator.open_streams == 0


def test_a_renderer_that_ignores_the_flag_is_noticed(gateway: GatewayFor, chat: Chat) -> None:
    """Its strategy asks for the token route; under the wrong strategy the answer departs, and is not joined."""
    with running(Config(engine="vllm", template="kimi-k3", model="served")) as simulator:
        one = gateway(DOWNSTREAM_URL=simulator.url, CONTINUATION_MODEL="Kimi-K3", CONTINUATION_ENGINE="vllm")
        failed = asking(one, chat)("question", "reset; in=content; after=9")
        assert [error["code"] for error in failed.errors] == ["scale_out_missing"]
        assert len([one for one in simulator.requests if one.path == "/v1/chat/completions"]) == 1


RUNNING = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


@pytest.mark.parametrize(("engine", "more"), [("vllm", {}), ("vllm", RUNNING), ("sglang", RUNNING)], ids=str)
def test_the_budget_is_not_overrun_where_the_engine_counts(
    gateway: GatewayFor, chat: Chat, engine: str, more: dict[str, Any]
) -> None:
    """Without its counts, tokens that have no event of their own are missed."""
    with running(Config(engine=engine, template="qwen", model="served")) as simulator:
        one = gateway(
            DOWNSTREAM_URL=simulator.url,
            CONTINUATION_MODEL="Qwen/Qwen3.6-35B-A3B",
            CONTINUATION_ENGINE=engine,
        )
        ask = asking(one, chat)
        for budget in (40, 60, 90):
            whole = ask("How do I carry on?", "", max_tokens=budget, **more)
            assert whole.finish_reasons == ["length"]
            for after in (1, 9, 20):
                place = f"disconnect; in=reasoning; after={after}"
                rescued = ask("How do I carry on?", place, max_tokens=budget, **more)
                if more:
                    assert (rescued.reasoning, rescued.content) == (whole.reasoning, whole.content), after
                assert (rescued.finish_reasons, rescued.done) == (["length"], 1)
                told, want = rescued.usages[-1], whole.usages[-1]
                assert told["completion_tokens"] == want["completion_tokens"] == budget, after
                # Leg 2's prompt also holds control tokens: those that open the thinking.
                more_prompt = told["prompt_tokens"] - want["prompt_tokens"]
                assert more_prompt == 0 if more else 0 <= more_prompt <= 8, (budget, after)
                assert told["total_tokens"] == told["prompt_tokens"] + told["completion_tokens"]


def asking(one: Gateway, chat: Chat) -> Callable[..., Answer]:
    def ask(question: str, fault: str, **changes: Any) -> Answer:
        asked = asking_usage(model="served", messages=[{"role": "user", "content": question}]) | changes
        stream = chat(one, asked, [("X-Simulate-Fault", fault)] if fault else [])
        return Answer.of(stream.read_rest().body)

    return ask
