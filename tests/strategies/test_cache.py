"""The book in memory: immediate in its own process, soon in others, and the last good one on any trouble."""

import contextlib
import logging
import threading
import time
from collections.abc import Iterator

import pytest
from django.db import OperationalError, connection, transaction
from django.db.models import F
from django.utils import timezone

from strategies import cache
from strategies.cache import startup_warnings
from strategies.engines import Engine
from strategies.models import Strategy, StrategyRevision
from strategies.types import CompiledStrategy, StrategyBook


def names(book: StrategyBook) -> set[str]:
    return {row.name for row in book.strategies}


def wait_for(condition, seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it has not come true"
        time.sleep(0.005)


def test_before_the_first_load_the_book_is_empty():
    assert cache.current() == StrategyBook()
    assert not cache.is_loaded()
    assert not cache.wait_until_loaded(0)


@pytest.mark.django_db
def test_a_load_brings_the_enabled_rows_and_the_revision():
    Strategy.objects.filter(name="kimi-k2").update(enabled=False)
    assert cache.load_once()
    assert names(cache.current()) == set(Strategy.objects.filter(enabled=True).values_list("name", flat=True))
    assert "kimi-k2" not in names(cache.current())
    assert cache.current().revision == StrategyRevision.objects.get().counter
    assert cache.is_loaded()
    assert cache.wait_until_loaded(0)


@pytest.mark.django_db
def test_the_generic_row_is_the_books_generic():
    row = Strategy.objects.get(name="generic")
    row.open_token = "[THINK]"
    row.save()
    cache.refresh()
    assert cache.current().generic.open == "[THINK]"
    assert cache.current().generic.pk == row.pk


@pytest.mark.django_db
def test_reading_the_book_asks_no_database(django_assert_num_queries):
    cache.refresh()
    with django_assert_num_queries(0):
        cache.current().select("any", "kimi-k2", "vllm")


@pytest.mark.django_db
def test_a_refresh_without_a_change_costs_one_query_and_keeps_the_book(django_assert_num_queries):
    cache.refresh()
    book = cache.current()
    with django_assert_num_queries(1):
        assert cache.refresh()
    assert cache.current() is book


CHANGES = {
    "save": lambda: Strategy.objects.create(name="new", model="new"),
    "update": lambda: Strategy.objects.filter(name="kimi-k2").update(name="new"),
    "bulk_create": lambda: Strategy.objects.bulk_create([Strategy(name="new", model="new")]),
}


@pytest.mark.django_db
@pytest.mark.parametrize("how", CHANGES)
def test_a_change_is_live_as_soon_as_it_is_committed(how, django_capture_on_commit_callbacks):
    cache.refresh()
    with django_capture_on_commit_callbacks(execute=True):
        CHANGES[how]()
        assert "new" not in names(cache.current())
    assert "new" in names(cache.current())


@pytest.mark.django_db
@pytest.mark.parametrize(
    "rows", [lambda: Strategy.objects.get(name="kimi-k2"), lambda: Strategy.objects.all()]
)
def test_a_deletion_is_live_as_soon_as_it_is_committed(rows, django_capture_on_commit_callbacks):
    cache.refresh()
    with django_capture_on_commit_callbacks(execute=True):
        rows().delete()
    assert "kimi-k2" not in names(cache.current())


@pytest.mark.django_db(transaction=True)
def test_a_change_that_is_rolled_back_is_never_seen():
    cache.refresh()
    with transaction.atomic():
        Strategy.objects.create(name="new", model="new")
        transaction.set_rollback(True)
    cache.refresh()
    assert "new" not in names(cache.current())
    Strategy.objects.create(name="new", model="new")
    assert "new" in names(cache.current())


@pytest.mark.django_db
def test_a_row_that_does_not_compile_leaves_the_last_good_book(caplog):
    cache.refresh()
    good = cache.current()
    Strategy.objects.filter(name="kimi-k2").update(markers="</think>")
    for _ in range(3):
        assert not cache.refresh()
    assert cache.current() is good
    assert cache.is_loaded()
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "'kimi-k2'" in errors[0]
    assert "no list of texts" in errors[0]
    Strategy.objects.filter(name="kimi-k2").update(markers=["</think>"])
    assert cache.refresh()
    assert cache.current() is not good


@pytest.mark.django_db
def test_at_the_first_load_a_row_that_does_not_compile_is_left_out(caplog):
    Strategy.objects.filter(name="kimi-k2").update(engine="tgi")
    assert cache.refresh()
    assert "qwen3.6-vllm" in names(cache.current())
    assert "kimi-k2" not in names(cache.current())
    assert "'kimi-k2' does not compile" in caplog.text


@contextlib.contextmanager
def without_a_table() -> Iterator[None]:
    """For all connections."""
    table = StrategyRevision._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME TO elsewhere")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE elsewhere RENAME TO {table}")


