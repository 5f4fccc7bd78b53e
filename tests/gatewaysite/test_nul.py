"""A NUL, which no text of PostgreSQL can hold, in whatever reaches a query from outside: no error of the server."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import Client
from django.utils import timezone

from continuation.models import ContinuationEvent
from strategies.models import Strategy, VerificationRun

NAME, PASSWORD = "operator", "correct-horse-battery"
EVENTS = "/admin/continuation/continuationevent/"
STRATEGIES = "/admin/strategies/strategy/"
USERS = "/admin/auth/user/"

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator() -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(User.objects.create_superuser(NAME, password=PASSWORD))
    ContinuationEvent.objects.create(created_at=timezone.now(), request_id="r-1", requested_model="m")
    return client


def assert_answered(answer: HttpResponse) -> None:
    assert answer.status_code < 500, answer.content


@pytest.mark.parametrize(
    "query",
    [
        "q=%00",
        "q=a%00b",
        "outcome__exact=%00",
        "outcome__in=%00",
        "outcome__exact=a%00b",
        "strategy__id__exact=%00",
        "strategy__id__exact=1%00",
        "strategy__isnull=%00",
        "created_at__year=%00",
        "created_at__year=2026%00",
        "created_at__gte=%00",
        "request_id__contains=%00",
        "requested_model=%00",
        "o=%00",
        "p=%00",
        "all=%00",
        "%00=1",
        "outcome__exact%00=1",
        "e=%00",
        "_to_field=%00",
        "_popup=%00",
        "_changelist_filters=%00",
    ],
)
@pytest.mark.parametrize(
    "path", [EVENTS, f"{EVENTS}export/", STRATEGIES, USERS, "/admin/axes/accessattempt/"]
)
def test_a_nul_in_a_query_of_a_list(operator: Client, path: str, query: str) -> None:
    assert_answered(operator.get(f"{path}?{query}"))


@pytest.mark.parametrize(
    "path",
    [
        "/admin/%00",
        "/admin/%00/",
        f"{EVENTS}%00/change/",
        f"{EVENTS}1%00/change/",
        f"{EVENTS}%00/history/",
        f"{STRATEGIES}%00/change/",
        f"{STRATEGIES}%00/history/",
        f"{STRATEGIES}%00/delete/",
        f"{STRATEGIES}%00/verify/",
        f"{STRATEGIES}add/?name=%00&markers=%00",
        f"{USERS}%00/change/",
        f"{USERS}%00/password/",
        "/admin/r/%00/%00/",
        "/admin/r/1/%00/",
        "/admin/jsi18n/?x=%00",
        "/admin/autocomplete/?app_label=strategies&model_name=strategy&field_name=%00&term=%00",
        "/admin/autocomplete/?app_label=strategies&model_name=verificationrun&field_name=strategy&term=%00",
        f"{EVENTS}playground/?x=%00",
        "/static/%00",
        "/static/admin/css/base.css?x=%00",
        "/metrics?x=%00",
        "/admin/login/?next=%00",
        "/admin/logout/?next=%00",
    ],
)
def test_a_nul_in_an_address(operator: Client, path: str) -> None:
    assert_answered(operator.get(path))


@pytest.mark.parametrize("name", ["sessionid", "csrftoken", "messages"])
@pytest.mark.parametrize("value", ['"\\000"', '"abcdefgh\\000abcdefgh"', "abcdefgh\0abcdefgh"])
@pytest.mark.parametrize("path", ["/admin/", "/admin/login/", EVENTS])
def test_a_nul_in_a_cookie(name: str, value: str, path: str) -> None:
    assert_answered(Client(raise_request_exception=False).get(path, HTTP_COOKIE=f"{name}={value}"))


@pytest.mark.parametrize("header", ["HTTP_USER_AGENT", "HTTP_ACCEPT", "HTTP_REFERER", "HTTP_X_FORWARDED_FOR"])
def test_a_nul_in_a_header_of_a_login_that_fails(header: str) -> None:
    client = Client(raise_request_exception=False)
    sent = {"username": "operator", "password": "wrong"}
    assert_answered(client.post("/admin/login/", sent, **{header: "a\0b"}))


@pytest.mark.parametrize(
    "name, password",
    [("\0", "x"), ("oper\0ator", "x"), (NAME, "a\0b"), ("\0", "\0"), ("x" * 300, "x"), ("\ud800", "x")],
)
@pytest.mark.parametrize("query", ["", "?next=%00", "?next=/admin/%00", "?" + "x" * 3000])
def test_a_nul_in_a_login(operator: Client, name: str, password: str, query: str) -> None:
    client = Client(raise_request_exception=False)
    sent = {"username": name.encode("utf-8", "surrogatepass"), "password": password}
    assert_answered(client.post(f"/admin/login/{query}", sent))


@pytest.mark.parametrize("extra", ["", "\0"])
@pytest.mark.parametrize("field", ["_selected_action", "action", "select_across", "index", "post", "\0"])
@pytest.mark.parametrize(
    "path, action", [(EVENTS, "export_selected"), (STRATEGIES, "disable"), (STRATEGIES, "delete_selected")]
)
def test_a_nul_in_an_action(operator: Client, path: str, action: str, field: str, extra: str) -> None:
    sent: dict[str, Any] = {"action": action, "_selected_action": ["1"], "select_across": "0", "index": "0"}
    assert_answered(operator.post(path, {**sent, field: f"1\0{extra}"}))


def form(row: Strategy) -> dict[str, Any]:
    names = [field.name for field in Strategy._meta.fields if field.name not in ("id", "updated_at")]
    values = {name: getattr(row, name) for name in names}
    texts = {"markers": "[]", "served_names": "[]"}
    return {name: value for name, value in {**values, **texts}.items() if value not in (False, None)}


@pytest.mark.parametrize(
    "field",
    [
        "name",
        "model",
        "engine",
        "served_names",
        "enabled",
        "open_token",
        "thinking_key",
        "markers",
        "notes",
        "_save",
        "\0",
    ],
)
@pytest.mark.parametrize("text", ["a\0b", '["a\\u0000b"]', '["a\0b"]', '["\\ud800"]'])
def test_a_nul_in_the_form_of_a_strategy(operator: Client, field: str, text: str) -> None:
    row = Strategy.objects.get(name="generic")
    assert_answered(operator.post(f"{STRATEGIES}{row.pk}/change/", {**form(row), field: text}))
    preview = {
        **form(row),
        field: text,
        "strategy_pk": row.pk,
        "sample_reasoning": text,
        "sample_content": text,
    }
    assert_answered(operator.post(f"{STRATEGIES}preview/", preview))
    assert_answered(operator.post(f"{STRATEGIES}preview/", {**preview, "strategy_pk": text}))


@pytest.mark.parametrize("field", ["base_url", "model", "engine", "cuts"])
def test_a_nul_in_what_is_verified(operator: Client, field: str) -> None:
    row = Strategy.objects.get(name="generic")
    sent = {"base_url": "http://127.0.0.1:9", "model": "m", "engine": "", "cuts": "1"}
    assert_answered(operator.post(f"{STRATEGIES}{row.pk}/verify/", {**sent, field: "http://a\0b"}))


@pytest.mark.parametrize("field", ["username", "first_name", "email", "password1", "usable_password"])
def test_a_nul_in_a_new_user(operator: Client, field: str) -> None:
    sent = {"username": "new", "password1": PASSWORD, "password2": PASSWORD}
    assert_answered(operator.post(f"{USERS}add/", {**sent, field: "a\0b"}))


def test_a_nul_in_the_playground(operator: Client) -> None:
    assert_answered(operator.post(f"{EVENTS}playground/break/", {"stream": "\0"}))
    assert_answered(operator.post(f"{EVENTS}playground/break/?stream=%00", {"\0": "\0"}))


def test_a_nul_in_a_password_that_is_changed(operator: Client) -> None:
    sent = {"old_password": "\0", "new_password1": "a\0b", "new_password2": "a\0b"}
    assert_answered(operator.post("/admin/password_change/", sent))


@pytest.mark.parametrize("key", ["abc", "1.5", "", "²"])
def test_an_action_on_a_key_that_is_no_number(operator: Client, key: str) -> None:
    for path in (EVENTS, STRATEGIES, USERS):
        answer = operator.post(path, {"action": "delete_selected", "_selected_action": [key]})
        assert answer.status_code == 400


@pytest.mark.parametrize("number", ["99999999999999999999999", "-1", "9223372036854775808", "1" * 400])
def test_a_number_that_no_column_holds(operator: Client, number: str) -> None:
    for path in (EVENTS, STRATEGIES, USERS):
        assert_answered(operator.get(f"{path}{number}/change/"))
        assert_answered(operator.get(f"{path}?p={number}"))
        assert_answered(operator.post(path, {"action": "delete_selected", "_selected_action": [number]}))
    assert_answered(operator.get(f"{EVENTS}?strategy__id__exact={number}"))
    assert_answered(operator.get(f"{EVENTS}?created_at__year={number}"))
    assert_answered(operator.get(f"{STRATEGIES}{number}/verify/"))
    assert_answered(operator.get(f"{STRATEGIES}verification/{number}/"))
    assert VerificationRun.objects.count() == 0
