"""The table of engines: what follows from it, so that a new engine is one entry."""

from __future__ import annotations

from strategies.engines import Engine, engine_choices, engines_with_token_route
from strategies.models import Strategy
from strategies.types import CompiledStrategy, StrategyBook


def test_every_engine_but_any_can_be_a_server() -> None:
    assert [str(engine) for engine in Engine.real()] == ["vllm", "sglang"]


def test_the_choices_of_a_form_are_the_engines_with_their_labels() -> None:
    assert engine_choices() == [("any", "any"), ("vllm", "vLLM"), ("sglang", "SGLang")]
    assert list(Strategy._meta.get_field("engine").flatchoices) == engine_choices()


def test_a_row_of_the_token_route_may_be_for_any_engine_that_is_not_known_to_lack_it() -> None:
    assert engines_with_token_route() == (Engine.ANY, Engine.VLLM)


def test_rows_of_every_engine_can_be_ranked_beside_each_other() -> None:
    rows = [CompiledStrategy(f"row-{engine}", "m*", engine, served_names=("m",)) for engine in Engine]
    for engine in Engine:
        assert StrategyBook.of(rows).select("m", "", engine).strategy == rows[list(Engine).index(engine)]
    assert StrategyBook.of(rows).select("m", "", "").strategy == rows[0]


def test_each_engine_that_can_be_a_server_says_where_its_version_is() -> None:
    assert all(engine.traits.version_path.startswith("/") for engine in Engine.real())
