"""Answers that are broken in the playground: the page has the uninterrupted answer all the same."""

import time
from collections.abc import Callable, Iterator

import pytest
from selenium.webdriver import Chrome

from tests.browser.conftest import DELAY_MS, SCALE, GatewayFor
from tests.browser.engines import Engine
from tests.browser.line import Line
from tests.browser.playing import Playground, Shown, assert_whole

PlaygroundAt = Callable[[str], Playground]
OFFLINE_SECONDS = 5.0

# What a page's storage can be like.
_FULL = """
for (let size = 2 ** 22, count = 0; size >= 1; count += 1)
  try { sessionStorage.setItem(`filled ${count}`, "x".repeat(size)); } catch { size = Math.floor(size / 2); }
"""
_NULL = """sessionStorage.setItem("continuation.playground.form", "null")"""
# Of the page's own; the admin's scripts do not bear it.
_DENIED = """
for (const name of ["getItem", "setItem", "removeItem"]) {
  const real = Storage.prototype[name];
  Storage.prototype[name] = function (key, ...more) {
    if (key.startsWith("continuation.")) throw new DOMException("denied", "SecurityError");
    return real.call(this, key, ...more);
  };
}
"""
_COUNT_LOOKS = """
const { fetch } = window;
window.looks = 0;
window.fetch = (url, ...more) => {
  if (String(url).endsWith("/status")) window.looks += 1;
  return fetch(url, ...more);
};
"""


@pytest.fixture
def offline(browser: Chrome) -> Iterator[Callable[[bool], None]]:
    """offline(True): the browser has no network."""

    def set_offline(is_offline: bool) -> None:
        conditions = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1, "offline": is_offline}
        browser.execute_cdp_cmd("Network.enable", {})
        browser.execute_cdp_cmd("Network.emulateNetworkConditions", conditions)

    yield set_offline
    set_offline(False)


@pytest.fixture
def two_engines() -> Iterator[tuple[Engine, Engine]]:
    engines = Engine(DELAY_MS, SCALE), Engine(DELAY_MS, SCALE)
    yield engines
    for engine in engines:
        engine.stop()


def test_an_answer_that_nothing_breaks_is_all_of_leg_1_and_live(
    gateway: GatewayFor, playground: PlaygroundAt, oracle: Engine
) -> None:
    page = playground(gateway().url)
    page.ask("Nothing breaks.")
    shown = page.wait_for_end()
    assert_whole(shown, oracle.ask("Nothing breaks."))
    assert (shown.leg2, shown.replayed) == ([], [])
    assert shown.has_logged("finish_reason: stop")
    assert shown.has_logged("usage: ")


def test_a_page_that_is_reloaded_in_mid_answer_has_all_of_it(
    gateway: GatewayFor, playground: PlaygroundAt, oracle: Engine
) -> None:
    page = playground(gateway().url)
    page.ask("Reload this.")
    page.wait_for_events(30)
    page.reload()
    shown = page.wait_for_end()
    assert_whole(shown, oracle.ask("Reload this."))
    assert shown.replayed == list(range(1, len(shown.replayed) + 1))
    assert 30 <= len(shown.replayed) < len(shown.ids), "the page came back too late"
    assert (shown.reasoning + shown.content).startswith(shown.replayedText)


def test_an_answer_that_has_ended_is_there_after_a_reload_as_well(
    gateway: GatewayFor, playground: PlaygroundAt, oracle: Engine
) -> None:
    page = playground(gateway().url)
    page.ask("Reload this late.")
    page.wait_for_end()
    page.reload()
    shown = page.wait_for_end()
    assert_whole(shown, oracle.ask("Reload this late."))
    assert shown.replayed == shown.ids


