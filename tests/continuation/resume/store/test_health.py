"""How Redis answers: in time, late, or not at all."""

from __future__ import annotations

import logging

import pytest

from continuation.resume.store.redis.health import STEADY_SECONDS, Condition, Health


def test_a_redis_that_was_never_in_trouble_has_been_well_for_as_long_as_one_wants() -> None:
    health = Health()
    assert (health.condition, health.is_late, health.is_away) == (Condition.WELL, False, False)
    assert health.has_been_well(1.0, 1000.0)


def test_a_late_one_is_well_again_when_it_has_been_in_time_for_some_seconds() -> None:
    health = Health()
    health.mark_late(10.0)
    assert (health.is_late, health.is_away) == (True, False)
    assert not health.has_been_well(1000.0)
    health.mark_well(20.0)
    assert not health.is_late
    assert not health.has_been_well(20.0 + STEADY_SECONDS / 2)
    assert health.has_been_well(20.0 + STEADY_SECONDS)


def test_that_it_answers_in_time_while_it_is_well_says_nothing_new() -> None:
    health = Health()
    health.mark_well(5.0)
    assert health.troubled_at is None


def test_one_that_is_away_stays_so_when_it_is_late_too() -> None:
    health = Health()
    health.mark_away(1.0, "refused")
    health.mark_late(2.0)
    assert (health.condition, health.troubled_at) == (Condition.AWAY, 2.0)
    health.mark_well(3.0)
    assert health.condition is Condition.WELL


def test_only_that_it_goes_away_and_comes_back_is_logged_once_each(caplog: pytest.LogCaptureFixture) -> None:
    health = Health()
    with caplog.at_level(logging.INFO):
        health.mark_late(1.0)
        health.mark_well(2.0)
        assert caplog.messages == []
        health.mark_away(3.0, "refused")
        health.mark_away(4.0, "refused")
        health.mark_well(5.0)
        health.mark_well(6.0)
    away, back = caplog.messages
    assert " is away" in away
    assert "refused" in away
    assert " is back" in back
