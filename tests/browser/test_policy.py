"""The admin's pages under their Content-Security-Policy: what they do themselves works, what is put in does not."""

from __future__ import annotations

from collections.abc import Callable

from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from tests.browser.conftest import GatewayFor
from tests.browser.playing import SECONDS, Playground

PlaygroundAt = Callable[[str], Playground]

_PUT_IN = """
const script = document.createElement("script");
script.textContent = "window.has_run = true";
document.body.append(script);
const image = '<img src="/static/admin/img/search.svg" onload="window.has_run = true">';
document.body.insertAdjacentHTML("beforeend", image);
return window.has_run ?? false;
"""


def wait(browser: Chrome, condition: Callable[[Chrome], object]) -> None:
    WebDriverWait(browser, SECONDS).until(condition)


def test_the_preview_of_a_strategy_follows_what_is_typed(
    gateway: GatewayFor, playground: PlaygroundAt, browser: Chrome
) -> None:
    url = gateway().url
    playground(url)  # logs in
    browser.get(f"{url}/admin/strategies/strategy/add/")
    browser.find_element(By.ID, "id_name").send_keys("mine")
    browser.find_element(By.ID, "id_model").send_keys("mine")
    token = browser.find_element(By.ID, "id_open_token")
    token.clear()
    token.send_keys("<begin>")
    wait(browser, lambda one: "<begin>" in one.find_element(By.ID, "strategy-body").text)
    assert "<begin>" in browser.find_element(By.CSS_SELECTOR, "output[for=id_open_token]").text


def test_lists_and_forms_work(gateway: GatewayFor, playground: PlaygroundAt, browser: Chrome) -> None:
    url = gateway().url
    playground(url)
    browser.get(f"{url}/admin/strategies/strategy/")
    browser.find_element(By.ID, "action-toggle").click()
    wait(browser, lambda one: one.find_elements(By.CSS_SELECTOR, "#result_list tr.selected"))
    browser.get(f"{url}/admin/auth/user/add/")
    assert browser.find_element(By.ID, "id_username").is_displayed()
    browser.get(f"{url}/admin/axes/accessattempt/")
    assert "access attempt" in browser.title


def test_a_script_that_is_put_into_a_page_does_not_run(
    gateway: GatewayFor, playground: PlaygroundAt, session_browser: Chrome
) -> None:
    page = Playground(session_browser, gateway().url)
    assert page.browser.execute_script(_PUT_IN) is False
    said = [entry["message"] for entry in session_browser.get_log("browser")]
    assert sum("Content Security Policy" in message for message in said) >= 2
    assert page.browser.execute_script("return window.has_run ?? false") is False
