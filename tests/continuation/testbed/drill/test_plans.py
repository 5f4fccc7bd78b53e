"""Kinds and plans: what a seed stands for."""

from __future__ import annotations

from random import Random

import pytest

from continuation.testbed.drill.injector import _STRIKES
from continuation.testbed.drill.judging import FAILURES
from continuation.testbed.drill.kinds import (
    CLIENT,
    CONTINUATION,
    ENGINE,
    KINDS,
    UnknownKind,
    chosen,
    help_text,
)
from continuation.testbed.drill.plans import BREAKS, PLAIN, TELLING_CHARS, Framing, Plan, Planner
from continuation.testbed.drill.reading import read
from tests.continuation.testbed.drill.streams import DONE, TOOL, WHOLE, chunk, reference

LONG = [WHOLE[0], *(chunk({"content": f"word {n} "}) for n in range(40)), *WHOLE[-3:]]
REFERENCES = (reference(LONG, 0), reference(TOOL, 1), reference(WHOLE, 2))


def plans(seed: int, count: int, kinds: tuple[str, ...] = tuple(KINDS)) -> list[Plan]:
    planner = Planner(seed, kinds, REFERENCES)
    return [planner.plan(number) for number in range(count)]


def test_the_same_seed_has_the_same_faults_at_the_same_places() -> None:
    assert plans(5, 400) == plans(5, 400)
    assert plans(5, 400) != plans(6, 400)


def test_one_stream_of_a_drill_can_be_planned_alone() -> None:
    assert Planner(5, tuple(KINDS), REFERENCES).plan(333) == plans(5, 400)[333]


def test_each_round_has_every_kind_once_in_an_order_of_its_own() -> None:
    kinds = [plan.kind for plan in plans(1, 3 * len(KINDS))]
    rounds = [kinds[start : start + len(KINDS)] for start in range(0, len(kinds), len(KINDS))]
    assert all(sorted(one) == sorted(KINDS) for one in rounds)
    assert rounds[0] != rounds[1] != rounds[2]


def test_every_kind_can_be_planned_and_every_fault_of_the_engine_can_strike() -> None:
    ways = {(plan.leg1.name, plan.leg1.how) for plan in plans(2, 4000) if plan.leg1}
    assert {kind for kind in ENGINE if kind != "none"} <= {name for name, _ in ways}
    assert set(BREAKS) <= set(_STRIKES)
    assert set(BREAKS) <= set(FAILURES)
    assert {plan.leg2.name for plan in plans(2, 4000) if plan.leg2} >= {"restart", "depart", "hold", "rename"}


def test_faults_of_leg_2_need_text_before_them_and_no_tool_call() -> None:
    for plan in plans(3, 2000, tuple(CONTINUATION)):
        one = REFERENCES[plan.question]
        assert plan.leg1
        assert plan.leg2
        assert plan.leg1.after <= one.text_ends_at
        least = TELLING_CHARS if plan.kind in ("leg2_restarted", "leg2_departed") else 1
        assert one.chars[plan.leg1.after] >= least


def test_clients_come_back_in_every_way_and_read_plain_events() -> None:
    found = plans(6, 400, ("client_returns", "client_returns_leg2"))
    backs = [back for plan in found for back in plan.returns]
    assert {(back.parting, back.way) for back in backs} == {
        (parting, way) for parting in ("close", "reset") for way in ("get", "post", "query")
    }
    assert {len(plan.returns) for plan in found} == {1, 2, 3}
    assert min(back.after for back in backs) == 0
    assert all(plan.framing.dress(DONE, Random(1), first=True) == DONE for plan in found)
    assert {bool(plan.leg1) for plan in found if plan.kind == "client_returns"} == {False}
    assert {plan.leg1.name for plan in found if plan.leg1} == set(BREAKS)


def test_places_are_all_over_the_answer_and_its_edges_too() -> None:
    places = [plan.leg1.after for plan in plans(4, 3000, ("eof",)) if plan.leg1 and plan.question == 0]
    assert set(places) == set(range(REFERENCES[0].finish_at + 1))


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("all", tuple(KINDS)),
        ("eof,reset", ("reset", "eof")),
        (" stall ,", ("stall",)),
        ("eof,all", tuple(KINDS)),
    ],
)
def test_faults_are_chosen_by_name(text: str, kinds: tuple[str, ...]) -> None:
    assert chosen(text) == kinds


@pytest.mark.parametrize("text", ["rest", "", ",", "reset,;eof", "ALL"])
def test_an_unknown_fault_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(
        UnknownKind, match="allowed: all, or a comma-separated list of none, reset, disconnect"
    ):
        chosen(text)


def test_the_help_names_every_fault() -> None:
    assert all(f"  {name} " in help_text() for name in (*ENGINE, *CONTINUATION, *CLIENT))


@pytest.mark.parametrize("eol", ["lf", "crlf", "cr"])
def test_a_dressed_answer_reads_the_same(eol: str) -> None:
    framing = Framing(eol=eol, space=False, bom=True, comments=0.5, pieces=9, padding=30)
    rng = Random(3)
    dressed = [framing.dress(one, rng, first=not n) for n, one in enumerate(WHOLE)]
    assert dressed[0] != WHOLE[0]
    assert read(b"".join(dressed)).said == read(b"".join(WHOLE)).said
    for one in dressed:
        pieces = framing.split(one, rng)
        assert b"".join(pieces) == one
        assert max(map(len, pieces)) <= 9


def test_plain_framing_changes_nothing() -> None:
    assert PLAIN.dress(DONE, Random(1), first=True) == DONE
    assert PLAIN.split(DONE, Random(1)) == [DONE]
