"""A running gateway and its database: what no column holds, a database that goes away, connections that stay open."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.e2e.asking import body
from tests.e2e.conftest import Chat, GatewayFor
from tests.e2e.operating import add_operator, log_in_with
from tests.harness.client import Stream, one_failed_ending, one_whole_answer
from tests.harness.gateway import EVENT_TABLE, Database, Gateway, copied
from tests.harness.postgres import PostgresDatabase, run_sql
from tests.harness.shapes import VLLM, VLLM_LEG2, ended, started
from tests.harness.upstream import Cut, Reply, Upstream, json_reply

EXPORT = "/admin/continuation/continuationevent/export/"
LONG = 30.0  # seconds until a test is given up
ROWS = 3_000
ROW_CHARACTERS = 5_000  # together more than all buffers between the gateway and a client hold
COPIES = f"""
    INSERT INTO {EVENT_TABLE}
    SELECT (jsonb_populate_record(NULL::{EVENT_TABLE}, to_jsonb(one) ||
        jsonb_build_object('id', 1000 + n, 'partial_text', repeat('x', {ROW_CHARACTERS})))).*
    FROM (SELECT * FROM {EVENT_TABLE} LIMIT 1) one, generate_series(1, {ROWS}) n
"""


def test_nul_characters_everywhere_cost_no_audit_row_of_the_stream_or_its_neighbours(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    one = gateway(AUDIT_STORE_TEXT="true")
    engine = VLLM.another("chatcmpl-\0", model="tiny\0")
    refused = json_reply({"error": {"message": "no\0", "type": "a\0b", "code": 400}}, "400 Bad Request")
    streams: list[Stream] = []
    for model in ("before", "ho\0use", "after"):
        upstream.script(Reply([*started(engine, ["r\0"], ["c\0 "]), Cut()]), refused)
        streams.append(chat(one, body(model=model, max_tokens=100)).read_rest())
        one_failed_ending(streams[-1], reasoning="r\0", content="c\0 ")
    rows = [one.event(stream.request_id) for stream in streams]
    assert [row["requested_model"] for row in rows] == ["before", "ho\ufffduse", "after"]
    assert {row["completion_id"] for row in rows} == {"chatcmpl-\ufffd"}
    assert {row["leg2_message"] for row in rows} == {"no\ufffd"}
    assert all("c\ufffd" in row["partial_text"] for row in rows)


def test_nul_characters_in_what_a_request_says_besides_cost_no_rescue_and_no_row(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    one = gateway()
    upstream.script(
        Reply([*started(VLLM, [], ["a"]), Cut()]),
        Reply([*started(VLLM_LEG2, [], ["b"]), *ended(VLLM_LEG2)]),
    )
    stream = chat(one, body(max_tokens=100, user="\0", stop=["\0"], metadata={"\0": "\0"})).read_rest()
    one_whole_answer(stream, reasoning="", content="ab", like=VLLM)
    assert one.event(stream.request_id)["outcome"] == "rescued"


# -- PostgreSQL alone ------------------------------------------------------------------------------


@contextlib.contextmanager
def away(database: PostgresDatabase) -> Iterator[None]:
    """Connections are cut, and new ones refused."""
    name = database.name
    run_sql(database.server, f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
    run_sql(
        database.server, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
    )
    try:
        yield
    finally:
        run_sql(database.server, f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


def connections(database: PostgresDatabase) -> list[str]:
    """What those that are open have asked last."""
    asked = "SELECT query FROM pg_stat_activity WHERE datname = %s"
    return [row["query"] for row in run_sql(database.server, asked, (database.name,))]


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.fixture(scope="module")
def own(
    session_upstream: Upstream, migrated: Database, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Gateway, PostgresDatabase]]:
    """A gateway on a database with an operator."""
    database = copied(migrated, tmp_path_factory.mktemp("own"))
    assert isinstance(database, PostgresDatabase)
    add_operator(database)
    settings = {
        "DOWNSTREAM_URL": session_upstream.url,
        "CONTINUATION_MODEL": "house-model",
        "STRATEGY_REFRESH_SECONDS": "0.1",
    }
    one = Gateway(settings, database, tmp_path_factory.mktemp("gateway"), "serve", shared=True)
    yield one, database
    assert one.stop(60) == 0
    database.drop()


@pytest.mark.postgresql
def test_while_the_database_is_away_streams_are_rescued_and_their_rows_come_later(
    own: tuple[Gateway, PostgresDatabase], upstream: Upstream, chat: Chat
) -> None:
    one, database = own
    with away(database):
        for _ in range(3):
            upstream.script(
                Reply([*started(VLLM, [], ["a"]), Cut()]),
                Reply([*started(VLLM_LEG2, [], ["b"]), *ended(VLLM_LEG2)]),
            )
            stream = chat(one, body(max_tokens=100)).read_rest()
            one_whole_answer(stream, reasoning="", content="ab", like=VLLM)
        wait_until(lambda: "trying again" in one.log, "the audit notices nothing")
        time.sleep(1.0)  # ten refreshes of the strategies
    assert one.event(stream.request_id)["outcome"] == "rescued"
    wait_until(lambda: "the audit is written again" in one.log, one.log)
    # A second time if a connection was cut while it was in use: that is another trouble.
    assert one.log.count("strategies stay as they were") in (1, 2), one.log
    assert one.log.count("the audit cannot be written now") == 1, one.log
    assert "Traceback" not in one.log


@pytest.mark.postgresql
def test_no_connection_outlives_what_it_was_opened_for(
    own: tuple[Gateway, PostgresDatabase], upstream: Upstream, chat: Chat
) -> None:
    one, database = own
    for _ in range(3):
        upstream.script(Reply([*started(VLLM, [], ["a"]), Cut()]), json_reply({}, "400 Bad Request"))
        one.event(chat(one, body(max_tokens=100)).read_rest().request_id)
    run_sql(database.url, COPIES)
    with httpx.Client(base_url=one.url, timeout=60) as browser:
        log_in_with(browser)
        for _ in range(5):  # broken off by who asked
            with browser.stream("GET", EXPORT) as answer:
                next(answer.iter_bytes())
        assert browser.get("/ready").status_code == 200
    wait_until(lambda: not lasting(database), f"still open: {connections(database)}")


def lasting(database: PostgresDatabase) -> list[str]:
    """Connections that are idle, but for those of the polling thread, which come and go."""
    asked = (
        "SELECT query FROM pg_stat_activity WHERE datname = %s AND state LIKE 'idle%%' AND query NOT LIKE %s"
    )
    values = (database.name, "%strategies_strategyrevision%")
    return [row["query"] for row in run_sql(database.server, asked, values)]
