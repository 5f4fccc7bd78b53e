"""Verification as strategies know it: rows, the table in the admin, and the pages around a run."""

from collections.abc import Callable
from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.utils import timezone

from strategies import verification
from strategies.columns import COLUMNS
from strategies.models import Strategy, VerificationResult, VerificationRun
from strategies.types import CompiledStrategy
from strategies.verification import changes_between, settings_of

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.strategies.urls")]

LIST = "/admin/strategies/strategy/"
FORM = {"base_url": "http://engine:8000", "model": "", "engine": "vllm", "cuts": "3"}


@pytest.fixture
def row() -> Strategy:
    return Strategy.objects.create(name="mine", model="mine")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    runs: list[int] = []
    monkeypatch.setattr(verification, "runner", runs.append)
    real = verification.start
    monkeypatch.setattr(verification, "start", lambda run: real(run).join(10))
    return runs


def finished(row: Strategy, exact: int, tried: int = 4, **fields: Any) -> VerificationRun:
    now = timezone.now()
    settings = settings_of(row.compile())
    variant = {
        "name": "as configured", "route": "chat-continue", "configured": True, "recommended": False,
        "finalist": True, "settings": settings, "exact": exact, "tried": tried, "total": tried,
    }  # fmt: skip
    better = {
        **variant, "name": "carried ids: <b>", "route": "carried ids", "configured": False, "recommended": True,
        "exact": tried, "settings": settings | {"token_exact": True, "render_generate": True},
    }  # fmt: skip
    run = VerificationRun.objects.create(
        strategy=row, engine="vllm", engine_version="0.32.0", model="m", base_url="http://engine:8000",
        finished=now, settings=settings, places=[["content, word boundary", tried], ["tool call", 1]],
        variants=[better, variant], recommendation={"says": ["Change token exact from off to on."]},
        probes=[{"name": "engine", "value": "vllm", "says": "The engine is vllm 0.32.0."}], **fields,
    )  # fmt: skip
    word = {"run": run, "place": "content, word boundary"}
    VerificationResult.objects.create(
        **word, variant="as configured", route="chat-continue", exact=exact, diverged=tried - exact,
        first_difference="content, character 3: wanted '<i>'" if exact < tried else "",
    )  # fmt: skip
    VerificationResult.objects.create(**word, variant="carried ids: <b>", route="carried ids", exact=tried)
    VerificationResult.objects.create(
        run=run, variant="as configured", route="chat-continue", place="tool call", not_tried=1
    )
    return run


# -- rows ------------------------------------------------------------------------------------------


def test_every_attribute_of_a_strategy_is_a_column_that_is_verified_or_selects_the_row() -> None:
    selects = {column.attribute for column in COLUMNS if not column.verified}
    assert selects == {"name", "model", "engine", "served_names"}
    assert {column.attribute for column in COLUMNS} | {"pk"} == {
        field.name for field in fields(CompiledStrategy)
    }


def test_every_column_of_a_strategy_is_a_field_of_its_row() -> None:
    others = {"id", "enabled", "notes", "updated_at", "verifications"}
    rows = {field.name for field in Strategy._meta.get_fields() if not field.auto_created or field.concrete}
    assert {column.field for column in COLUMNS} == rows - others


def test_settings_are_those_of_the_row_as_json_holds_them(row: Strategy) -> None:
    settings = settings_of(row.compile())
    for name, value in settings.items():
        assert getattr(row, name) == value
    assert type(settings["without_scale_out"]) is str
    row.markers = ["<a>"]
    assert changes_between(settings, settings_of(row.compile())) == {"markers": ["<a>"]}


@pytest.mark.parametrize("exact, verdict", [(4, "verified"), (2, "partly"), (0, "failing")])
def test_a_run_gives_a_verdict_on_the_row_as_it_is_now(row: Strategy, exact: int, verdict: str) -> None:
    run = finished(row, exact)
    assert run.verdict_on(row) == verdict
    row.close_token = "</thoughts>"
    assert run.verdict_on(row) == "edited"
    row.close_token = ""
    assert run.verdict_on(row) == "edited"  # it does not even compile


def test_a_row_that_took_the_recommended_settings_has_their_verdict(row: Strategy) -> None:
    run = finished(row, 2)
    row.token_exact = row.render_generate = True
    assert run.verdict_on(row) == "verified"


