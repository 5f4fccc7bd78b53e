"""`manage.py verify_strategy`, and the runs that it and the admin leave in the database."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from continuation.testbed.simulator import Config, Simulator
from continuation.verification import runs
from continuation.verification.bench import Report
from continuation.verification.knowledge import Knowledge, Probe
from continuation.verification.order import Order, Progress, Trouble
from continuation.verification.ranking import Recommendation
from strategies import verification
from strategies.models import Strategy, VerificationRun
from tests.e2e.test_simulated import running

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def built_in_rows() -> None:
    """The rows of the migration are gone after the first of these tests."""
    call_command("load_strategies", verbosity=0, stdout=io.StringIO())


@pytest.fixture
def generic() -> Iterator[Simulator]:
    with running(Config(engine="vllm", template="generic")) as simulator:
        yield simulator


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.txt"
    file.write_text("What does the gateway do when a stream breaks? 请说明 🙂\n", encoding="utf-8")
    return file


def command(*arguments: Any) -> str:
    out = io.StringIO()
    call_command("verify_strategy", *map(str, arguments), stdout=out)
    return out.getvalue()


def test_a_right_strategy_passes_and_its_run_is_kept(generic: Simulator, prompts: Path) -> None:
    said = command("generic", "--base-url", generic.url, "--prompts", prompts, "--cuts", 1)
    assert "The engine is vllm 0.32.0." in said
    assert "leave the row as it is" in said
    assert "[0] as configured (chat-continue)  <- recommended" in said
    run = VerificationRun.objects.get()
    row = Strategy.objects.get(name="generic")
    assert (run.state, run.engine, run.engine_version, run.model) == (
        "finished", "vllm", "0.32.0", "simulated-model",
    )  # fmt: skip
    assert run.verdict_on(row) == "verified"
    assert run.settings == verification.settings_of(row.compile())
    configured = run.results.filter(variant="as configured")
    assert {result.place for result in configured} == {place for place, _ in run.places}
    assert all(result.exact == result.total for result in configured)


def test_a_wrong_strategy_fails_below_what_is_required_and_apply_puts_it_right(
    generic: Simulator, prompts: Path
) -> None:
    Strategy.objects.create(name="mine", model="mine", open_token="<think>\n")
    asked = ("mine", "--base-url", generic.url, "--prompts", prompts, "--cuts", 1)
    with pytest.raises(CommandError, match=r"mine is exact at [0-9.]+ % of the cuts; 100 % is required"):
        command(*asked)
    assert "Change OPEN from '<think>\\n' to '<think>'." in command(*asked, "--require", 0)
    assert "Applied to mine: OPEN '<think>'" in command(*asked, "--apply")
    row = Strategy.objects.get(name="mine")
    assert row.open_token == "<think>"
    assert VerificationRun.objects.first().verdict_on(row) == "verified"  # type: ignore[union-attr]


def test_an_edit_after_the_run_is_noticed(generic: Simulator, prompts: Path) -> None:
    command("generic", "--base-url", generic.url, "--prompts", prompts, "--cuts", 1)
    run, row = VerificationRun.objects.get(), Strategy.objects.get(name="generic")
    row.notes = "looked at"
    row.save()
    assert run.verdict_on(row) == "verified"
    row.close_token = "</thoughts>"
    row.save()
    assert run.verdict_on(row) == "edited"


def test_an_unknown_strategy_is_refused_with_those_there_are() -> None:
    with pytest.raises(CommandError, match=r"there is no strategy 'nobody'; there are: .*generic"):
        command("nobody")


def test_an_engine_that_is_not_there_is_told_and_the_run_has_failed() -> None:
    with pytest.raises(CommandError, match="no engine answers at"):
        command("generic", "--base-url", "http://127.0.0.1:9")
    run = VerificationRun.objects.get()
    assert run.state == "failed"
    assert "no engine answers" in run.trouble


@pytest.mark.parametrize(
    "arguments, says",
    [
        (("--base-url", "ftp://x"), "is no URL of an engine; allowed: http"),
        (("--prompts", "/nowhere/at/all"), "cannot be read: No such file"),
        (("--cuts", "-1"), "a whole number, 0 to 10000"),
        (("--require", "101"), "a number from 0 to 100"),
        (("--engine", "tgi"), "invalid choice: 'tgi'"),
        (("--parallel", "0"), "a whole number, 1 or more"),
    ],
)
def test_a_wrong_argument_is_refused_with_what_is_allowed(arguments: tuple[str, ...], says: str) -> None:
    with pytest.raises(CommandError, match=says):
        command("generic", *arguments)


def test_a_prompts_file_without_a_prompt_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "empty.txt"
    file.write_bytes(b"\n")
    with pytest.raises(CommandError, match="there is no prompt in it"):
        command("generic", "--prompts", file)
    file.write_bytes(b"\xff")
    with pytest.raises(CommandError, match="is no UTF-8 text"):
        command("generic", "--prompts", file)


def test_the_key_of_the_settings_goes_to_the_engine_of_the_settings_only(settings: Any) -> None:
    settings.CONTINUATION_URL, settings.CONTINUATION_API_KEY = "http://engine:8000", "secret"
    row = Strategy.objects.get(name="generic")
    assert runs.order_for(row, "http://engine:8000/").api_key == "secret"
    assert not runs.order_for(row, "http://elsewhere:8000").api_key


def test_the_runner_is_registered_and_runs_in_the_background(generic: Simulator) -> None:
    assert verification.runner is not None
    row = Strategy.objects.get(name="generic")
    run = VerificationRun.objects.create(strategy=row, base_url=generic.url, cuts=1)
    verification.start(run.pk).join(120)
    run.refresh_from_db()
    assert (run.state, run.trouble) == ("finished", "")
    assert run.done == run.total > 0
    assert run.verdict_on(row) == "verified"


def test_a_background_run_that_cannot_be_done_says_why() -> None:
    row = Strategy.objects.get(name="generic")
    run = VerificationRun.objects.create(strategy=row, base_url="http://127.0.0.1:9", cuts=1)
    verification.start(run.pk).join(60)
    run.refresh_from_db()
    assert run.state == "failed"
    assert "no engine answers" in run.trouble


def test_old_runs_of_a_strategy_are_dropped(
    generic: Simulator, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "RUNS_PER_STRATEGY", 2)
    row = Strategy.objects.get(name="generic")
    for _ in range(3):
        VerificationRun.objects.create(strategy=row, base_url="http://old")
    command("generic", "--base-url", generic.url, "--prompts", prompts, "--cuts", 1)
    assert row.verifications.count() == 2
    assert row.verifications.first().state == "finished"  # type: ignore[union-attr]


STRANGE = "a\0b \ud800 " + "x" * 600


@pytest.fixture
def row() -> Strategy:
    return Strategy.objects.get(name="generic")


def test_what_no_column_holds_of_an_engines_words_costs_no_run(row: Strategy) -> None:
    report = Report(
        known=Knowledge(version=STRANGE, model=STRANGE),
        probes=(Probe(STRANGE, {STRANGE: [STRANGE, 1, None]}, STRANGE),),
        measured=(),
        recommendation=Recommendation(None, {"open_token": STRANGE}, (STRANGE,)),
        cuts={},
    )
    run = runs.begin(row, Order(row.compile(), "http://engine:8000"))
    runs._note(run, Progress(1, 2, STRANGE))
    runs.keep(run, report)
    run.refresh_from_db()
    assert (run.state, run.doing[:4], run.model[:4]) == ("finished", "a\ufffdb ", "a\ufffdb ")
    assert run.recommendation["changes"]["open_token"].startswith("a\ufffdb ?")


def test_what_no_column_holds_of_an_engines_trouble_is_in_the_run_that_failed(
    row: Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(order: Order) -> Iterator[Progress]:
        yield Progress(0, 0, "asking the engine")
        raise Trouble(STRANGE)

    monkeypatch.setattr(runs, "steps", refuse)
    run = runs.begin(row, Order(row.compile(), "http://engine:8000"))
    runs.run_in_background(run.pk)
    run.refresh_from_db()
    assert (run.state, run.trouble[:4]) == ("failed", "a\ufffdb ")
