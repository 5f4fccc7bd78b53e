"""The audit writer against a real database: threads, batches, and what goes wrong with them."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connection, connections
from django.utils import timezone

from continuation.audit import retention, rows
from continuation.audit import writer as audit
from continuation.lifecycle import Process
from continuation.models import ContinuationEvent
from continuation.splice.record import StreamRecord
from continuation.vocabulary import Case, Decision, Failure, Outcome, Reason, Route
from strategies.models import Strategy
from tests.continuation.audit.databases import OwnDatabase, own_database
from tests.harness.gateway import Database, migrated_template

TABLE = ContinuationEvent._meta.db_table
LONG = 20.0  # seconds until a test is given up; none waits so long


def note(request_id: str = "r-1", **values: Any) -> StreamRecord:
    return StreamRecord(created_at=timezone.now(), request_id=request_id, requested_model="m", **values)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Database:
    return migrated_template(tmp_path_factory.mktemp("database"))


@pytest.fixture(autouse=True)
def database(template: Database, tmp_path: Path, django_db_blocker: Any) -> Iterator[OwnDatabase]:
    """Of its own for each test, for all threads."""
    own = own_database(template, tmp_path)
    usual, usual_settings = connections["default"], connections.settings["default"]
    connections.settings["default"] = {**usual_settings, "NAME": own.name}
    connections["default"] = connections.create_connection("default")
    with django_db_blocker.unblock():
        yield own
    connection.close()
    connections["default"], connections.settings["default"] = usual, usual_settings
    own.drop()


@pytest.fixture
def writer(database: OwnDatabase) -> Iterator[Callable[..., audit.AuditWriter]]:
    """writer(**options): one that is quick, and ended with the test."""
    started: list[audit.AuditWriter] = []

    def quick(**options: Any) -> audit.AuditWriter:
        started.append(audit.AuditWriter(**{"gather": 0.0, "first_retry": 0.01, **options}))
        return started[-1]

    yield quick
    for one in started:
        one.stop()
        one.join(LONG)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Nothing is inserted until it is set."""
    opened = threading.Event()
    insert = audit._insert

    def insert_when_open(events: Any) -> None:
        opened.wait(LONG)
        insert(events)

    monkeypatch.setattr(audit, "_insert", insert_when_open)
    yield opened
    opened.set()


@pytest.fixture
def database_away(database: OwnDatabase) -> Callable[[], None]:
    """The database cannot be opened until the function is called."""
    connection.close()
    database.take_away()
    return database.bring_back


@pytest.fixture
def refusing_row(database: OwnDatabase) -> Callable[..., None]:
    """refusing_row(as_if_away=False): from now on the database refuses the rows of requests `bad...`."""

    def create(*, as_if_away: bool = False) -> None:
        for statement in database.refuse(TABLE, as_if_away):
            execute(statement)

    return create


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def request_ids() -> list[str]:
    return list(ContinuationEvent.objects.order_by("pk").values_list("request_id", flat=True))


# -- the row ---------------------------------------------------------------------------------------


def test_the_model_has_the_fields_of_the_record() -> None:
    names = {field.attname for field in ContinuationEvent._meta.concrete_fields} - {"id"}
    assert names == {field.name for field in fields(StreamRecord)}