def test_a_run_that_is_not_heard_of_is_lost(row: Strategy) -> None:
    run = VerificationRun.objects.create(strategy=row, base_url="http://engine:8000")
    assert run.state == "running"
    run.heard = timezone.now() - VerificationRun.LOST_AFTER - timedelta(seconds=1)
    assert run.state == "lost"
    run.finished = timezone.now()
    assert run.state == "finished"
    run.trouble = "no engine"
    assert run.state == "failed"


def test_a_deleted_strategy_takes_its_runs_along(admin_client: Client, row: Strategy) -> None:
    finished(row, 1)
    assert admin_client.post(f"{LIST}{row.pk}/delete/", {"post": "yes"}).status_code == 302
    assert not VerificationRun.objects.exists()
    assert not VerificationResult.objects.exists()


def test_without_a_runner_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "runner", None)
    with pytest.raises(RuntimeError, match="no application has registered"):
        verification.start(1)


def test_a_runner_that_fails_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(run: int) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(verification, "runner", fail)
    verification.start(7).join(10)
    assert "verification run 7 failed" in caplog.text


@pytest.mark.django_db(transaction=True)
def test_the_tables_go_and_come_again() -> None:
    call_command("migrate", "strategies", "0002", verbosity=0)
    assert "strategies_verificationrun" not in connection.introspection.table_names()
    call_command("migrate", verbosity=0)
    assert "strategies_verificationrun" in connection.introspection.table_names()


# -- list and matrix -------------------------------------------------------------------------------


@pytest.mark.parametrize("exact, shown", [(4, "verified 4/4"), (2, "partly 2/4"), (0, "failing 0/4")])
def test_the_list_shows_the_verdict_and_when(
    admin_client: Client, row: Strategy, exact: int, shown: str
) -> None:
    run = finished(row, exact)
    page = admin_client.get(LIST, {"q": "mine"}).content.decode()
    assert shown in page
    assert timezone.localtime(run.finished).strftime("%Y-%m-%d") in page
    row.close_token = "</thoughts>"
    row.save()
    assert "edited since" in admin_client.get(LIST, {"q": "mine"}).content.decode()


def test_a_row_that_was_never_verified_says_so(admin_client: Client, row: Strategy) -> None:
    VerificationRun.objects.create(strategy=row, base_url="x", finished=timezone.now(), trouble="no engine")
    assert 'verified-never">never<' in admin_client.get(LIST, {"q": "mine"}).content.decode()
    shown = admin_client.get(f"{LIST}{row.pk}/change/").content.decode()
    assert f'never<p><a href="{LIST}{row.pk}/verify/">' in shown


def test_the_strategys_page_shows_the_matrix_in_colours(admin_client: Client, row: Strategy) -> None:
    finished(row, 2)
    page = admin_client.get(f"{LIST}{row.pk}/change/").content.decode()
    assert '<td class="cut-some"' in page
    assert '<td class="cut-all"' in page
    assert '<td class="cut-none"' in page
    assert "2 exact, 2 diverged, 0 refused" in page
    assert "wanted &#x27;&lt;i&gt;&#x27;" in page
    assert "carried ids: &lt;b&gt;" in page
    assert "Change token exact from off to on." in page
    assert "The engine is vllm 0.32.0." in page
    assert page.index("as configured") < page.index("carried ids: &lt;b&gt;")
    assert "that was not measured" not in page
    row.close_token = "</thoughts>"
    row.save()
    assert "that was not measured" in admin_client.get(f"{LIST}{row.pk}/change/").content.decode()


# -- a run from the admin --------------------------------------------------------------------------


def test_the_action_leads_to_the_form_of_the_one_chosen_row(admin_client: Client, row: Strategy) -> None:
    answer = admin_client.post(LIST, {"action": "verify", "_selected_action": [row.pk]})
    assert (answer.status_code, answer["Location"]) == (302, f"{LIST}{row.pk}/verify/")
    both = list(Strategy.objects.values_list("pk", flat=True)[:2])
    answer = admin_client.post(LIST, {"action": "verify", "_selected_action": both}, follow=True)
    assert "Choose one strategy" in answer.content.decode()