# In no transaction, as in service: PostgreSQL refuses all that follows on a mistake in one.
@pytest.mark.django_db(transaction=True)
def test_a_database_without_its_tables_leaves_the_last_good_book_and_is_logged_once(caplog):
    cache.refresh()
    good = cache.current()
    with without_a_table():
        for _ in range(5):
            assert not cache.refresh()
        assert cache.current() is good
        assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == 1
    Strategy.objects.create(name="new", model="new")
    assert cache.refresh()
    assert "new" in names(cache.current())


@pytest.mark.django_db(transaction=True)
def test_without_a_database_at_the_start_the_book_stays_empty_and_not_loaded():
    with without_a_table():
        assert not cache.load_once()
    assert not cache.is_loaded()
    assert cache.current() == StrategyBook()


@pytest.mark.django_db
def test_a_counter_that_was_reset_to_the_same_number_is_noticed():
    cache.refresh()
    was = StrategyRevision.objects.get().counter
    Strategy.objects.filter(name="kimi-k2").update(enabled=False)
    StrategyRevision.objects.update(counter=was)
    cache.refresh()
    assert "kimi-k2" not in names(cache.current())


def _change_as_another_process_would() -> None:
    """Raw updates on this thread's connection: no signal, no refresh. A locked table is tried again."""
    for _ in range(1000):
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute(
                    "UPDATE strategies_strategy SET notes = notes, thinking_key = 'from_elsewhere'"
                )
                StrategyRevision.objects.update(counter=F("counter") + 1, changed_at=timezone.now())
            return
        except OperationalError:
            time.sleep(0.005)
    raise AssertionError("the table stayed locked")


@pytest.mark.django_db(transaction=True)
def test_the_polling_thread_sees_what_another_connection_has_changed():
    Strategy.objects.create(name="mine", model="mine")
    cache.start(interval=0.02)
    assert cache.wait_until_loaded(15)
    revision = cache.current().revision
    _change_as_another_process_would()
    wait_for(lambda: cache.current().revision > revision)
    assert {row.thinking_key for row in cache.current().strategies} == {"from_elsewhere"}


@pytest.mark.django_db(transaction=True)
def test_one_named_thread_polls_however_often_it_is_started_and_stops_at_once():
    def polling() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == cache.THREAD_NAME]

    cache.start(interval=3600)
    cache.start(interval=3600)
    assert len(polling()) == 1
    assert polling()[0].daemon
    assert cache.wait_until_loaded(15)
    begun = time.monotonic()
    cache.stop()
    assert not polling()
    assert time.monotonic() - begun < 5
    cache.start(interval=3600)
    assert len(polling()) == 1


BOOK = StrategyBook.of(
    [
        CompiledStrategy(name="q-vllm", model="qwen*", engine=Engine.VLLM),
        CompiledStrategy(name="k2", model="kimi-k2*"),
    ]
)


@pytest.mark.parametrize(
    "model, engine, says",
    [
        ("", "", None),
        ("qwen3", "vllm", None),
        ("kimi-k2", "sglang", None),
        ("llama", "vllm", "'llama' with CONTINUATION_ENGINE 'vllm' matches no enabled strategy"),
        ("llama", "", "'llama' matches no enabled strategy"),
        ("qwen3", "", "Set CONTINUATION_ENGINE to vllm or sglang"),
        ("qwen3", "sglang", "'q-vllm', for vllm, is used"),
    ],
)
def test_the_start_warns_of_a_choice_that_may_be_wrong(model, engine, says):
    warnings = startup_warnings(BOOK, model, engine)
    assert len(warnings) == (says is not None)
    assert says is None or says in warnings[0]


@pytest.mark.django_db
def test_the_warning_is_logged_once(settings, caplog):
    settings.CONTINUATION_MODEL = "never-heard-of"
    cache.refresh()
    Strategy.objects.create(name="new", model="new")
    cache.refresh()
    assert caplog.text.count("matches no enabled strategy") == 1
