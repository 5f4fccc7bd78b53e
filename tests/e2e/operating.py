"""An operator of the gateway: with a login for the admin, in a browser of their own."""

from __future__ import annotations

import httpx

from tests.harness.gateway import ROOT, Database, Gateway, environment
from tests.harness.nursery import run_python

NAME, PASSWORD = "operator", "only-for-tests"
LOGIN = "/admin/login/?next=/admin/"


def add_operator(database: Database) -> None:
    env = environment({"DOWNSTREAM_URL": "http://127.0.0.1:9"}, database)
    names = ["--username", NAME, "--email", "operator@localhost"]
    command = ["manage.py", "createsuperuser", "--no-input", *names]
    run_python(
        command, cwd=ROOT, env={**env, "DJANGO_SUPERUSER_PASSWORD": PASSWORD}, timeout=60
    ).check_returncode()


def log_in(at: Gateway, password: str = PASSWORD, name: str = NAME) -> httpx.Response:
    """With the token of the form."""
    with httpx.Client(base_url=at.url, timeout=60) as browser:
        return log_in_with(browser, password, name)


def log_in_with(browser: httpx.Client, password: str = PASSWORD, name: str = NAME) -> httpx.Response:
    assert browser.get(LOGIN).status_code == 200
    form = {"username": name, "password": password, "csrfmiddlewaretoken": browser.cookies["csrftoken"]}
    answer = browser.post(LOGIN, data=form)
    if answer.status_code == 302:
        assert browser.get("/admin/").status_code == 200
    return answer