def test_the_form_knows_the_engine_of_the_settings_and_of_the_last_run(
    admin_client: Client, row: Strategy, settings: Any
) -> None:
    settings.CONTINUATION_URL = "http://configured:1"
    assert "http://configured:1" in admin_client.get(f"{LIST}{row.pk}/verify/").content.decode()
    finished(row, 4)
    assert "http://engine:8000" in admin_client.get(f"{LIST}{row.pk}/verify/").content.decode()


def test_a_run_is_started_in_the_background_and_watched(
    admin_client: Client, row: Strategy, started: list[int]
) -> None:
    answer = admin_client.post(f"{LIST}{row.pk}/verify/", FORM)
    run = VerificationRun.objects.get()
    page = f"{LIST}verification/{run.pk}/"
    assert (answer.status_code, answer["Location"]) == (302, page)
    assert started == [run.pk]
    assert (run.base_url, run.engine, run.cuts) == ("http://engine:8000", "vllm", 3)
    assert run.settings == settings_of(row.compile())
    shown = admin_client.get(page).content.decode()
    assert f'data-url="{page}progress/"' in shown
    assert "strategies/verify.js" in shown
    VerificationRun.objects.update(done=3, total=10, doing="continuing at the cuts")
    assert admin_client.get(f"{page}progress/").json() == {
        "state": "running", "done": 3, "total": 10, "doing": "continuing at the cuts", "trouble": "",
    }  # fmt: skip
    # A second one waits for the first.
    assert admin_client.post(f"{LIST}{row.pk}/verify/", FORM)["Location"] == page
    assert started == [run.pk]


def test_a_finished_run_shows_its_matrix_and_a_failed_one_what_went_wrong(
    admin_client: Client, row: Strategy
) -> None:
    run = finished(row, 4)
    page = f"{LIST}verification/{run.pk}/"
    assert '<td class="cut-all"' in admin_client.get(page).content.decode()
    VerificationRun.objects.update(trouble="no engine answers <here>")
    shown = admin_client.get(page).content.decode()
    assert "no engine answers &lt;here&gt;" in shown
    VerificationRun.objects.update(
        finished=None, trouble="", heard=timezone.now() - 2 * VerificationRun.LOST_AFTER
    )
    assert "its process has ended" in admin_client.get(page).content.decode()


@pytest.mark.parametrize(
    "changed, says",
    [
        ({"base_url": "file:///etc/passwd"}, "is no URL of an engine; allowed: http"),
        ({"base_url": "http://engine:port"}, "is no URL of an engine"),
        ({"base_url": ""}, "required"),
        ({"cuts": "0"}, "greater than or equal to 1"),
        ({"engine": "tgi"}, "Select a valid choice"),
    ],
)
def test_a_wrong_form_starts_nothing(
    admin_client: Client, row: Strategy, started: list[int], changed: dict[str, str], says: str
) -> None:
    answer = admin_client.post(f"{LIST}{row.pk}/verify/", {**FORM, **changed})
    assert answer.status_code == 200
    assert says in answer.content.decode()
    assert not started
    assert not VerificationRun.objects.exists()


def test_verifying_is_for_staff_who_may_change_with_a_csrf_token(
    row: Strategy, staff: Callable[..., Client], started: list[int], admin_user: Any
) -> None:
    url = f"{LIST}{row.pk}/verify/"
    assert "login" in Client().post(url, FORM)["Location"]
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(admin_user)
    assert strict.post(url, FORM).status_code == 403
    viewer = staff("view")
    assert viewer.get(url).status_code == 403
    assert viewer.post(url, FORM).status_code == 403
    assert not started
    token = strict.get(url).context["csrf_token"]
    assert strict.post(url, {**FORM, "csrfmiddlewaretoken": str(token)}).status_code == 302
    assert len(started) == 1


@pytest.mark.parametrize("permissions, status", [((), 403), (("view",), 200)])
def test_a_run_is_shown_to_those_who_may_see_strategies(
    row: Strategy, staff: Callable[..., Client], permissions: tuple[str, ...], status: int
) -> None:
    run = finished(row, 4)
    client = staff(*permissions)
    for page in (f"{LIST}verification/{run.pk}/", f"{LIST}verification/{run.pk}/progress/"):
        assert client.get(page).status_code == status
        assert "login" in Client().get(page)["Location"]


def test_pages_of_what_is_not_there_are_not_found(admin_client: Client) -> None:
    for page in ("987654/verify/", "verification/987654/", "verification/987654/progress/"):
        assert admin_client.get(LIST + page).status_code == 404
