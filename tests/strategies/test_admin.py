"""The admin pages, through Django's test client."""

import json

import pytest
from django.test import Client
from django.urls import path
from django.urls.conf import include

from strategies import cache
from strategies.admin import audit_events_url
from strategies.models import Strategy
from strategies.visible import visible

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.strategies.urls")]

LIST = "/admin/strategies/strategy/"
ADD = "/admin/strategies/strategy/add/"
PREVIEW = "/admin/strategies/strategy/preview/"


def form(**fields: str) -> dict[str, str]:
    return {
        "name": "mine",
        "model": "my-model*",
        "engine": "vllm",
        "served_names": "[]",
        "enabled": "on",
        "open_token": "<think>",
        "close_token": "</think>",
        "content_open_token": "",
        "thinking_key": "enable_thinking",
        "reasoning_field": "reasoning",
        "without_scale_out": "none",
        "markers": "[]",
        "notes": "",
        **fields,
    }


def sample(**fields: str) -> dict[str, str]:
    return form(
        **{
            "sample_reasoning": "R\r\n",
            "sample_content": "\r\n\r\nC",
            "sample_max_tokens": "100",
            "sample_spent": "30",
            "strategy_pk": "",
            **fields,
        }
    )


def test_white_space_of_tokens_is_saved_as_typed(admin_client):
    typed = form(open_token=" <a>\r\n", close_token="\r\n</a>\t ", content_open_token="   ")
    answer = admin_client.post(ADD, typed)
    assert answer.status_code == 302
    row = Strategy.objects.get(name="mine")
    assert (row.open_token, row.close_token, row.content_open_token) == (" <a>\n", "\n</a>\t ", "   ")


def test_saving_a_form_unchanged_changes_nothing_for_any_built_in_row(admin_client):
    for row in Strategy.objects.all():
        before = row.compile()
        page = admin_client.get(f"{LIST}{row.pk}/change/")
        shown = page.context["adminform"].form
        typed = {name: shown[name].value() for name in shown.fields}
        typed = {
            name: "on" if value is True else value for name, value in typed.items() if value is not False
        }
        answer = admin_client.post(f"{LIST}{row.pk}/change/", typed)
        assert answer.status_code == 302
        assert Strategy.objects.get(pk=row.pk).compile() == before


def test_a_token_that_begins_with_a_line_break_survives_the_text_area(admin_client):
    row = Strategy.objects.create(name="mine", model="mine", open_token="\n<a>")
    page = admin_client.get(f"{LIST}{row.pk}/change/").content.decode()
    area = page.split('name="open_token"')[1].split(">", 1)[1].split("</textarea>")[0]
    # Browsers drop the first line break after the tag.
    assert area.replace("\r\n", "\n").startswith("\n\n&lt;a&gt;")


def test_an_edit_is_live_as_soon_as_it_is_saved(admin_client, django_capture_on_commit_callbacks):
    cache.refresh()
    row = Strategy.objects.get(name="generic")
    typed = form(name="generic", model="generic", engine="any", open_token="[T]\r\n")
    with django_capture_on_commit_callbacks(execute=True):
        assert admin_client.post(f"{LIST}{row.pk}/change/", typed).status_code == 302
    assert cache.current().generic.open == "[T]\n"


@pytest.mark.parametrize(
    "fields, says",
    [
        ({"markers": "</think>"}, "This is no JSON. Write a list of texts"),
        ({"markers": '{"a": 1}'}, "no list of texts but dict"),
        ({"served_names": '["\\ud83d"]'}, "lone surrogate"),
        ({"thinking_key": "two words"}, "A thinking key is one word"),
        ({"engine": "sglang", "render_generate": "on"}, "must be vllm or any, not sglang"),
        ({"close_token": ""}, "CLOSE is needed"),
        ({"model": "KIMI-k2*", "engine": "any"}, "There is a strategy for this model and engine already"),
    ],
)
def test_a_wrong_form_is_shown_again_with_what_is_wrong(admin_client, fields, says):
    answer = admin_client.post(ADD, form(**fields))
    assert answer.status_code == 200
    assert says in answer.content.decode()
    assert says in json.dumps(admin_client.post(PREVIEW, sample(**fields)).json())
    assert not Strategy.objects.filter(name="mine").exists()


def test_empty_lists_may_be_left_empty(admin_client):
    assert admin_client.post(ADD, form(markers="", served_names="")).status_code == 302
    row = Strategy.objects.get(name="mine")
    assert (row.markers, row.served_names) == ([], [])


def test_the_list_shows_white_space_and_the_route(admin_client):
    page = admin_client.get(LIST).content.decode()
    assert "token route" in page
    assert "chat-continue" in page
    Strategy.objects.create(name="mine", model="mine", open_token="<a> \t", close_token="</a>\n\nb")
    page = admin_client.get(LIST, {"q": "mine"}).content.decode()
    assert "&lt;a&gt;·→" in page
    assert "&lt;/a&gt;⏎\n⏎\nb" in page


@pytest.mark.parametrize("query", [{"engine__exact": "vllm"}, {"enabled__exact": "1"}, {"q": "kimi"}])
def test_the_list_filters_and_searches(admin_client, query):
    answer = admin_client.get(LIST, query)
    shown = answer.context["cl"].result_count
    assert answer.status_code == 200
    assert 0 < shown <= Strategy.objects.count()


def test_rows_are_enabled_and_disabled_together(admin_client):
    pks = list(Strategy.objects.filter(name__startswith="kimi").values_list("pk", flat=True))
    admin_client.post(LIST, {"action": "disable", "_selected_action": pks})
    assert set(Strategy.objects.filter(enabled=False).values_list("pk", flat=True)) == set(pks)
    admin_client.post(LIST, {"action": "enable", "_selected_action": pks})
    assert not Strategy.objects.filter(enabled=False).exists()


