"""The gateway from pages of other origins, by the JavaScript client and by the browser's own EventSource."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from selenium.webdriver import Chrome

from tests.browser.conftest import GatewayFor
from tests.browser.engines import MODEL, Engine, Told
from tests.browser.line import Line
from tests.browser.other_site import OtherSite
from tests.harness.gateway import Gateway

SECONDS = 60.0

# Reads an answer, drops the connection once and, if so asked, stops it; what came of it goes to the last argument.
_READ = """
const [url, body, dropAt, stopAt, tell] = arguments;
(async () => {
  const { ResumableStream } = await import("/resumable.js");
  const states = [];
  const stream = new ResumableStream({
    url, body, headers: { Authorization: "Bearer other" }, checkpoints: true, key: "answer",
    onStatus: ({ state }) => states.push(state),
  });
  const events = [];
  let stopped = null;
  let error = null;
  try {
    for await (const { id, data, replayed } of stream) {
      events.push({ id, data, replayed });
      if (id === dropAt) stream.drop();
      if (id === stopAt) stopped = stream.stop();
    }
  } catch (trouble) {
    error = { kind: trouble.kind, message: trouble.message };
  }
  tell({ events, states, error, stopped: await stopped, id: stream.id, token: stream.token });
})();
"""

# Begins an answer, reads its first events and leaves; then an EventSource follows it.
_FOLLOW = """
const [url, body, after, tell] = arguments;
window.followed = { events: [], errors: 0 };
(async () => {
  const headers = { "Content-Type": "application/json", "X-Resumable": "1" };
  const answer = await fetch(`${url}/v1/chat/completions`, { method: "POST", headers, body: JSON.stringify(body) });
  const [id, token] = ["X-Stream-Id", "X-Resume-Token"].map((name) => answer.headers.get(name));
  const reader = answer.body.getReader();
  const decoder = new TextDecoder();
  for (let seen = ""; !seen.includes(`id: ${after}\\n`); )
    seen += decoder.decode((await reader.read()).value, { stream: true });
  await reader.cancel();
  window.source = new EventSource(
    `${url}/v1/streams/${id}?token=${encodeURIComponent(token)}&last_event_id=${after}`,
  );
  window.source.onmessage = ({ lastEventId, data }) => window.followed.events.push({ id: Number(lastEventId), data });
  window.source.onerror = () => (window.followed.errors += 1);
  tell(id);
})();
"""
_FOLLOWED = "return { ...window.followed, state: window.source.readyState }"
OPEN, CLOSED = 1, 2


@pytest.fixture
def site() -> Iterator[OtherSite]:
    site = OtherSite()
    yield site
    site.stop()


@pytest.fixture
def stranger() -> Iterator[OtherSite]:
    """Whose origin the gateway does not know."""
    site = OtherSite()
    yield site
    site.stop()


def question(prompt: str) -> dict[str, Any]:
    return {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": prompt}]}


def text_of(events: list[dict[str, Any]]) -> Told:
    deltas = [
        json.loads(event["data"])["choices"][0]["delta"] for event in events if event["data"] != "[DONE]"
    ]
    told = ["".join(delta.get(name) or "" for delta in deltas) for name in ("reasoning", "content")]
    return Told(*told)


def read(
    browser: Chrome, gateway: Gateway, prompt: str, drop_at: int = 0, stop_at: int = 0
) -> dict[str, Any]:
    url = f"{gateway.url}/v1/chat/completions"
    found: dict[str, Any] = browser.execute_async_script(_READ, url, question(prompt), drop_at, stop_at)
    return found


@pytest.mark.parametrize("server", ["daphne", "serve"])
def test_a_page_of_an_allowed_origin_reads_breaks_and_goes_on(
    gateway: GatewayFor, browser: Chrome, site: OtherSite, oracle: Engine, server: str
) -> None:
    browser.get(site.url)
    found = read(browser, gateway(server, CORS_ALLOWED_ORIGINS=site.url), "Across origins.", drop_at=20)
    assert found["error"] is None
    assert [event["id"] for event in found["events"]] == list(range(1, len(found["events"]) + 1))
    assert found["events"][-1]["data"] == "[DONE]"
    assert text_of(found["events"]) == oracle.ask("Across origins.")
    assert "reconnecting" in found["states"]
    kept = browser.execute_script("return JSON.parse(sessionStorage.getItem('answer'))")
    assert (kept["id"], kept["ended"], kept["last"]) == (found["id"], True, len(found["events"]))


def test_a_page_of_an_allowed_origin_can_stop_its_stream(
    gateway: GatewayFor, browser: Chrome, site: OtherSite, engine: Engine
) -> None:
    browser.get(site.url)
    found = read(browser, gateway(CORS_ALLOWED_ORIGINS=site.url), "Stop across origins.", stop_at=10)
    assert (found["error"], found["states"][-1], len(found["events"])) == (None, "stopped", 10)
    assert found["stopped"]["state"] == "stopped"
    until = time.monotonic() + SECONDS
    while engine.open_streams():
        assert time.monotonic() < until, "the engine goes on"
        time.sleep(0.05)


def test_a_page_of_another_origin_gets_nothing(
    gateway: GatewayFor, browser: Chrome, site: OtherSite, stranger: OtherSite, engine: Engine
) -> None:
    browser.get(stranger.url)
    asked = len(engine.legs())
    for allowed in (site.url, ""):
        found = read(browser, gateway(CORS_ALLOWED_ORIGINS=allowed), "Who are you?")
        assert (found["error"]["kind"], found["events"]) == ("unreachable", [])
    assert len(engine.legs()) == asked, "the engine was asked all the same"


@pytest.mark.parametrize("across", [False, True], ids=["same origin", "another origin"])
def test_an_event_source_has_each_event_once_over_a_broken_connection_and_stops_at_the_end(
    gateway: GatewayFor,
    browser: Chrome,
    site: OtherSite,
    oracle: Engine,
    line: Callable[[int], Line],
    across: bool,
) -> None:
    cable = line(gateway(**({"CORS_ALLOWED_ORIGINS": site.url} if across else {})).port)
    browser.get(site.url if across else f"{cable.url}/admin/login/")
    browser.execute_async_script(_FOLLOW, cable.url, question("Follow this."), 3)
    followed(browser, lambda found: len(found["events"]) >= 30)
    assert cable.cut() > 0
    whole = followed(browser, lambda found: found["events"][-1]["data"] == "[DONE]")
    assert whole["errors"] > 0, "nothing broke"
    ended = followed(browser, lambda found: found["state"] == CLOSED)
    ids = [event["id"] for event in ended["events"]]
    assert ids == list(range(4, 4 + len(ids)))
    told = oracle.ask("Follow this.")
    text = text_of(ended["events"])
    assert text.content == told.content
    assert told.reasoning.endswith(text.reasoning)
    assert len(told.reasoning) - len(text.reasoning) < 40


def followed(browser: Chrome, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    until = time.monotonic() + SECONDS
    while True:
        found: dict[str, Any] = browser.execute_script(_FOLLOWED)
        if condition(found):
            return found
        assert time.monotonic() < until, found
        time.sleep(0.05)
