"""Verification against simulated engines, whose next token depends on the exact prompt."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from continuation.lifecycle import Process
from continuation.metrics import processes
from continuation.testbed.simulator import Config, Simulator
from continuation.verification.bench import Report, verify
from continuation.verification.cuts import Place
from continuation.verification.order import Order, Progress, Trouble, prompts_in
from continuation.verification.ranking import percent
from continuation.verification.variants import CHAT, COMPLETIONS
from strategies.columns import COLUMNS
from strategies.engines import Engine
from strategies.types import CompiledStrategy, Fallback
from strategies.verification import settings_of
from tests.harness.figures import figures, moved

QWEN_VLLM = CompiledStrategy(
    "qwen-vllm", "qwen", Engine.VLLM, thinking_key="enable_thinking", structured=True, template_trims=True
)
QWEN_SGLANG = CompiledStrategy(
    "qwen-sglang",
    "qwen",
    Engine.SGLANG,
    "<think>\n",
    thinking_key="enable_thinking",
    prompt_opens_thinking=True,
)
HOUSE = CompiledStrategy("house", "house")
# What the simulator answers depends on the question. These answers are short, for each way to continue costs as much as
# the answer is long; and they have every kind of place that can be cut (see below).
SHORT = 0.2
PROMPTS = tuple({"messages": [{"role": "user", "content": f"Question {n} 🙂?"}]} for n in (20, 3, 8))
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


async def verified(
    strategy: CompiledStrategy, engine: str, template: str, *, prompts: tuple[dict[str, Any], ...] = PROMPTS,
    cuts: int = 2, seen: list[Progress] | None = None, **asked: Any,
) -> Report:  # fmt: skip
    config = Config(engine=engine, template=template, scale=SHORT)  # type: ignore[arg-type]
    async with Simulator(config) as simulator:
        order = Order(strategy, simulator.url, prompts=prompts, cuts=cuts, **asked)
        report = None
        async for step in verify(order):
            if isinstance(step, Report):
                report = step
            elif seen is not None:
                seen.append(step)
        assert report is not None
        return report


_reports: dict[tuple[CompiledStrategy, str, str], Report] = {}


async def report_on(strategy: CompiledStrategy, engine: str, template: str) -> Report:
    """With one cut of each kind; the same one for all tests that ask for it: a report is only read."""
    key = strategy, engine, template
    if key not in _reports:
        _reports[key] = await verified(strategy, engine, template, cuts=1)
    return _reports[key]


def exact(report: Report, place: Place) -> tuple[int, int]:
    tally = report.configured.tallies[place]
    return tally.exact, tally.total


def probed(report: Report) -> dict[str, Any]:
    return {probe.name: probe.value for probe in report.probes}


def with_changes(strategy: CompiledStrategy, changes: dict[str, Any]) -> CompiledStrategy:
    names = {column.field: column.attribute for column in COLUMNS}
    values = {names[field]: value for field, value in changes.items()}
    if "without_scale_out" in values:
        values["without_scale_out"] = Fallback(values["without_scale_out"])
    return replace(strategy, **values)


# -- probes ----------------------------------------------------------------------------------------


async def test_the_probes_say_what_a_trimming_vllm_is() -> None:
    report = await report_on(QWEN_VLLM, "vllm", "qwen")
    assert probed(report) == {
        "engine": "vllm 0.32.0",
        "scale-out": False,
        "token ids": True,
        "continue_final_message": True,
        "template": True,
        "generation prompt": "<think>\n",
        "thinking key": "enable_thinking",
        "repeats": True,
        "control tokens": ["<think>\n", "</think>", ""],
        "reasoning end": "\n",
    }


async def test_the_probes_say_what_an_sglang_is() -> None:
    report = await report_on(QWEN_SGLANG, "sglang", "qwen")
    assert probed(report) == {
        "engine": "sglang 0.5.23",
        "token ids": False,
        "continue_final_message": True,
        "generation prompt": "<think>\n",
        "thinking key": "enable_thinking",
        "repeats": True,
        "control tokens": ["<think>\n", "</think>", ""],
        "reasoning end": "\n",
    }


async def test_a_renderer_that_ignores_the_flag_is_told_and_no_setting_of_chat_continue_is_recommended() -> (
    None
):
    report = await verified(replace(HOUSE, thinking_key="thinking"), "vllm", "kimi-k3", cuts=1)
    assert report.known.honours_flag is False
    assert "chat-continue cannot work" in " ".join(report.recommendation.says)
    chats = [one for one in report.measured if one.variant.route == CHAT]
    assert chats
    # Near its end an answer can be whole already, and then nothing more is right.
    places = {place for one in chats for place, tally in one.tallies.items() if tally.exact}
    assert places <= {Place.CONTENT_END}
    assert not report.recommendation.changes


async def test_control_tokens_are_read_from_an_answers_own_ids() -> None:
    row = replace(HOUSE, open="<|open|>think<|sep|>", close="x", content_open="<|open|>response<|sep|>")
    report = await verified(row, "vllm", "kimi-k3", cuts=1)
    assert probed(report)["control tokens"] == [
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|>",
        "<|open|>response<|sep|>",
    ]


# -- findings --------------------------------------------------------------------------------------


async def test_an_answer_is_cut_at_every_kind_of_place() -> None:
    report = await report_on(QWEN_VLLM, "vllm", "qwen")
    assert report.cuts == dict.fromkeys([place for place in Place if place is not Place.TOOL_CALL], 1)


async def test_a_right_strategy_of_a_template_that_keeps_content_is_exact_everywhere() -> None:
    seen: list[Progress] = []
    report = await verified(HOUSE, "vllm", "generic", cuts=3, seen=seen)
    total = report.configured.total
    assert total.exact == total.total > 20
    assert percent(report.configured.tallies.values()) == 100
    assert not report.recommendation.changes
    assert {Place.REASONING_WORD, Place.REASONING_END, Place.CONTENT_WORD, Place.CONTENT_BLANK} <= set(
        report.cuts
    )
    assert all(1 <= number <= 3 for number in report.cuts.values())
    done = [step.done for step in seen]
    assert done == sorted(done)
    assert seen[-1].done == seen[-1].total > 0


async def test_differences_are_found_and_shown() -> None:
    report = await report_on(replace(QWEN_VLLM, template_trims=False), "vllm", "qwen")
    tally = report.configured.tallies[Place.CONTENT_SPACE]
    assert tally.diverged
    assert tally.first_difference.startswith("content, character ")
    assert "wanted" in tally.first_difference


async def test_a_refusal_is_no_divergence_and_tells_no_conversation() -> None:
    report = await report_on(replace(QWEN_VLLM, structured=False), "vllm", "qwen")
    tally = report.configured.tallies[Place.CONTENT_WORD]
    assert (tally.refused, tally.diverged, tally.exact) == (tally.total, 0, 0)
    assert "leg2_refused, status 400" in tally.first_difference
    assert "Question" not in tally.first_difference


async def test_a_cut_in_a_tool_call_is_not_tried_by_chat_continue() -> None:
    prompt = {"messages": [{"role": "user", "content": "Use the tool: weather in Rome?"}], "tools": [TOOL]}
    report = await verified(HOUSE, "vllm", "generic", prompts=(prompt,))
    tally = report.configured.tallies[Place.TOOL_CALL]
    assert tally.not_tried
    assert "after a tool call" in tally.first_difference
    assert percent(report.configured.tallies.values()) == 100


async def test_the_completions_route_is_tried_where_scale_out_is_off() -> None:
    report = await report_on(HOUSE, "vllm", "generic")
    found = [one for one in report.measured if one.variant.route == COMPLETIONS]
    assert found
    assert all(one.total.refused for one in found)  # the simulator has no /v1/completions


async def test_equal_continuation_requests_are_sent_once() -> None:
    async with Simulator(Config(engine="vllm", template="qwen", scale=SHORT)) as simulator:
        order = Order(QWEN_VLLM, simulator.url, prompts=PROMPTS, cuts=1)
        reports = [step async for step in verify(order) if isinstance(step, Report)]
        bodies = [json.dumps(sent.body) for sent in simulator.requests if sent.leg == 2]
    assert reports
    assert len(bodies) == len(set(bodies)) > 10


async def test_nothing_of_a_verification_is_audited(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[object] = []
    monkeypatch.setattr(process.audit, "record", kept.append)
    report = await verified(HOUSE, "sglang", "generic", cuts=1)
    assert report.configured.total.exact
    assert not kept


@pytest.mark.parametrize(
    "strategy, engine, template", [(HOUSE, "sglang", "generic"), (QWEN_VLLM, "vllm", "qwen")]
)
async def test_no_figure_of_the_metrics_counts_a_verification(
    strategy: CompiledStrategy, engine: str, template: str
) -> None:
    before = figures(*_told())
    report = await verified(strategy, engine, template, cuts=1)
    assert report.configured.total.exact
    assert not moved(before, figures(*_told()))


def _told() -> tuple[str, str]:
    body, content_type = processes.told("")
    return body.decode(), content_type


# -- broken strategies -----------------------------------------------------------------------------

# name: engine, template, a strategy with one thing wrong, fields of which one must be recommended, the right strategy
BROKEN = {
    "one string where the template rewrites it": (
        "vllm", "qwen", replace(QWEN_VLLM, structured=False), {"structured_message", "open_token"}, QWEN_VLLM,
    ),
    "trimming is not made up for": (
        "vllm", "qwen", replace(QWEN_VLLM, template_trims=False), {"template_trims"}, QWEN_VLLM,
    ),
    "OPEN is doubled where the prompt has it": (
        "sglang", "qwen", replace(QWEN_SGLANG, prompt_opens_thinking=False), {"prompt_opens_thinking"},
        QWEN_SGLANG,
    ),
    "OPEN is left out where the model writes it": (
        "sglang", "generic", replace(HOUSE, prompt_opens_thinking=True), {"prompt_opens_thinking"}, HOUSE,
    ),
    "CLOSE is another model's": (
        "vllm", "generic", replace(HOUSE, close="</thought>"), {"close_token"}, HOUSE,
    ),
    "OPEN has a line break that the model does not write": (
        "vllm", "generic", replace(HOUSE, open="<think>\n"), {"open_token"}, HOUSE,
    ),
    "all control tokens are another model's": (
        "sglang", "deepseek-v4", replace(HOUSE, open="[THINK]", close="[/THINK]"), {"close_token"},
        replace(HOUSE, prompt_opens_thinking=True),
    ),
}  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN)
async def test_the_wrong_setting_of_a_broken_strategy_is_found_and_a_right_one_recommended(
    broken: str,
) -> None:
    engine, template, strategy, fields, right = BROKEN[broken]
    report = await report_on(strategy, engine, template)
    changes = dict(report.recommendation.changes)
    assert fields & set(changes)
    before = report.configured.total
    assert before.exact < before.total
    repaired = with_changes(strategy, changes)
    after = await report_on(repaired, engine, template)
    by_hand = await report_on(right, engine, template)
    assert before.exact < after.configured.total.exact
    assert after.configured.total.exact >= by_hand.configured.total.exact
    assert not after.recommendation.changes
    assert settings_of(repaired) != settings_of(strategy)


# -- trouble ---------------------------------------------------------------------------------------


async def test_an_engine_that_is_not_there_is_named() -> None:
    order = Order(HOUSE, "http://127.0.0.1:9")
    with pytest.raises(Trouble, match=r"no engine answers at http://127\.0\.0\.1:9"):
        [step async for step in verify(order)]


async def test_a_model_that_is_not_served_is_named_with_those_that_are() -> None:
    with pytest.raises(Trouble, match="no model 'other'; it serves simulated-model"):
        await verified(HOUSE, "vllm", "generic", model="other")


async def test_an_engine_that_goes_away_in_mid_run_ends_it() -> None:
    simulator = Simulator(Config(engine="vllm", template="generic"))
    await simulator.start()

    async def stopped_after_three_cuts() -> None:
        async for step in verify(Order(HOUSE, simulator.url, prompts=PROMPTS, cuts=1, connect_timeout=2)):
            if isinstance(step, Progress) and step.total and step.done == 3:
                await simulator.stop()

    with pytest.raises(Trouble, match="went away during the run"):
        await stopped_after_three_cuts()


async def test_a_verification_that_is_left_leaves_no_task_behind() -> None:
    before = asyncio.all_tasks()
    async with Simulator(Config(engine="vllm", template="generic")) as simulator:
        steps = verify(Order(HOUSE, simulator.url, prompts=PROMPTS, cuts=1))
        async for step in steps:
            if isinstance(step, Progress) and step.done == 2:
                break
        await steps.aclose()
    left = {task for task in asyncio.all_tasks() - before if "verification" in task.get_name()}
    assert not left


WRONG_PROMPTS = [
    ("", "there is no prompt in it"),
    ('{"messages": []}', "line 1 is no chat body"),
    ("Hello\n{broken", "line 2 begins with a brace"),
    ("a\n" * 201, "201 prompts are too many"),
]


@pytest.mark.parametrize("text, says", WRONG_PROMPTS)
def test_a_wrong_prompts_file_is_refused_with_what_is_allowed(text: str, says: str) -> None:
    with pytest.raises(Trouble, match=says):
        prompts_in(text)


def test_a_prompts_file_holds_questions_and_chat_bodies() -> None:
    found = prompts_in('Why?\n\n{"messages": [{"role": "user", "content": "x"}], "max_tokens": 5}\n')
    assert found[0] == {"messages": [{"role": "user", "content": "Why?"}]}
    assert found[1]["max_tokens"] == 5