def test_a_record_becomes_a_row_with_the_same_values(
    writer: Callable[..., audit.AuditWriter], settings: Any
) -> None:
    settings.AUDIT_STORE_TEXT = True
    strategy = Strategy.objects.create(name="of-the-test", model="of-the-test")
    given = StreamRecord(
        created_at=datetime(2025, 3, 1, 12, 30, tzinfo=UTC),
        request_id="r-1",
        requested_model="house-model",
        completion_id="chatcmpl-1",
        strategy_id=strategy.pk,
        strategy_name="of-the-test",
        engine="vllm",
        failure=Failure.DISCONNECT,
        case=Case.CONTENT_DONE,
        decision=Decision.CONTINUE,
        route=Route.CHAT_CONTINUE,
        outcome=Outcome.FAILED,
        reason=Reason.LEG2_REFUSED,
        reasoning_chars=10,
        content_chars=20,
        tokens_recovered=7,
        tokens_exact=True,
        budget_before=100,
        budget_after=93,
        idle_seconds=0.25,
        seam_gap_seconds=0.5,
        leg1_seconds=1.5,
        leg2_seconds=2.5,
        total_seconds=4.5,
        leg2_status=400,
        leg2_message="no",
        usage_before={"prompt_tokens": 3, "details": {"cached": None}},
        usage_after={"prompt_tokens": 3},
        partial_text="Gr\u00fc\u00dfe \U0001f600",
        continued_text="and on",
        extra={"attempt": [1, 2.5, True, None, "x"]},
    )
    one = writer()
    one.record(given)
    assert one.flush(LONG)
    row = ContinuationEvent.objects.get()
    assert {f.name: getattr(row, f.name) for f in fields(given)} == {
        f.name: getattr(given, f.name) for f in fields(given)
    }
    row.full_clean()  # every word is one of the choices


def test_text_is_not_stored_unless_the_setting_says_so(
    writer: Callable[..., audit.AuditWriter], settings: Any
) -> None:
    settings.AUDIT_STORE_TEXT = False
    one = writer()
    one.record(note(partial_text="private", continued_text="words"))
    assert one.flush(LONG)
    row = ContinuationEvent.objects.get()
    assert (row.partial_text, row.continued_text) == ("", "")


@pytest.mark.parametrize(
    "given, stored",
    [
        ("plain", "plain"),
        ("a\0b", "a\N{REPLACEMENT CHARACTER}b"),
        ("half \ud83d", "half \N{REPLACEMENT CHARACTER}"),
        ("\ude00 half", "\N{REPLACEMENT CHARACTER} half"),
        ("\ud83d\ude00", "\U0001f600"),
        ("\ufeffbom", "\ufeffbom"),
        ("x" * 200, "x" * 200),
        ("x" * 201, "x" * 199 + "…"),
        (None, ""),
        (5, "5"),
    ],
)
def test_text_is_stored_as_any_database_takes_it(given: Any, stored: str) -> None:
    event = rows.event_of(note(completion_id=given))
    event.save()
    event.refresh_from_db()
    assert event.completion_id == stored


@pytest.mark.parametrize(
    "given, stored",
    [
        ("first\nthe whole conversation", "first"),
        ("\n  first  \r\nsecond", "first"),
        ("first\u2028second", "first"),
        ("y" * 5000, "y" * 199 + "…"),
        ("\n\n", ""),
    ],
)
def test_of_the_engines_message_one_line_of_200_characters_is_stored(given: str, stored: str) -> None:
    assert rows.event_of(note(leg2_message=given)).leg2_message == stored


def test_numbers_that_no_column_holds_are_stored_as_far_as_possible() -> None:
    event = rows.event_of(
        note(
            budget_before=10**30,
            budget_after=-(10**30),
            idle_seconds=float("nan"),
            seam_gap_seconds=float("inf"),
            total_seconds=10**400,
            tokens_recovered=None,
            leg2_status="503",
        )
    )
    event.save()
    event.refresh_from_db()
    assert event.budget_before == 2**63 - 1
    assert event.budget_after == -(2**63 - 1)
    assert (event.idle_seconds, event.seam_gap_seconds, event.total_seconds) == (None, None, None)
    assert event.tokens_recovered == 0
    assert event.leg2_status is None


def test_json_that_no_column_holds_is_stored_as_far_as_possible() -> None:
    nested: Any = "bottom"
    for _ in range(5000):
        nested = [nested]
    event = rows.event_of(
        note(
            usage_before={
                "nan": float("nan"),
                "huge": 10**5000,
                "nul\0": "\ud83d",
                5: {1},
                "deep": nested,
            },
            usage_after={"many": ["word"] * 100_000},
            extra=None,
        )
    )
    event.save()
    event.refresh_from_db()
    assert event.usage_before["nan"] is None
    assert event.usage_before["huge"] == 2**63 - 1
    assert event.usage_before["nul\N{REPLACEMENT CHARACTER}"] == "\N{REPLACEMENT CHARACTER}"
    assert event.usage_before["5"] == "{1}"
    assert "bottom" not in str(event.usage_before["deep"])
    assert list(event.usage_after) == ["left_out"]
    assert event.extra == {}


