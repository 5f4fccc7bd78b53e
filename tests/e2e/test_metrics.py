"""`/metrics` over a socket: what happens to requests and streams is counted, for those who may read it."""

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.asking import body
from tests.e2e.conftest import Chat, GatewayFor
from tests.e2e.resuming import Ticket, ask, close_all, come_back, error_code, rest
from tests.harness.client import Stream, call, one_whole_answer
from tests.harness.figures import Figures, figures, key, moved
from tests.harness.gateway import Database, Gateway
from tests.harness.shapes import VLLM, VLLM_LEG2, ended, started
from tests.harness.upstream import (
    PATIENCE,
    Gate,
    Headers,
    HoldOpen,
    Pause,
    Reply,
    Reset,
    Upstream,
    json_reply,
)

PLAIN = "text/plain;version=0.0.4"
OPENMETRICS = "application/openmetrics-text;version=1.0.0"


def answer(one: Gateway, headers: Headers = (), method: str = "GET") -> Stream:
    return call(one.port, method, "/metrics", headers)


def scraped(one: Gateway, accept: str = PLAIN) -> Figures:
    got = answer(one, [("Accept", accept)])
    assert got.status == 200
    return figures(got.body.decode(), got.header("Content-Type") or "")


def changed(one: Gateway, before: Figures, expected: Figures) -> Figures:
    """What has moved once these have by so much."""
    until = time.monotonic() + PATIENCE
    while not expected.items() <= (now := moved(before, scraped(one))).items():
        assert time.monotonic() < until, now
        time.sleep(0.02)
    return now


def counted(
    outcome: str, failure: str = "", reason: str = "", route: str = ""
) -> tuple[str, tuple[tuple[str, str], ...]]:
    return key("continuation_streams_total", outcome=outcome, failure=failure, reason=reason, route=route)


