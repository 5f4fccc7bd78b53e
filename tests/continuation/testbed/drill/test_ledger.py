"""Audit rows against what was due, trends, and what is shown."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from continuation.testbed.demo.screen import Screen
from continuation.testbed.drill import ledger, report
from continuation.testbed.drill.campaign import Choices, Result, Wrong
from continuation.testbed.drill.judging import DrillOutcome
from continuation.testbed.drill.ledger import COLUMNS, AuditLedger
from continuation.testbed.drill.sampling import Latencies, Rates, Sample, process, trends

DUE = {"outcome": "rescued", "failure": "eof", "content_chars": 9}


def row(request_id: str, **told: Any) -> dict[str, Any]:
    return dict.fromkeys(COLUMNS) | {"request_id": request_id, "decision": "continue"} | DUE | told


def expecting(due: dict[str, Any] | None, **more: bool) -> AuditLedger:
    one = AuditLedger(Path("nowhere"))
    one.expect("r-1", 1, due, **more)
    return one


def test_a_row_that_says_what_was_due_is_right() -> None:
    one = expecting(DUE)
    assert one.waits
    assert list(one.compare([row("r-1")])) == []
    assert not one.waits
    assert one.matched == 1


def test_a_row_may_come_before_its_stream_was_judged() -> None:
    one = AuditLedger(Path("nowhere"))
    assert list(one.compare([row("r-1")])) == []
    one.expect("r-1", 1, DUE)
    assert list(one.compare([])) == []
    assert one.matched == 1


def test_a_row_that_says_something_else_is_wrong() -> None:
    found = list(expecting(DUE).compare([row("r-1", outcome="failed", content_chars=8)]))
    assert found == [
        (1, "audit row: outcome: wanted 'rescued', got 'failed'; content_chars: wanted 9, got 8")
    ]


def test_a_row_that_nobody_needed_is_wrong() -> None:
    [(number, told)] = expecting(None).compare([row("r-1")])
    assert number == 1
    assert told.startswith("an audit row for a stream that needed none: outcome rescued, failure eof")


def test_two_rows_for_one_stream_are_wrong() -> None:
    one = AuditLedger(Path("nowhere"))
    assert [told for _, told in one.compare([row("r-1"), row("r-1")])] == ["two audit rows for r-1"]


def test_a_row_that_does_not_come_is_wrong_only_when_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = expecting(DUE)
    assert list(one.compare([])) == []
    monkeypatch.setattr(ledger, "PATIENCE", -1.0)
    assert [number for number, _ in one.compare([])] == [1]
    assert [number for number, _ in expecting(DUE).compare([], final=True)] == [1]


def test_the_row_of_a_stream_that_is_wrong_already_is_kept_to_be_looked_at() -> None:
    one = expecting(DUE, decides=False)
    assert list(one.compare([row("r-1", outcome="failed")])) == []
    assert one.of_wrong[1]["outcome"] == "failed"
    assert list(expecting(DUE, decides=False).compare([], final=True)) == []


def test_a_row_of_a_stream_that_never_was_is_wrong_in_the_end() -> None:
    one = AuditLedger(Path("nowhere"))
    assert list(one.compare([row("r-9")])) == []
    assert [told for _, told in one.compare([], final=True)] == [
        "an audit row for r-9, which ended before it was judged"
    ]


# -- samples -----------------------------------------------------------------------------------------


def sample(at: float, memory: float | None, *, steady: bool = True, tasks: int | None = None) -> Sample:
    return Sample(at, steady, memory, 50, 3, tasks, None, 9, int(at), 0, {"gap_p50_ms": 1.0})


def verdicts(samples: list[Sample]) -> dict[str, str]:
    return {trend.name: trend.verdict for trend in trends(samples)}


def test_the_last_quarter_is_compared_with_the_first() -> None:
    flat = [sample(n, 100 + n % 3) for n in range(40)]
    assert verdicts(flat) == {"memory_mb": "flat", "descriptors": "flat", "tasks": "not measured"}
    assert verdicts([sample(n, 100 + n) for n in range(40)])["memory_mb"] == "GROWS"
    assert verdicts([sample(n, 100 - n) for n in range(40)])["memory_mb"] == "falls"


def test_only_the_time_with_all_streams_open_counts() -> None:
    ramp = [sample(n, 10 * n, steady=False) for n in range(10)]
    steady = [sample(n, 100) for n in range(10, 40)]
    assert verdicts([*ramp, *steady, *ramp])["memory_mb"] == "flat"


def test_a_few_samples_say_nothing() -> None:
    assert verdicts([sample(n, 100 + 9 * n) for n in range(11)])["memory_mb"] == "not measured"


def test_latencies_are_told_in_milliseconds_and_start_anew() -> None:
    told = Latencies()
    for n in range(1, 101):
        told.add(n / 1000, [n / 100], None)
    taken = told.taken()
    assert (taken["first_p50_ms"], taken["gap_p99_ms"], taken["seam_p50_ms"]) == (50.0, 990.0, None)
    assert told.taken()["first_p50_ms"] is None


def test_this_process_can_be_measured_and_others_may_not_be_there() -> None:
    assert (process(os.getpid()).memory_mb or 0) > 5
    assert (process(os.getpid()).descriptors or 0) > 2
    assert process(2**22 + 1).memory_mb is None
    assert process(None).descriptors is None


# -- what is shown -----------------------------------------------------------------------------------


def shown(result: Result) -> str:
    out: list[str] = []
    report.show(result, Screen(out.append, 100, colour=False))
    return "".join(out)


def result(**more: Any) -> Result:
    told = Result(Choices(seed=7, kinds=("reset", "eof"), **more), seconds=61)
    for kind, outcome in (
        ("reset", DrillOutcome.RESCUED),
        ("reset", DrillOutcome.FAILED),
        ("eof", DrillOutcome.RESCUED),
    ):
        told.note(kind, outcome)
    return told


def test_the_table_counts_outcomes_by_kind() -> None:
    assert report.table(result()) == [
        ["fault", "streams", *map(str, DrillOutcome)],
        ["reset", "2", "-", "1", "-", "1", "-", "-", "-"],
        ["eof", "1", "-", "1", "-", "-", "-", "-", "-"],
        ["all", "3", "-", "2", "-", "1", "-", "-", "-"],
    ]
    assert "3 streams in 1:01, seed 7: 0 wrong" in shown(result())


def test_at_most_twenty_wrong_ones_are_shown_each_with_how_to_see_it_again() -> None:
    told = result()
    for number in range(25):
        told.add(
            Wrong(number, "eof", f"drill-7-{number}", "leg 1: eof", ("content, character 4",), ("leg 1",))
        )
    told.rows[3] = row("drill-7-3", outcome="failed")
    text = shown(told)
    assert text.count("content, character 4") == 20
    assert "again: --seed 7 --only 19" in text
    assert "--only 20" not in text
    assert "... and 5 more" in text
    assert "audit row: outcome failed" in text
    assert "25 WRONG" in text


def test_what_grew_and_what_was_not_measured_is_named() -> None:
    told = result()
    told.samples = [sample(n, 100 + n) for n in range(40)]
    assert report.unsteady(told) == ["memory_mb: grew by 28.7%, allowed are 5%", "tasks: not measured"]


def test_progress_is_one_line_on_a_terminal_and_a_few_lines_elsewhere() -> None:
    assert result(minutes=2.0, total=300).share == pytest.approx(61 / 120)
    assert result(minutes=60.0, only=(4, 5, 6, 7)).share == pytest.approx(3 / 4)
    out: list[str] = []
    bar = report.Bar(out.append, 80, terminal=True)
    bar.show(result(), "starting", 0)
    bar.show(result(total=6, minutes=None), "", 2)
    bar.end()
    assert all(line.startswith("\r\x1b[K") and "\n" not in line and len(line) < 84 for line in out)
    assert "[############------------]  50%  3 streams, 2 open" in out[1]
    plain: list[str] = []
    bar = report.Bar(plain.append, 80, terminal=False)
    for _ in range(5):
        bar.show(result(total=6, minutes=None), "", 2)
    assert len(plain) == 1
    assert plain[0].endswith("\n")


def test_the_rate_is_that_of_the_last_seconds() -> None:
    now = [0.0]
    rates = Rates(lambda: now[0])
    for second in range(60):
        now[0] = float(second)
        rate = rates.per_second(second * 10 if second < 30 else 300 + (second - 30) * 2)
    assert rate == pytest.approx(2.0)


def test_overdue_rows_are_measured_from_the_end_of_their_stream() -> None:
    assert expecting(DUE).expected["r-1"].since <= time.monotonic()