def test_a_browser_that_is_offline_for_a_while_goes_on(
    gateway: GatewayFor,
    playground: PlaygroundAt,
    oracle: Engine,
    offline: Callable[[bool], None],
    line: Callable[[int], Line],
) -> None:
    cable = line(gateway().port)
    page = playground(cable.url)
    page.ask("Go offline.")
    page.wait_for_events(30)
    offline(True)  # which refuses new connections, but leaves those alone that are there
    assert cable.cut() > 0
    accepted = cable.accepted
    went = time.monotonic()
    away = page.wait_for(lambda shown: shown.state == "reconnecting", "the break")
    while time.monotonic() < went + OFFLINE_SECONDS:
        time.sleep(0.1)
    assert page.shown().ids == away.ids, "the stream went on without a network"
    assert cable.accepted == accepted
    offline(False)
    shown = page.wait_for_end()
    assert_whole(shown, oracle.ask("Go offline."))
    assert len(shown.replayed) > 10, "nothing was missed"
    assert min(shown.replayed) == away.ids[-1] + 1


def test_a_line_that_is_down_for_a_while_costs_nothing(
    gateway: GatewayFor, playground: PlaygroundAt, oracle: Engine, line: Callable[[int], Line]
) -> None:
    cable = line(gateway().port)
    page = playground(cable.url)
    page.ask("Pull the plug.")
    page.wait_for_events(30)
    assert cable.go_down() > 0
    page.wait_for(lambda shown: shown.has_logged("Attempt 3 "), "the third attempt")
    cable.come_up()
    shown = page.wait_for_end()
    assert_whole(shown, oracle.ask("Pull the plug."))
    assert shown.replayed


def test_an_engine_that_is_killed_is_followed_by_leg_2(
    gateway: GatewayFor,
    playground: PlaygroundAt,
    oracle: Engine,
    two_engines: tuple[Engine, Engine],
) -> None:
    dying, other = two_engines
    page = playground(gateway(DOWNSTREAM_URL=dying.url, CONTINUATION_URL=other.url).url)
    page.ask("Kill the engine.")
    page.wait_for_events(40)
    dying.kill()
    shown = page.wait_for_end()
    assert_whole(shown, oracle.ask("Kill the engine."))
    shown = page.wait_for(lambda shown: bool(shown.leg2), "the colour of leg 2")
    assert shown.leg2 == shown.ids[-len(shown.leg2) :]
    assert len(shown.leg2) < len(shown.ids) - 30
    assert (shown.reasoning + shown.content).endswith(shown.leg2Text)
    assert shown.leg2Text
    assert shown.replayed == []
    assert other.legs() == [2]


def test_the_button_breaks_the_engines_connection(
    gateway: GatewayFor, playground: PlaygroundAt, oracle: Engine
) -> None:
    page = playground(gateway().url)
    page.ask("Break the engine.")
    page.wait_for_events(40)
    page.press("break-engine")
    broken = page.wait_for(lambda shown: shown.has_logged("has been broken off"), "the gateway's word")
    shown = page.wait_for(lambda shown: bool(shown.leg2Text), "the colour of leg 2")
    assert shown.state == "live", "the colour came only with the end"
    shown = page.wait_for_end()
    assert_whole(shown, oracle.ask("Break the engine."))
    assert 30 < shown.leg2[0] <= len(broken.ids) + 10
    assert shown.leg2 == list(range(shown.leg2[0], len(shown.ids) + 1))


def test_the_button_breaks_the_pages_own_connection(
    gateway: GatewayFor, playground: PlaygroundAt, oracle: Engine
) -> None:
    page = playground(gateway().url)
    page.ask("Break the connection.")
    for count in (20, 40, 60):
        page.wait_for_events(count)
        page.wait_for(lambda shown: shown.state == "live", "being live")
        page.press("break-connection")
        page.wait_for(lambda shown: shown.has_logged("Attempt 1 in"), "the break")
    shown = page.wait_for_end()
    assert_whole(shown, oracle.ask("Break the connection."))
    assert sum("connection was dropped" in text for text in shown.log) == 3