def test_the_preview_shows_both_prefixes_and_the_body_of_what_is_typed(admin_client):
    shown = admin_client.post(PREVIEW, sample(open_token="<think>\r\n")).json()
    assert shown["case"] == "content-done"
    assert shown["content_done"] == {"role": "assistant", "content": "<think>\nR\n</think>\n\nC"}
    assert shown["thinking_partial"] == {"role": "assistant", "content": "<think>\nR\n"}
    assert shown["token_route"] is False
    assert shown["body"]["messages"][-1] == shown["content_done"]
    assert shown["body"]["max_tokens"] == 70
    assert shown["body"]["chat_template_kwargs"] == {"enable_thinking": False}
    assert shown["body"]["continue_final_message"] is True
    assert not Strategy.objects.filter(name="mine").exists()


def test_the_preview_of_reasoning_alone_is_the_open_prefix(admin_client):
    shown = admin_client.post(
        PREVIEW, sample(sample_content="", sample_max_tokens="", sample_spent="")
    ).json()
    assert shown["content_done"] is None
    assert shown["body"]["messages"][-1] == {"role": "assistant", "content": "<think>R\n"}
    assert "max_tokens" not in shown["body"]
    assert "chat_template_kwargs" not in shown["body"]


def test_the_preview_of_a_structured_message_has_two_fields(admin_client):
    shown = admin_client.post(PREVIEW, sample(structured_message="on")).json()
    assert shown["content_done"] == {"role": "assistant", "reasoning": "R\n", "content": "\n\nC"}


@pytest.mark.parametrize("field", ["sample_max_tokens", "sample_spent"])
@pytest.mark.parametrize("value", ["ten", "-1", "1.5"])
def test_a_sample_that_is_no_number_is_named(admin_client, field, value):
    errors = admin_client.post(PREVIEW, sample(**{field: value})).json()["errors"]
    assert value in next(iter(errors.values()))[0]


def test_the_preview_of_a_stored_row_is_not_held_against_itself(admin_client):
    row = Strategy.objects.get(name="kimi-k2")
    typed = sample(name="kimi-k2", model="kimi-k2*", engine="any", strategy_pk=str(row.pk))
    assert "errors" not in admin_client.post(PREVIEW, typed).json()
    assert "errors" in admin_client.post(PREVIEW, typed | {"strategy_pk": ""}).json()
    gone = admin_client.post(PREVIEW, typed | {"strategy_pk": "987654"}).json()
    assert "deleted" in json.dumps(gone["errors"])


def test_the_preview_is_for_staff_with_a_csrf_token(admin_user):
    anonymous = Client()
    assert anonymous.post(PREVIEW, sample()).status_code == 302
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(admin_user)
    assert strict.post(PREVIEW, sample()).status_code == 403
    token = strict.get(ADD).context["csrf_token"]
    assert strict.post(PREVIEW, sample(csrfmiddlewaretoken=str(token))).status_code == 200
    assert strict.get(PREVIEW).status_code == 405


def test_staff_without_permission_see_no_preview(staff):
    row = Strategy.objects.get(name="kimi-k2")
    client = staff()
    assert client.post(PREVIEW, sample()).status_code == 403
    assert client.post(PREVIEW, sample(strategy_pk=str(row.pk))).status_code == 403


def test_staff_who_may_only_view_see_the_stored_row_whatever_they_send(staff):
    row = Strategy.objects.get(name="kimi-k2")
    client = staff("view")
    shown = client.post(PREVIEW, sample(strategy_pk=str(row.pk), open_token="[X]")).json()
    assert shown["thinking_partial"]["content"] == "<think>R\n"
    assert client.get(f"{LIST}{row.pk}/change/").status_code == 200
    assert client.post(f"{LIST}{row.pk}/change/", form()).status_code == 403
    assert client.post(PREVIEW, sample()).status_code == 403


def test_the_change_form_brings_its_script_and_its_panel(admin_client):
    row = Strategy.objects.get(name="qwen3.6-vllm")
    page = admin_client.get(f"{LIST}{row.pk}/change/").content.decode()
    assert "strategies/preview.js" in page
    assert f'data-url="{PREVIEW}"' in page
    assert f'data-pk="{row.pk}"' in page
    assert 'data-pk=""' in admin_client.get(ADD).content.decode()


class UrlsWithoutAudit:
    urlpatterns: list[object] = []


def test_without_an_audit_there_is_no_link_to_it(settings):
    settings.ROOT_URLCONF = UrlsWithoutAudit
    assert audit_events_url(Strategy.objects.get(name="generic")) is None


class UrlsWithAudit:
    """A URL configuration in which the audit's page exists."""

    _page = path("events/", lambda request: None, name="continuation_continuationevent_changelist")
    urlpatterns = [path("admin/", include(([_page], "admin")))]


def test_a_row_links_to_the_streams_that_it_was_chosen_for(settings):
    settings.ROOT_URLCONF = UrlsWithAudit
    row = Strategy.objects.get(name="generic")
    assert audit_events_url(row) == f"/admin/events/?strategy__id__exact={row.pk}"
    assert audit_events_url(Strategy()) is None


def test_white_space_has_a_mark():
    assert visible(" a\tb\nc\r\u00a0\u3000") == "·a→b⏎\nc␍⍽□"


def test_the_script_and_the_admin_use_the_same_marks():
    from django.contrib.staticfiles import finders

    from strategies.visible import MARKS

    with open(finders.find("strategies/preview.js"), encoding="utf-8") as script:
        line = next(line for line in script if "const MARKS" in line)
    assert json.loads(line.split("=", 1)[1].strip().rstrip(";")) == MARKS