def test_a_time_without_a_zone_is_taken_for_utc() -> None:
    row = StreamRecord(created_at=datetime(2025, 1, 1), request_id="r", requested_model="m")
    assert rows.event_of(row).created_at == datetime(2025, 1, 1, tzinfo=UTC)


# -- the queue -------------------------------------------------------------------------------------


def test_the_thread_starts_with_the_first_record_and_keeps_no_process_alive(
    writer: Callable[..., audit.AuditWriter],
) -> None:
    one = writer()
    assert one._thread is None
    one.record(note())
    assert one._thread is not None
    assert one._thread.name == "continuation-audit"
    assert one._thread.daemon
    assert one.flush(LONG)


def test_rows_are_written_in_order_and_in_batches(
    writer: Callable[..., audit.AuditWriter], gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    insert = audit._insert
    monkeypatch.setattr(audit, "_insert", lambda events: (sizes.append(len(events)), insert(events)))
    one = writer()
    one.record(note("r-0"))
    until(lambda: sizes == [1])
    for number in range(1, 451):
        one.record(note(f"r-{number}"))
    gate.set()
    assert one.flush(LONG)
    assert sizes == [1, 200, 200, 50]
    assert request_ids() == [f"r-{number}" for number in range(451)]
    assert one.counts() == audit.Counts(written=451, lost=0, queued=0)


def test_rows_that_come_within_a_moment_are_written_together(
    writer: Callable[..., audit.AuditWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    insert = audit._insert
    monkeypatch.setattr(audit, "_insert", lambda events: (sizes.append(len(events)), insert(events)))
    one = writer(gather=LONG)
    for number in range(20):
        one.record(note(f"r-{number}"))
    assert one.flush(LONG)  # which ends the moment early
    assert sizes == [20]


def test_a_full_queue_costs_rows_which_are_counted_and_logged_once(
    writer: Callable[..., audit.AuditWriter], gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    one = writer(rows=5)
    one.record(note("in hand"))
    until(lambda: not one._queue)
    for number in range(12):
        one.record(note(f"r-{number}"))
    assert one.counts() == audit.Counts(written=0, lost=7, queued=6)
    gate.set()
    assert one.flush(LONG)
    assert one.counts() == audit.Counts(written=6, lost=7, queued=0)
    assert request_ids() == ["in hand", "r-0", "r-1", "r-2", "r-3", "r-4"]
    until(lambda: len(caplog.messages) == 2)
    assert caplog.messages == [
        "the audit queue is full: rows are being lost",
        "the audit queue was full: 7 rows were lost",
    ]


def test_the_text_of_all_rows_that_wait_is_bounded(
    writer: Callable[..., audit.AuditWriter], gate: threading.Event, settings: Any
) -> None:
    settings.AUDIT_STORE_TEXT = True
    one = writer(characters=100)
    one.record(note("in hand", partial_text="x" * 100))
    until(lambda: not one._queue)
    one.record(note("fits", partial_text="x" * 60, continued_text="x" * 40))
    one.record(note("too much", partial_text="x"))
    one.record(note("no text"))
    gate.set()
    assert one.flush(LONG)
    assert request_ids() == ["in hand", "fits", "no text"]
    assert one.counts().lost == 1


def test_record_does_not_wait_for_a_database_that_hangs(
    writer: Callable[..., audit.AuditWriter], gate: threading.Event
) -> None:
    one = writer()
    began = time.monotonic()
    for number in range(1000):
        one.record(note(f"r-{number}"))
    assert time.monotonic() - began < LONG / 2  # milliseconds when nobody else is at work
    assert not one.flush(0.01)
    gate.set()
    assert one.flush(LONG)


@pytest.mark.parametrize("garbage", [None, "text", object(), {"request_id": "r"}])
def test_record_never_raises(
    writer: Callable[..., audit.AuditWriter], garbage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    one = writer()
    one.record(garbage)
    assert one.counts() == audit.Counts(written=0, lost=1, queued=0)
    assert caplog.messages == ["an audit row is lost"]


def test_flush_has_nothing_to_wait_for_when_nothing_was_recorded(
    writer: Callable[..., audit.AuditWriter],
) -> None:
    assert writer().flush(0)


def test_the_process_has_one_writer(process: Process) -> None:
    process.parts.audit.record(note("r-1"))
    assert process.audit.flush(LONG)
    assert process.audit.counts() == audit.Counts(written=1, lost=0, queued=0)
    assert request_ids() == ["r-1"]


# -- what goes wrong -------------------------------------------------------------------------------


def test_a_strategy_deleted_meanwhile_does_not_lose_the_row(writer: Callable[..., audit.AuditWriter]) -> None:
    kept = Strategy.objects.create(name="kept", model="kept")
    deleted = Strategy.objects.create(name="deleted", model="deleted")
    rows = [
        note("r-1", strategy_id=kept.pk, strategy_name="kept"),
        note("r-2", strategy_id=deleted.pk, strategy_name="deleted"),
        note("r-3"),
    ]
    deleted.delete()
    one = writer(gather=LONG)
    for row in rows:
        one.record(row)
    assert one.flush(LONG)
    stored = list(
        ContinuationEvent.objects.order_by("pk").values_list("request_id", "strategy", "strategy__name")
    )
    assert stored == [("r-1", kept.pk, "kept"), ("r-2", None, None), ("r-3", None, None)]
    assert ContinuationEvent.objects.get(request_id="r-2").strategy_name == "deleted"


def test_deleting_a_strategy_keeps_its_events(writer: Callable[..., audit.AuditWriter]) -> None:
    strategy = Strategy.objects.create(name="old", model="old")
    rows.event_of(note(strategy_id=strategy.pk, strategy_name="old")).save()
    strategy.delete()
    event = ContinuationEvent.objects.get()
    assert (event.strategy, event.strategy_name) == (None, "old")


def test_a_row_that_the_database_refuses_does_not_take_its_batch_with_it(
    writer: Callable[..., audit.AuditWriter],
    refusing_row: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusing_row()
    one = writer(gather=LONG)
    for name in ("r-1", "bad", "r-2"):
        one.record(note(name))
    assert not one.flush(LONG)
    assert request_ids() == ["r-1", "r-2"]
    assert one.counts() == audit.Counts(written=2, lost=1, queued=0)
    assert caplog.messages == ["the audit row of request bad is lost: IntegrityError: not this one"]


def test_a_row_that_only_looks_like_a_dead_database_is_given_up_after_some_tries(
    writer: Callable[..., audit.AuditWriter],
    refusing_row: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audit, "LAST_RETRY_SECONDS", 0.02)
    refusing_row(as_if_away=True)
    one = writer(gather=LONG)
    for name in ("bad-1", "bad-2", "bad-3", "bad-4", "r-1"):
        one.record(note(name))
    deadline = time.monotonic() + LONG
    number = 1
    while one.counts().lost < 4:  # others have to come by, to show that the database is there
        number += 1
        one.record(note(f"r-{number}"))
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert one.flush(LONG)
    assert sorted(request_ids(), key=lambda name: int(name[2:])) == [f"r-{n}" for n in range(1, number + 1)]
    assert one.counts() == audit.Counts(written=number, lost=4, queued=0)


def test_rows_wait_for_a_database_that_is_away(
    writer: Callable[..., audit.AuditWriter],
    database: OwnDatabase,
    database_away: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "continuation.audit.writer")
    one = writer(gather=LONG)
    for number in range(3):
        one.record(note(f"r-{number}"))
    assert not one.flush(0.3)
    one.record(note("r-3"))
    assert one.counts() == audit.Counts(written=0, lost=0, queued=4)
    database_away()
    assert one.flush(LONG)
    assert sorted(request_ids()) == ["r-0", "r-1", "r-2", "r-3"]
    until(lambda: len(caplog.messages) == 2)
    away, again = caplog.messages
    assert away.startswith("the audit cannot be written now, trying again: OperationalError: ")
    assert database.when_away in away
    assert again == "the audit is written again"


def test_while_the_database_is_away_the_queue_stays_bounded(
    writer: Callable[..., audit.AuditWriter], database_away: Callable[[], None]
) -> None:
    one = writer(rows=300)
    for number in range(1000):
        one.record(note(f"r-{number}"))
    until(lambda: one._in_hand == audit.BATCH_ROWS)
    counts = one.counts()
    assert counts.queued <= 300 + audit.BATCH_ROWS
    assert counts.queued + counts.lost == 1000
    database_away()
    assert one.flush(LONG)
    assert one.counts() == audit.Counts(written=counts.queued, lost=counts.lost, queued=0)


def test_a_flush_does_not_wait_for_a_long_pause_between_tries(
    writer: Callable[..., audit.AuditWriter],
    database_away: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = writer(first_retry=LONG * 10)
    one.record(note())
    until(lambda: bool(caplog.messages))
    database_away()
    assert one.flush(LONG)


def test_a_flush_that_comes_while_a_try_is_failing_does_not_wait_for_the_pause_either(
    writer: Callable[..., audit.AuditWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    insert = audit._insert

    def fail_once(events: Any) -> None:
        monkeypatch.setattr(audit, "_insert", insert)
        until(lambda: bool(one._flushing))
        raise OperationalError("away")

    monkeypatch.setattr(audit, "_insert", fail_once)
    one = writer(first_retry=LONG * 10)
    one.record(note())
    until(lambda: bool(one._in_hand))
    assert one.flush(LONG)
    assert request_ids() == ["r-1"]


def test_a_fault_of_the_writer_costs_its_batch_and_not_the_thread(
    writer: Callable[..., audit.AuditWriter],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    insert = audit._insert

    def fail_once(events: Any) -> None:
        monkeypatch.setattr(audit, "_insert", insert)
        raise RuntimeError("a bug")

    monkeypatch.setattr(audit, "_insert", fail_once)
    one = writer(gather=LONG)  # until the flush, which is told only of what is lost while it waits
    one.record(note("r-1"))
    assert not one.flush(LONG)
    one.record(note("r-2"))
    assert one.flush(LONG)
    assert request_ids() == ["r-2"]
    assert one.counts() == audit.Counts(written=1, lost=1, queued=0)
    assert caplog.messages == ["the audit writer failed: 1 rows are lost"]


def test_an_attempt_that_failed_at_its_commit_can_be_repeated() -> None:
    event = rows.event_of(note())
    audit._insert([event])
    ContinuationEvent.objects.all().delete()
    rows.event_of(note("has taken the key")).save()
    audit._insert([event])
    assert request_ids() == ["has taken the key", "r-1"]


# -- retention -------------------------------------------------------------------------------------


def test_the_thread_prunes_what_is_older_than_the_retention(
    writer: Callable[..., audit.AuditWriter], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.AUDIT_RETENTION_DAYS = 7
    monkeypatch.setattr(retention, "PRUNE_ROWS", 2)
    for days in (1, 6, 8, 9, 10, 300):
        event = rows.event_of(note(f"{days} days"))
        event.created_at -= timedelta(days=days)
        event.save()
    one = writer(prune_first=0.0)
    one.start()
    until(lambda: one._prune_at > time.monotonic() + audit.PRUNE_SECONDS / 2)
    assert sorted(request_ids()) == ["1 days", "6 days"]


def test_a_prune_that_fails_is_logged_and_tried_again_later(
    writer: Callable[..., audit.AuditWriter],
    database: OwnDatabase,
    database_away: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = writer(prune_first=0.0)
    one._prune()
    database_away()
    (away,) = caplog.messages
    assert away.startswith("old audit rows cannot be pruned: OperationalError: ")
    assert database.when_away in away
    assert one._prune_at > time.monotonic() + audit.PRUNE_SECONDS / 2


def test_a_retention_longer_than_the_calendar_keeps_everything() -> None:
    rows.event_of(note()).save()
    assert retention.prune(10**9, most=10) == 0
    assert request_ids() == ["r-1"]