def test_a_page_that_stayed_away_goes_on_where_it_left(
    gateway: GatewayFor, playground: PlaygroundAt, oracle: Engine, engine: Engine
) -> None:
    page = playground(gateway().url)
    page.ask("Stay away.")
    page.wait_for_events(20)
    page.press("leave")
    left = page.wait_for(lambda shown: shown.state == "closed", "the leaving")
    assert engine.open_streams() == 1, "the generation must go on"
    time.sleep(1.0)  # what comes meanwhile is what is replayed
    assert page.shown().ids == left.ids
    page.press("go-on")
    shown = page.wait_for_end()
    assert_whole(shown, oracle.ask("Stay away."))
    assert shown.replayed
    assert shown.replayed[0] == left.ids[-1] + 1


def test_a_stream_that_is_stopped_ends_at_the_engine_too(
    gateway: GatewayFor, playground: PlaygroundAt, oracle: Engine, engine: Engine
) -> None:
    page = playground(gateway().url)
    page.ask("Stop it.")
    page.wait_for_events(20)
    assert engine.open_streams() == 1
    page.press("stop")
    shown = page.wait_for(lambda shown: shown.has_logged("Stopped at event"), "the stop")
    assert shown.state == "stopped"
    told = oracle.ask("Stop it.")
    assert (told.reasoning + told.content).startswith(shown.reasoning + shown.content)
    until = time.monotonic() + 30
    while engine.open_streams():
        assert time.monotonic() < until, "the engine goes on"
        time.sleep(0.05)


def test_under_serve_an_answer_survives_all_of_it_together(
    gateway: GatewayFor, playground: PlaygroundAt, oracle: Engine
) -> None:
    page = playground(gateway("serve").url)
    page.ask("Break everything.")
    page.wait_for_events(20)
    page.press("break-connection")
    page.wait_for_events(35)
    page.press("break-engine")
    page.wait_for(lambda shown: bool(shown.leg2), "leg 2")
    page.reload()
    page.wait_for_events(45)
    page.press("leave")
    page.wait_for(lambda shown: shown.state == "closed", "the leaving")
    page.press("go-on")
    shown = page.wait_for_end()
    assert_whole(shown, oracle.ask("Break everything."))
    shown = page.wait_for(lambda shown: bool(shown.leg2), "the colour of leg 2")
    assert set(shown.leg2) & set(shown.replayed), "of leg 2 nothing was replayed"
    assert set(shown.leg2) - set(shown.replayed)


AUTHORIZATION = "Bearer only-for-tests"


def asked_with_authorization(page: Playground, question: str) -> None:
    page.enter(authorization=AUTHORIZATION)
    page.ask(question)
    page.wait_for_events(20)


def reload_to_be_asked_for_it(page: Playground) -> Shown:
    page.reload()
    return page.wait_for(lambda shown: shown.has_logged("enter its authorization"), "the question")


def go_on_with(page: Playground, authorization: str) -> None:
    page.enter(authorization=authorization)
    page.press("go-on")


def test_with_an_authorization_a_reloaded_page_asks_for_it_once_more(
    gateway: GatewayFor, playground: PlaygroundAt, oracle: Engine
) -> None:
    page = playground(gateway().url)
    asked_with_authorization(page, "Who asks?")
    shown = reload_to_be_asked_for_it(page)
    kept: str = page.browser.execute_script("return JSON.stringify({...sessionStorage, ...localStorage})")
    assert AUTHORIZATION.split()[1] not in kept
    assert shown.ids == []
    go_on_with(page, AUTHORIZATION)
    assert_whole(page.wait_for_end(), oracle.ask("Who asks?"))


def test_a_wrong_authorization_after_a_reload_loses_nothing(
    gateway: GatewayFor, playground: PlaygroundAt, oracle: Engine
) -> None:
    page = playground(gateway().url)
    asked_with_authorization(page, "Who mistypes?")
    reload_to_be_asked_for_it(page)
    go_on_with(page, "Bearer onyl-for-tests")
    page.wait_for(lambda shown: shown.has_logged("404"), "the refusal")
    go_on_with(page, AUTHORIZATION)
    page.wait_for(lambda shown: shown.state in ("live", "replaying", "done"), "the way back")
    assert_whole(page.wait_for_end(), oracle.ask("Who mistypes?"))


