"""Which strategy a request gets."""

import itertools
import subprocess
import sys

import pytest

from strategies.engines import Engine
from strategies.types import GENERIC, LONGEST_NAME, MEMO_SIZE, CompiledStrategy, StrategyBook, fit


def row(name: str, model: str, engine: str = "any", served: tuple[str, ...] = (), token_route: bool = False):
    return CompiledStrategy(
        name=name, model=model, engine=Engine(engine), served_names=served, render_generate=token_route
    )


BOOK = StrategyBook.of(
    [
        row("generic", "generic"),
        row("k3-sglang", "kimi-k3*", "sglang"),
        row("k3-vllm", "kimi-k3*", "vllm", token_route=True),
        row("k2", "kimi-k2*"),
        row("qwen-sglang", "qwen3.6*", "sglang"),
        row("qwen-vllm", "qwen3.6*", "vllm"),
        row("qwen-35b", "qwen3.6-35b*"),
        row("qwen-exact", "Qwen3.6-35B-A3B", "vllm"),
        row("ds-vllm", "deepseek-v4*", "vllm", token_route=True),
        row("wildcard-class", "glm-[45].?"),
        row("desk-vllm", "desk-model", "vllm", served=("desk", "team-*")),
        row("desk-sglang", "desk-model", "sglang", served=("Desk", "team-a-*")),
    ]
)


@pytest.mark.parametrize(
    "model, engine, name, how",
    [
        ("kimi-k3", "sglang", "k3-sglang", "model_engine"),
        ("KIMI-K3-Instruct", "vllm", "k3-vllm", "model_engine"),
        ("moonshotai/Kimi-K3", "sglang", "k3-sglang", "model_engine"),
        ("kimi-k2.5", "vllm", "k2", "model_any"),
        ("kimi-k2.5", "", "k2", "model_any"),
        ("Qwen/Qwen3.6-35B-A3B", "vllm", "qwen-exact", "model_engine"),
        ("Qwen/Qwen3.6-35B-A3B-FP8", "vllm", "qwen-vllm", "model_engine"),
        ("Qwen/Qwen3.6-35B-A3B", "", "qwen-35b", "model_any"),
        ("qwen3.6-7b", "", "qwen-vllm", "other_engine"),
        # Not the token route's row, although vLLM stands first elsewhere.
        ("kimi-k3", "", "k3-sglang", "other_engine"),
        # Only rows with the token route of another engine: nothing there can be used.
        ("deepseek-v4-flash", "sglang", "generic", "generic"),
        ("deepseek-v4-flash", "vllm", "ds-vllm", "model_engine"),
        ("glm-5.1", "sglang", "wildcard-class", "model_any"),
        ("glm-6.1", "sglang", "generic", "generic"),
        ("something-new", "vllm", "generic", "generic"),
        ("generic", "vllm", "generic", "model_any"),
        ("", "vllm", None, "none"),
    ],
)
def test_without_a_served_name_the_configured_model_and_engine_choose(model, engine, name, how):
    found = BOOK.select("whatever the client says", model, engine)
    assert (found.strategy.name if found.strategy else None, found.how) == (name, how)


@pytest.mark.parametrize(
    "requested, engine, name",
    [
        ("desk", "sglang", "desk-sglang"),
        ("DESK", "vllm", "desk-vllm"),
        ("corp/desk", "vllm", "desk-vllm"),
        ("team-b", "sglang", "desk-vllm"),
        ("team-a-1", "vllm", "desk-sglang"),  # more literal characters beat the engine
    ],
)
def test_a_served_name_comes_before_the_configured_model(requested, engine, name):
    found = BOOK.select(requested, "kimi-k3", engine)
    assert (found.strategy.name, found.how) == (name, "served_name")


def test_a_served_name_needs_no_configured_model():
    assert BOOK.select("desk", "", "").strategy.name == "desk-vllm"
    assert BOOK.select("other", "", "").how == "none"


def test_a_request_without_a_model_is_served_by_a_row_that_serves_everything():
    book = StrategyBook.of([row("all", "x", served=("*",))])
    assert book.select("", "", "").how == "served_name"
    assert BOOK.select("", "kimi-k3", "sglang").strategy.name == "k3-sglang"


@pytest.mark.parametrize(
    "requested", ["\ud83d", "desk\ude00", "\x00", "[", "*", "a" * (LONGEST_NAME + 1), "/", "desk/"]
)
def test_any_text_can_be_requested(requested):
    assert BOOK.select(requested, "kimi-k3", "sglang").strategy.name == "k3-sglang"


def test_a_name_of_megabytes_is_not_matched_against_globs():
    book = StrategyBook.of([row("all", "x", served=("*a*a*a*b",))])
    assert book.select("a" * 5_000_000, "x", "").how == "model_any"


def test_the_memo_is_bounded_and_changes_no_answer():
    book = StrategyBook.of(BOOK.strategies)
    for number in range(2 * MEMO_SIZE + 10):
        assert book.select(f"team-{number}", "kimi-k3", "sglang").strategy.name == "desk-vllm"
    assert 0 < len(book._memo) <= MEMO_SIZE
    assert book.select("team-1", "kimi-k3", "sglang") is book.select("team-1", "kimi-k3", "sglang")


def test_books_are_equal_whatever_they_have_been_asked():
    asked = StrategyBook.of(BOOK.strategies)
    asked.select("desk", "", "")
    assert asked == StrategyBook.of(BOOK.strategies)


def test_the_order_of_rows_does_not_matter():
    for rows in itertools.islice(itertools.permutations(BOOK.strategies), 0, 40_000, 997):
        book = StrategyBook.of(rows)
        assert book.select("desk", "", "").strategy.name == "desk-vllm"
        assert book.select("", "qwen3.6-7b", "").strategy.name == "qwen-vllm"


def test_the_row_named_generic_is_the_generic_strategy():
    own = CompiledStrategy(name="generic", model="generic", open="[THINK]", close="[/THINK]")
    assert StrategyBook.of([own]).select("", "new", "vllm").strategy is own
    assert StrategyBook.of([]).select("", "new", "vllm").strategy is GENERIC
    assert StrategyBook().select("", "new", "vllm").how == "generic"


@pytest.mark.parametrize(
    "pattern, name, found",
    [
        ("Qwen3.6", "qwen3.6", (True, 7)),
        ("qwen3.6", "Qwen/Qwen3.6", (True, 7)),
        ("qwen/qwen3.6", "Qwen/Qwen3.6", (True, 12)),
        ("qwen*", "Qwen/Qwen3.6", (False, 4)),
        ("q?en[34].6", "qwen3.6", (False, 5)),
        ("*", "anything", (False, 0)),
        ("qwen", "qwen3.6", None),
        ("qwen/qwen3.6", "qwen3.6", None),
        ("[", "[", (True, 1)),
    ],
)
def test_names_fit_patterns(pattern, name, found):
    assert fit(pattern, name) == found


def test_what_requests_use_needs_no_framework():
    check = (
        "import strategies.builders, strategies.types, sys;"
        "sys.exit(','.join({'django', 'httpx', 'asyncio'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
