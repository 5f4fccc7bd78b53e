"""The playground's page as a test plays on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from tests.browser.engines import MODEL, Told

PAGE = "/admin/continuation/continuationevent/playground/"
NAME = "player"
PASSWORD = "only-for-tests"
SECONDS = 90.0  # two cores may be shared by many

_SHOWN = """
const ids = (selector) => [...document.querySelectorAll(selector)].map((e) => Number(e.dataset.id));
return {
  state: document.getElementById("playground").dataset.state ?? "",
  reasoning: document.getElementById("reasoning").textContent,
  content: document.getElementById("content-text").textContent,
  ids: ids("#events li"),
  leg2: ids("#events li.leg-2"),
  replayed: ids("#events li.replayed"),
  leg2Text: [...document.querySelectorAll(".text .leg-2")].map((e) => e.textContent).join(""),
  replayedText: [...document.querySelectorAll(".text .replayed")].map((e) => e.textContent).join(""),
  log: [...document.querySelectorAll("#log li")].map((e) => e.lastChild.textContent),
};
"""


@dataclass(frozen=True, slots=True)
class Shown:
    """What stands on the page. ids: of all events, in their order; leg2, replayed: of those in that colour."""

    state: str
    reasoning: str
    content: str
    ids: list[int]
    leg2: list[int]
    replayed: list[int]
    leg2Text: str
    replayedText: str
    log: list[str]

    def has_logged(self, text: str) -> bool:
        return any(text in line for line in self.log)


class Playground:
    """Opened, and logged in to where that is asked for."""

    def __init__(self, browser: Chrome, url: str) -> None:
        self.browser = browser
        browser.get(url + PAGE)
        if "/login/" in browser.current_url:
            browser.find_element(By.ID, "id_username").send_keys(NAME)
            browser.find_element(By.ID, "id_password").send_keys(PASSWORD)
            browser.find_element(By.CSS_SELECTOR, "[type=submit]").click()
            self._until(lambda: browser.current_url == url + PAGE, "the login")
        browser.execute_script("sessionStorage.clear()")
        browser.get(url + PAGE)

    def open(self) -> None:
        """Once more."""
        self.browser.get(self.browser.current_url)

    @contextmanager
    def run_before(self, script: str) -> Iterator[None]:
        """The script runs before those of each page that is opened meanwhile."""
        found = self.browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": script})
        try:
            yield
        finally:
            self.browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", found)

    def enter(self, **fields: str) -> None:
        for name, value in fields.items():
            field = self.browser.find_element(By.NAME, name)
            field.clear()
            field.send_keys(value)

    def ask(self, prompt: str) -> None:
        self.enter(prompt=prompt, model=MODEL)
        self.press("send")

    def press(self, button: str) -> None:
        found = self.browser.find_element(By.ID, button)
        self._until(found.is_enabled, f"the button {button}")
        found.click()

    def shown(self) -> Shown:
        return Shown(**self.browser.execute_script(_SHOWN))

    def wait_for(self, condition: Callable[[Shown], bool], what: str) -> Shown:
        """The page as it is when the condition holds."""
        return self._until(lambda: (shown := self.shown()) and condition(shown) and shown, what)

    def wait_for_events(self, count: int) -> Shown:
        return self.wait_for(lambda shown: len(shown.ids) >= count, f"{count} events")

    def wait_for_end(self) -> Shown:
        """Once the colours are right, too."""
        ended = self.wait_for(lambda shown: shown.state in ("done", "failed", "stopped"), "the end")
        self.browser.execute_async_script("setTimeout(arguments[0], 0)")
        return ended

    def reload(self) -> None:
        """With the button. The old page is gone when this returns."""
        before = self.browser.find_element(By.ID, "playground").id
        self.press("reload")
        self._until(lambda: self._root() not in ("", before), "the page after its reload")

    def _root(self) -> str:
        found = self.browser.find_elements(By.ID, "playground")
        return found[0].id if found else ""

    def _until(self, condition: Callable[[], Any], what: str) -> Any:
        until = time.monotonic() + SECONDS
        while not (found := condition()):
            assert time.monotonic() < until, f"waited in vain for {what}: {self._about()}"
            time.sleep(0.05)
        return found

    def _about(self) -> object:
        if self.browser.find_elements(By.ID, "playground"):
            return self.shown()
        return self.browser.current_url


def assert_whole(shown: Shown, told: Told) -> None:
    """The page has the uninterrupted answer, and each event once."""
    assert shown.state == "done", shown.log
    assert (shown.reasoning, shown.content) == (told.reasoning, told.content)
    assert shown.ids == list(range(1, len(shown.ids) + 1))