def test_an_authorization_that_is_entered_for_the_next_question_is_not_used_for_this_one(
    gateway: GatewayFor, playground: PlaygroundAt, oracle: Engine
) -> None:
    page = playground(gateway().url)
    asked_with_authorization(page, "Who is next?")
    page.enter(authorization="Bearer of-another")
    page.press("break-engine")
    page.wait_for(lambda shown: shown.has_logged("has been broken off"), "the gateway's word")
    page.press("leave")
    page.wait_for(lambda shown: shown.state == "closed", "the leaving")
    page.press("go-on")
    assert_whole(page.wait_for_end(), oracle.ask("Who is next?"))


def test_a_page_that_stays_away_does_not_ask_after_the_stream_for_ever(
    gateway: GatewayFor, playground: PlaygroundAt
) -> None:
    page = playground(gateway().url)
    page.browser.execute_script(_COUNT_LOOKS)
    page.ask("Leave me alone.")
    page.wait_for_events(20)
    page.press("leave")
    page.wait_for(lambda shown: shown.state == "closed", "the leaving")
    looks = page.browser.execute_script("return window.looks")
    after: int = page.browser.execute_async_script(
        "setTimeout(() => arguments[0](window.looks), 2500)"  # it looked each second
    )
    assert after <= looks + 1


@pytest.mark.parametrize("spoilt", [_FULL, _NULL, _DENIED], ids=["full", "null", "denied"])
def test_a_browser_whose_storage_is_of_no_use_has_its_answer_all_the_same(
    gateway: GatewayFor, playground: PlaygroundAt, oracle: Engine, spoilt: str
) -> None:
    page = playground(gateway().url)
    with page.run_before(spoilt):
        page.open()
        page.ask("Keep nothing.")
        page.wait_for_events(20)
        page.press("break-connection")
        assert_whole(page.wait_for_end(), oracle.ask("Keep nothing."))


@pytest.mark.parametrize("suffix", ["/v1", "/v1/", "//"])
def test_a_gateways_address_may_end_as_others_do(
    gateway: GatewayFor, playground: PlaygroundAt, suffix: str
) -> None:
    url = gateway().url
    page = playground(url)
    page.enter(gateway=url + suffix)
    page.ask("What is your address?")
    page.wait_for_events(5)
    page.press("stop")
    page.wait_for(lambda shown: shown.has_logged("Stopped at event"), "the stop")


def test_a_stream_that_cannot_be_resumed_is_shown_as_such(
    gateway: GatewayFor, playground: PlaygroundAt, oracle: Engine
) -> None:
    page = playground(gateway(RESUME_MODE="off").url)
    page.ask("Only once.")
    page.wait_for_events(20)
    page.press("break-connection")
    shown = page.wait_for_end()
    assert shown.state == "failed"
    assert shown.has_logged("not resumable")
    told = oracle.ask("Only once.")
    assert (told.reasoning + told.content).startswith(shown.reasoning + shown.content)


def test_a_page_of_a_process_without_a_proxy_plays_on_another_gateway(
    gateway: GatewayFor, playground: PlaygroundAt, oracle: Engine
) -> None:
    admin = gateway(GATEWAY_ROLE="admin")
    other = gateway("serve", GATEWAY_ROLE="proxy", CORS_ALLOWED_ORIGINS=admin.url)
    page = playground(admin.url)
    page.enter(gateway=other.url)
    page.ask("Who is the gateway?")
    page.wait_for_events(20)
    page.press("break-engine")
    page.wait_for(lambda shown: shown.has_logged("another process"), "the reason")
    page.press("break-connection")
    page.wait_for(lambda shown: shown.has_logged("Attempt 1 in"), "the break")
    shown = page.wait_for_end()
    assert_whole(shown, oracle.ask("Who is the gateway?"))
    assert shown.leg2 == []
