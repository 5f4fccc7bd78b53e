"""The audit in the admin, over its real pages."""

import csv
import io
import json
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.contrib.staticfiles import finders
from django.db import connection
from django.test import AsyncClient, Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from continuation import admin as continuation_admin
from continuation.admin import ContinuationEventAdmin
from continuation.models import ContinuationEvent
from strategies.models import Strategy

LIST = "/admin/continuation/continuationevent/"
EXPORT = f"{LIST}export/"


def event(request_id: str, **values: Any) -> ContinuationEvent:
    return ContinuationEvent.objects.create(
        **{"created_at": timezone.now(), "request_id": request_id, "requested_model": "m", **values}
    )


def person(*permissions: str, name: str = "operator") -> User:
    user = User.objects.create_user(name, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    return user


@pytest.fixture
def page(db: None, admin_client: Client) -> Any:
    """page(path): what a superuser sees there."""

    def text(path: str) -> str:
        response = admin_client.get(path)
        assert response.status_code == 200, response
        return response.content.decode()

    return text


def test_the_list_shows_what_an_operator_looks_for(page: Any) -> None:
    strategy = Strategy.objects.create(name="of-the-test", model="of-the-test")
    event(
        "r-shown",
        requested_model="house-model",
        strategy=strategy,
        strategy_name="of-the-test",
        failure="disconnect",
        case="content-done",
        decision="continue",
        route="chat-continue",
        outcome="rescued",
        reason="leg2_refused",
        seam_gap_seconds=0.256,
        tokens_recovered=41,
    )
    text = page(LIST)
    for shown in (
        "r-shown",
        "house-model",
        f'<a href="/admin/strategies/strategy/{strategy.pk}/change/">of-the-test',
        '<td class="field-failure">disconnect',
        '<td class="field-case">content-done',
        '<td class="field-decision">continue',
        '<td class="field-route">chat-continue',
        '<span class="outcome outcome-rescued">rescued</span>',
        '<td class="field-reason">leg2_refused',
        "0.26 s",
        "~41 tokens",
        "continuation/events.css",
    ):
        assert shown in text, shown
    assert finders.find("continuation/events.css")


def test_counted_tokens_are_not_shown_as_estimates(page: Any) -> None:
    event("r-1", tokens_recovered=41, tokens_exact=True)
    assert '<td class="field-recovered">41 tokens' in page(LIST)


def test_what_clients_send_is_no_markup(page: Any) -> None:
    row = event(
        "<b>r</b>",
        requested_model="<b>m</b>",
        strategy_name="<b>s</b>",
        outcome="<b>o</b>",
        leg2_message="<b>e</b>",
        usage_after={"<b>": "<b>u</b>"},
        partial_text="<b>p</b>",
    )
    assert "<b>" not in page(LIST) + page(f"{LIST}{row.pk}/change/")


def test_the_list_takes_as_many_queries_for_many_rows_as_for_few(admin_client: Client) -> None:
    def queries() -> int:
        with CaptureQueriesContext(
            connection,
        ) as captured:
            assert admin_client.get(LIST).status_code == 200
        return len(captured)

    for number in range(40):
        strategy = Strategy.objects.create(name=f"s-{number}", model=f"s-{number}")
        event(f"r-{number}", strategy=strategy, strategy_name=strategy.name)
        if number == 1:
            few = queries()
    assert queries() == few <= 10


@pytest.mark.parametrize("name", ["failure", "case", "decision", "route", "outcome", "reason", "engine"])
def test_each_word_can_be_filtered_by(page: Any, name: str) -> None:
    words = [word for word, _ in ContinuationEvent._meta.get_field(name).flatchoices]
    for word in {*words, ""}:
        event(f"r-{word or 'none'}-", **{name: word})
    listed = page(LIST)
    for word in words:
        query = f"?{name}__exact={word}"
        assert f'href="{query}"' in listed, query
        rows = page(LIST + query)
        assert f"r-{word or 'none'}-" in rows
        assert rows.count('class="field-when') == 1


def test_a_strategy_and_its_events_lead_to_each_other(page: Any) -> None:
    one = Strategy.objects.create(name="one", model="one")
    other = Strategy.objects.create(name="other", model="other")
    event("r-of-one", strategy=one, strategy_name="one")
    event("r-of-other", strategy=other, strategy_name="other")
    assert f"{LIST}?strategy__id__exact={one.pk}" in page(f"/admin/strategies/strategy/{one.pk}/change/")
    listed = page(f"{LIST}?strategy__id__exact={one.pk}")
    assert "r-of-one" in listed
    assert "r-of-other" not in listed


def test_the_days_can_be_walked(page: Any) -> None:
    now = timezone.now()
    event("r-now", created_at=now)
    event("r-then", created_at=now - timedelta(days=400))
    listed = page(f"{LIST}?created_at__year={(now - timedelta(days=400)).year}")
    assert "r-then" in listed
    assert "r-now" not in listed


@pytest.mark.parametrize(
    "name, value",
    [
        ("request_id", "req-abc-1"),
        ("completion_id", "chatcmpl-abc-1"),
        ("requested_model", "house-abc-1"),
        ("reason", "leg2_abc-1"),
        ("leg2_message", "no room for abc-1 there"),
    ],
)
def test_ids_models_reasons_and_messages_can_be_searched(page: Any, name: str, value: str) -> None:
    event("r-other")
    row = event(**{"request_id": "r-1", name: value})
    listed = page(f"{LIST}?q=ABC-1")
    assert f"/{row.pk}/change/" in listed
    assert "r-other" not in listed


def test_the_newest_come_first(page: Any) -> None:
    now = timezone.now()
    for number, age in enumerate((2, 0, 1)):
        event(f"r-{number}", created_at=now - timedelta(hours=age))
    listed = page(LIST)
    assert listed.index(">r-1<") < listed.index(">r-2<") < listed.index(">r-0<")


def test_the_page_of_an_event_shows_every_field_in_readable_form(page: Any) -> None:
    row = event(
        "r-1",
        strategy_name="since-deleted",
        usage_before={"text": "Grüße", "prompt_tokens": 3},
        partial_text="two\nlines",
    )
    text = page(f"{LIST}{row.pk}/change/")
    assert "{\n  &quot;prompt_tokens&quot;: 3,\n  &quot;text&quot;: &quot;Grüße&quot;\n}" in text
    assert '<pre class="event-text">two\nlines</pre>' in text
    assert "since-deleted" in text
    shown = {
        name.removesuffix("_shown") for _, box in ContinuationEventAdmin.fieldsets for name in box["fields"]
    }
    shown |= {"outcome", "strategy", "id"}
    assert shown >= {field.name for field in ContinuationEvent._meta.fields}


def test_a_request_id_of_any_length_fits_the_list(page: Any) -> None:
    event("r" * 200)
    assert f'title="{"r" * 200}">{"r" * 18}…<' in page(LIST)


def test_nobody_can_add_change_or_delete(admin_client: Client, page: Any) -> None:
    row = event("r-1")
    assert admin_client.get(f"{LIST}add/").status_code == 403
    assert admin_client.post(f"{LIST}{row.pk}/change/", {"reason": "x"}).status_code == 403
    assert admin_client.post(f"{LIST}{row.pk}/delete/", {"post": "yes"}).status_code == 403
    admin_client.post(LIST, {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"})
    assert ContinuationEvent.objects.get().reason == ""
    listed = page(LIST)
    assert "delete_selected" not in listed
    assert f"{LIST}add/" not in listed


@pytest.mark.django_db
def test_only_who_may_view_events_sees_or_exports_them(client: Client) -> None:
    event("r-1")
    for path in (LIST, EXPORT):
        assert client.get(path).headers["Location"].startswith("/admin/login/")
    client.force_login(person())
    for path in (LIST, EXPORT):
        assert client.get(path).status_code == 403
    client.force_login(person("view_continuationevent", name="auditor"))
    assert client.get(LIST).status_code == 200


# -- CSV: streamed asynchronously, so it takes an asynchronous client --------------------------------


def parsed(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


@pytest.fixture
def auditor(transactional_db: None) -> AsyncClient:
    client = AsyncClient()
    client.force_login(person("view_continuationevent"))
    return client


async def text_of(response: Any) -> str:
    assert response.status_code == 200
    assert response["Content-Type"] == "text/csv; charset=utf-8"
    assert response["Content-Disposition"].startswith('attachment; filename="continuation-events-')
    assert response.is_async
    return b"".join([piece async for piece in response]).decode()


@pytest.fixture
def forty(auditor: AsyncClient) -> None:
    for number in range(40):
        event(f"r-{number}", outcome="failed" if number % 2 else "rescued")


async def test_the_selected_rows_are_exported(auditor: AsyncClient, forty: None) -> None:
    chosen = [row.pk async for row in ContinuationEvent.objects.filter(request_id__in=["r-3", "r-5"])]
    response = await auditor.post(LIST, {"action": "export_selected", "_selected_action": chosen})
    assert [row["request_id"] for row in parsed(await text_of(response))] == ["r-5", "r-3"]


async def test_all_rows_of_a_filter_are_exported_by_the_action(
    auditor: AsyncClient, forty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ContinuationEventAdmin, "list_per_page", 5)
    monkeypatch.setattr(continuation_admin, "EXPORT_ROWS", 7)
    some = [row.pk async for row in ContinuationEvent.objects.filter(outcome="failed")[:1]]
    response = await auditor.post(
        f"{LIST}?outcome__exact=failed",
        {"action": "export_selected", "select_across": "1", "_selected_action": some},
    )
    rows = parsed(await text_of(response))
    assert [row["request_id"] for row in rows] == [f"r-{number}" for number in range(39, 0, -2)]


async def test_all_rows_of_a_filter_are_exported_by_the_link_of_the_list(
    auditor: AsyncClient, forty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ContinuationEventAdmin, "list_per_page", 5)
    monkeypatch.setattr(continuation_admin, "EXPORT_ROWS", 7)
    query = "?outcome__exact=rescued&q=r-1"
    listed = (await auditor.get(LIST + query)).content.decode()
    assert f'href="{EXPORT}{query.replace("&", "&amp;")}"' in listed
    rows = parsed(await text_of(await auditor.get(EXPORT + query)))
    assert [row["request_id"] for row in rows] == ["r-18", "r-16", "r-14", "r-12", "r-10"]


async def test_a_page_of_rows_at_a_time_is_in_memory(
    auditor: AsyncClient, forty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(continuation_admin, "EXPORT_ROWS", 10)
    response = await auditor.get(EXPORT)
    pieces = [piece.decode().count("\r\n") async for piece in response]
    assert pieces == [1, 10, 10, 10, 10]


async def test_a_filter_that_does_not_exist_exports_nothing(auditor: AsyncClient, forty: None) -> None:
    response = await auditor.get(f"{EXPORT}?created_at__year=soon")
    assert (response.status_code, response["Location"]) == (302, LIST)


async def test_an_empty_list_exports_its_heading(auditor: AsyncClient) -> None:
    text = await text_of(await auditor.get(EXPORT))
    assert text.split(",")[:3] == ["id", "created_at", "request_id"]
    assert text.count("\r\n") == 1


async def test_every_field_is_exported_and_no_text_is_a_formula(auditor: AsyncClient) -> None:
    texts = {
        "request_id": "=1+1",
        "completion_id": "@SUM(A1)",
        "requested_model": '+cmd|" /C calc"!A0',
        "strategy_name": "\t=1",
        "leg2_message": "-1, then\nmore",
        "partial_text": "＝1",
        "continued_text": "harmless = 1",
    }
    row = await ContinuationEvent.objects.acreate(
        created_at=timezone.now(), budget_after=-5, usage_after={"a": "ü"}, tokens_exact=True, **texts
    )
    (exported,) = parsed(await text_of(await auditor.get(EXPORT)))
    assert list(exported) == [field.attname for field in ContinuationEvent._meta.concrete_fields]
    for name, value in texts.items():
        assert exported[name] == (value if value.startswith("harmless") else f"'{value}")
    assert exported["budget_after"] == "-5"
    assert exported["tokens_exact"] == "True"
    assert exported["seam_gap_seconds"] == ""
    assert json.loads(exported["usage_after"]) == {"a": "ü"}
    assert exported["created_at"] == row.created_at.isoformat()
