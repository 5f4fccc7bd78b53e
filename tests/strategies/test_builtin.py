"""The built-in rows: loaded into an empty table, and never over what an operator has edited."""

import importlib
import os
import subprocess
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from strategies.builders import final_message
from strategies.builtin import builtin_rows
from strategies.models import Strategy, StrategyRevision
from strategies.types import Partial, StrategyBook
from tests.harness.gateway import ROOT, empty_database
from tests.harness.nursery import INTERPRETER, run_python

pytestmark = pytest.mark.django_db

NAMES = [row["name"] for row in builtin_rows()]
MIGRATION = importlib.import_module("strategies.migrations.0002_builtin_strategies")


def load(*arguments: str) -> str:
    out = StringIO()
    call_command("load_strategies", *arguments, stdout=out)
    return out.getvalue()


def migrate_data() -> None:
    """The migration's own function, with the models as they were then."""
    executor = MigrationExecutor(connection)
    apps = executor.loader.project_state(("strategies", "0001_strategy")).apps
    MIGRATION.load_into_empty_table(apps, connection.schema_editor())


def test_a_new_database_has_the_built_in_rows():
    assert set(Strategy.objects.values_list("name", flat=True)) == set(NAMES)
    assert StrategyRevision.objects.get().counter >= 1


def test_every_built_in_row_is_valid():
    for row in Strategy.objects.all():
        row.full_clean()
        row.compile()


@pytest.mark.parametrize(
    "model, engine, name, message",
    [
        (
            "kimi-k3",
            "sglang",
            "kimi-k3-sglang",
            {"content": "<|open|>think<|sep|>R<|close|>think<|sep|><|open|>response<|sep|>C"},
        ),
        ("Kimi-K2.5", "vllm", "kimi-k2", {"content": "<think>R</think>C"}),
        ("Qwen/Qwen3.6-35B-A3B", "sglang", "qwen3.6-sglang", {"content": "R</think>C"}),
        ("Qwen/Qwen3.6-35B-A3B", "vllm", "qwen3.6-vllm", {"reasoning": "R", "content": "C"}),
        ("zai-org/GLM-5.3", "sglang", "glm-5.3", {"content": "<think>R</think>C"}),
        ("DeepSeek-V4-Flash", "sglang", "deepseek-v4-flash-sglang", {"content": "R</think>C"}),
        ("llama-9", "vllm", "generic", {"content": "<think>R</think>C"}),
    ],
)
def test_the_built_in_rows_make_the_right_message(model, engine, name, message):
    book = StrategyBook.of(row.compile() for row in Strategy.objects.all())
    strategy = book.select("", model, engine).strategy
    assert strategy.name == name
    assert final_message(strategy, Partial("R", "C")) == {"role": "assistant", **message}


@pytest.mark.parametrize("model", ["kimi-k3", "deepseek-v4-flash"])
def test_models_whose_renderer_ignores_the_flag_take_the_token_route_on_vllm(model):
    book = StrategyBook.of(row.compile() for row in Strategy.objects.all())
    assert book.select("", model, "vllm").strategy.render_generate
    assert not book.select("", model, "sglang").strategy.render_generate
    assert not book.select("", model, "").strategy.render_generate


def test_the_migration_fills_an_empty_table():
    Strategy.objects.all().delete()
    migrate_data()
    assert set(Strategy.objects.values_list("name", flat=True)) == set(NAMES)
    for row in Strategy.objects.all():
        row.full_clean()


def test_the_migration_leaves_a_table_with_rows_alone():
    Strategy.objects.all().delete()
    Strategy.objects.create(name="mine", model="mine")
    migrate_data()
    assert list(Strategy.objects.values_list("name", flat=True)) == ["mine"]


def test_loading_again_changes_nothing():
    before = list(Strategy.objects.values())
    revision = StrategyRevision.objects.get().counter
    said = load()
    assert said.count("kept as it is") == len(NAMES)
    assert list(Strategy.objects.values()) == before
    assert StrategyRevision.objects.get().counter == revision


def test_loading_creates_what_is_missing_and_keeps_what_was_edited():
    Strategy.objects.filter(name="kimi-k2").delete()
    Strategy.objects.filter(name="generic").update(open_token="[THINK]")
    said = load()
    assert "kimi-k2: created" in said
    assert Strategy.objects.get(name="generic").open_token == "[THINK]"


def test_a_reset_brings_one_row_back_and_no_other():
    Strategy.objects.update(notes="edited", may_think_again=True)
    pk = Strategy.objects.get(name="generic").pk
    assert "generic: reset" in load("--reset", "generic")
    generic = Strategy.objects.get(name="generic")
    assert (generic.pk, generic.may_think_again) == (pk, False)
    assert "edited" not in generic.notes
    assert Strategy.objects.filter(notes="edited").count() == len(NAMES) - 1
    load("--reset-all")
    assert not Strategy.objects.filter(notes="edited").exists()


def test_an_operators_row_for_the_same_model_is_not_doubled():
    Strategy.objects.filter(name="kimi-k2").update(name="our-kimi", model="KIMI-k2*")
    assert "kimi-k2: left out, our-kimi is for kimi-k2* on any already" in load()
    assert not Strategy.objects.filter(name="kimi-k2").exists()


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(CommandError) as refusal:
        load("--reset", "kimi-k9")
    assert "kimi-k9" in str(refusal.value)
    assert all(name in str(refusal.value) for name in NAMES)


def test_a_reset_that_another_row_stands_against_changes_nothing():
    Strategy.objects.filter(name="kimi-k2").update(model="moved")
    Strategy.objects.create(name="our-kimi", model="kimi-k2*")
    Strategy.objects.filter(name="generic").update(notes="edited")
    with pytest.raises(CommandError, match="kimi-k2: There is a strategy for this model and engine already"):
        load("--reset-all")
    assert Strategy.objects.get(name="generic").notes == "edited"


def test_the_list_changes_nothing():
    Strategy.objects.filter(name="kimi-k2").delete()
    said = load("--list")
    assert "kimi-k2: kimi-k2* on any, missing" in said
    assert "generic: generic on any, in the database" in said
    assert not Strategy.objects.filter(name="kimi-k2").exists()


def test_no_migration_is_missing():
    call_command("makemigrations", "strategies", check=True, dry_run=True, verbosity=0)


def test_the_migrations_go_back_and_forth_and_the_command_has_an_exit_status(tmp_path: Path):
    environment = {**os.environ, **INTERPRETER, "DATABASE_URL": empty_database(tmp_path).url}

    def manage(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_python(["manage.py", *arguments], cwd=ROOT, env=environment, timeout=120)

    for target in (["0002"], ["0001"], ["0002"], ["zero"], ["0002"], []):
        done = manage("migrate", "strategies", *target, "-v0")
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
    kept = manage("load_strategies")
    assert (kept.returncode, kept.stdout.count("kept as it is")) == (0, len(NAMES))
    refused = manage("load_strategies", "--reset", "nobody")
    assert refused.returncode == 1
    assert "nobody" in refused.stderr