def planned(plan: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return key("continuation_chat_requests_total", plan=plan)


def rows(state: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return key("continuation_audit_rows_total", state=state)


def seen(name: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return key(f"continuation_{name}_seconds_count")


# -- what is counted -------------------------------------------------------------------------------


def test_a_rescued_stream_moves_its_figures_and_no_others(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    one, gate = gateway(), Gate()
    before = scraped(one)
    upstream.script(
        Reply([*started(VLLM, [], ["half "]), Pause(gate), Reset()]),
        Reply([VLLM_LEG2.role(), VLLM_LEG2.content("an answer"), *ended(VLLM_LEG2)]),
    )
    stream = chat(one, body())
    stream.read_until("half ")
    gate.open()
    one_whole_answer(stream.read_rest(), reasoning="", content="half an answer", like=VLLM)
    rescued = {
        planned("guarded"): 1.0,
        counted("rescued", "disconnect", route="chat-continue"): 1.0,
        rows("written"): 1.0,
        seen("seam_gap"): 1.0,
        seen("first_event"): 1.0,
        seen("leg2_first_byte"): 1.0,
    }
    after = changed(one, before, rescued)
    assert {at: by for at, by in after.items() if not at[0].endswith(("_sum", "_bucket"))} == rescued
    took = [after[key(f"continuation_{name}_seconds_sum")] for name in ("leg2_first_byte", "seam_gap")]
    assert 0 < took[0] < took[1] < PATIENCE


def test_a_stream_that_needed_nothing_is_counted_too(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    one = gateway()
    before = scraped(one)
    upstream.script(Reply([*started(VLLM, [], ["whole"]), *ended(VLLM)]))
    one_whole_answer(chat(one, body()).read_rest(), reasoning="", content="whole", like=VLLM)
    after = changed(one, before, {planned("guarded"): 1, counted("unbroken"): 1, seen("first_event"): 1})
    assert not any(at[0].startswith(("continuation_audit", "continuation_seam")) for at in after)


def test_a_stream_that_its_client_left_is_counted_as_such(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    one = gateway()
    before = scraped(one)
    upstream.script(Reply([*started(VLLM, [], ["a"]), HoldOpen()]))
    stream = chat(one, body())
    stream.read_until('"a"')
    stream.drop()
    changed(one, before, {counted("client_gone", reason="client_gone"): 1, rows("written"): 1})


def test_what_is_passed_through_and_what_is_refused_is_counted_by_its_reason(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, refusing_url: str
) -> None:
    one = gateway(PASSTHROUGH_PATHS="/v1/")
    before = scraped(one)
    upstream.script(json_reply({}), json_reply({}))
    chat(one, body(stream=False)).read_rest()
    chat(one, body(continue_final_message=True)).read_rest()
    assert call(one.port, "GET", "/elsewhere/<script>").status == 404
    assert changed(one, before, {planned("not_stream"): 1, planned("client_continuation"): 1}) == {
        planned("not_stream"): 1,
        planned("client_continuation"): 1,
        key("continuation_refused_requests_total", code="not_found"): 1,
    }
    alone = gateway(DOWNSTREAM_URL=refusing_url)
    before = scraped(alone)
    chat(alone, body()).read_rest()
    after = changed(alone, before, {planned("guarded"): 1})
    assert after[key("continuation_refused_requests_total", code="downstream_unreachable")] == 1


def test_an_answer_that_cannot_be_read_is_not_counted_as_guarded(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    one = gateway()
    before = scraped(one)
    encoded = [("Content-Type", "text/event-stream"), ("Content-Encoding", "gzip")]
    upstream.script(Reply([*started(VLLM, [], ["a"]), *ended(VLLM)], headers=encoded))
    chat(one, body()).read_rest()
    assert changed(one, before, {planned("content_encoded"): 1}) == {planned("content_encoded"): 1}


def test_a_stream_that_is_resumed_moves_the_figures_of_resuming(
    gateway: GatewayFor, upstream: Upstream
) -> None:
    one, gate = gateway(), Gate()
    before = scraped(one)
    upstream.script(Reply([*started(VLLM, [], ["a", "b"]), Pause(gate), VLLM.content("c"), *ended(VLLM)]))
    first = ask(one)
    ticket = Ticket.of(first)
    first.read_until('"b"')
    running = key("continuation_generations")
    detached = key("continuation_generations_without_reader")
    assert changed(one, before, {running: 1})[key("continuation_log_streams")] == 1
    first.drop()
    changed(one, before, {running: 1, detached: 1})
    with come_back(one, ticket, 1) as second:
        second.read_until('"b"')
        now = changed(one, before, {running: 1, key("continuation_log_events"): 3})
        assert detached not in now
        gate.open()
        second.read_rest()
    assert error_code(come_back(one, ticket, 999)) == (400, "bad_cursor")
    assert error_code(come_back(one, Ticket(ticket.stream_id, "forged"), 0)) == (404, "not_found")
    rest(one, ticket, 0)
    over = come_back(one, ticket, 6, [("Accept", "text/event-stream")]).read_rest()
    assert over.status == 204
    events = "continuation_log_events_appended_total"
    after = changed(one, before, {counted("unbroken"): 1, key(events): 6})
    resumes = {
        dict(at[1])["outcome"]: by for at, by in after.items() if at[0] == "continuation_resumes_total"
    }
    assert resumes == {"ok": 2, "bad_cursor": 1, "not_found": 1, "finished": 1}
    assert after[key("continuation_resumable_streams_total", outcome="resumable")] == 1
    assert after[key("continuation_resume_tokens_used_total", kind="header")] >= 3
    assert after[key("continuation_resume_tokens_issued_total", kind="header")] >= 3
    assert after[seen("resume_first_event")] == after[seen("resume_live")] == 2
    assert after[key("continuation_log_bytes")] == after[key("continuation_log_bytes_appended_total")] > 500
    assert running not in after
    close_all()


# -- who may read it, and how ----------------------------------------------------------------------


@pytest.mark.parametrize("role", ["all", "proxy", "admin"])
def test_every_role_tells_its_figures(gateway: GatewayFor, role: str) -> None:
    one = gateway(GATEWAY_ROLE=role)
    for accept in (PLAIN, OPENMETRICS):
        assert {planned("guarded"), key("process_open_fds")} <= set(scraped(one, accept))


def test_the_form_is_the_one_that_is_accepted(gateway: GatewayFor) -> None:
    one = gateway()
    plain, browser, open_ = (
        answer(one, [("Accept", accept)]) for accept in (PLAIN, "text/html,*/*", OPENMETRICS + "," + PLAIN)
    )
    assert (
        plain.all("Content-Type")
        == browser.all("Content-Type")
        == ["text/plain; version=0.0.4; charset=utf-8"]
    )
    assert (open_.header("Content-Type") or "").startswith(
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    )
    assert open_.body.endswith(b"# EOF\n")
    assert plain.all("Cache-Control") == ["no-store"]
    assert answer(one, [("Accept", "text/plain; version=x")]).status == 200


def test_it_is_read_and_nothing_else(gateway: GatewayFor, upstream: Upstream) -> None:
    one = gateway()
    head = answer(one, method="HEAD")
    assert (head.status, head.body) == (200, b"")
    assert int(head.header("Content-Length") or 0) > 1000
    for method in ("POST", "DELETE", "OPTIONS"):
        refused = answer(one, method=method)
        assert (refused.status, refused.json()["error"]["code"]) == (405, "method_not_allowed")
        assert refused.all("Allow") == ["GET, HEAD"]
    assert upstream.requests == []


def test_with_a_token_it_is_for_those_who_send_it(gateway: GatewayFor) -> None:
    one = gateway(METRICS_TOKEN="s3cret.~")
    wrong = [
        "",
        "Bearer",
        "Bearer ",
        "Bearer s3cret",
        "Bearer s3cret.~x",
        "s3cret.~",
        "Basic s3cret.~",
        "Bearer s\xe9cret",
    ]
    for sent in wrong:
        for method in ("GET", "HEAD"):
            refused = answer(one, [("Authorization", sent), ("X-Request-Id", "mine")] if sent else [], method)
            assert refused.status == 401, sent
            assert refused.all("WWW-Authenticate") == ['Bearer realm="metrics"']
            assert method == "HEAD" or refused.json()["error"]["code"] == "unauthorized"
            assert b"continuation_" not in refused.body
            assert b"s3cret" not in refused.body
    for sent in ("Bearer s3cret.~", "bearer  s3cret.~"):
        assert answer(one, [("Authorization", sent)]).status == 200
    assert "s3cret" not in one.log


# -- two gateways that add up ----------------------------------------------------------------------


@pytest.fixture
def sharing(migrated: Database, tmp_path: Path, upstream: Upstream) -> Iterator[Callable[..., Gateway]]:
    """Gateways with one PROMETHEUS_MULTIPROC_DIR."""
    directory = tmp_path / "figures"
    directory.mkdir()
    started: list[Gateway] = []

    def start(**settings: str) -> Gateway:
        own = tmp_path / f"gateway-{len(started)}"
        own.mkdir()
        chosen = {
            "DOWNSTREAM_URL": upstream.url,
            "CONTINUATION_MODEL": "house-model",
            "PROMETHEUS_MULTIPROC_DIR": str(directory),
        }
        started.append(Gateway(chosen | settings, migrated, own))
        return started[-1]

    yield start
    for one in started:
        if one.is_running():
            assert one.stop() in (0, -15), one.log


def test_two_gateways_tell_the_sum_of_both_and_a_killed_one_has_nothing_open(
    sharing: Callable[..., Gateway], watched: Callable[[Gateway], Gateway], upstream: Upstream, chat: Chat
) -> None:
    one, two = watched(sharing()), sharing()
    upstream.respond(
        lambda request: Reply(
            [
                *started(VLLM, [], ["whole"]),
                *(() if request.header("X-Held") is None else [HoldOpen()]),
                *ended(VLLM),
            ]
        )
    )
    for count, asked in enumerate((one, two, two), 1):
        chat(asked, body()).read_rest()
        for teller in (one, two):
            now = changed(teller, {}, {counted("unbroken"): count, planned("guarded"): count})
            assert now[seen("first_event")] == count
    held = ask(two, [("X-Held", "1")])
    held.read_until("whole")
    running = {key("continuation_generations"): 1.0, key("continuation_log_streams"): 1.0}
    changed(one, {}, running)
    assert key("process_open_fds") not in scraped(one)
    two.terminate(signal.SIGKILL)
    two.wait()
    held.drop()
    now = changed(one, {}, {planned("guarded"): 4, counted("unbroken"): 3})
    assert not running.keys() & now.keys()
    chat(one, body()).read_rest()
    changed(one, {}, {planned("guarded"): 5, counted("unbroken"): 4})


@pytest.mark.parametrize("server", ["daphne", "serve"])
def test_a_gateway_that_ends_well_leaves_its_counts_and_nothing_open(
    migrated: Database, tmp_path: Path, server: str
) -> None:
    figures_kept = tmp_path / "figures"
    figures_kept.mkdir()
    settings = {"DOWNSTREAM_URL": "http://127.0.0.1:9", "PROMETHEUS_MULTIPROC_DIR": str(figures_kept)}
    one = Gateway(settings, migrated, tmp_path, server)
    assert call(one.port, "GET", "/v1/models").status == 502
    assert one.stop() in (0, -15)
    assert "Warning" not in one.log
    assert [path.name for path in figures_kept.iterdir()] == [f"counter_{one.pid}.db"]
    directory = tmp_path / "next"
    directory.mkdir()
    after = Gateway(settings, migrated, directory, server)
    try:
        assert scraped(after)[key("continuation_refused_requests_total", code="downstream_unreachable")] == 1
    finally:
        after.stop()
