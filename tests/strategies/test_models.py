"""What a row may hold, and that every way of changing rows is counted."""

import dataclasses
import json
from io import StringIO

import pytest
from django.core.exceptions import ValidationError
from django.core.management import call_command

from strategies.engines import Engine
from strategies.models import Strategy, StrategyRevision
from strategies.types import GENERIC, CompiledStrategy
from strategies.validation import LONGEST_LIST, LONGEST_TOKEN

pytestmark = pytest.mark.django_db


def fresh(**fields: object) -> Strategy:
    return Strategy(**{"name": "mine", "model": "my-model*", **fields})


def counter() -> int:
    return StrategyRevision.objects.get().counter


def test_a_row_compiles_to_its_values():
    row = fresh(
        engine="vllm",
        open_token="<a>\n",
        close_token=" </a>",
        content_open_token="\t",
        thinking_key="enable_thinking",
        structured_message=True,
        reasoning_field="reasoning_content",
        reasoning_end="\r\n",
        template_trims=True,
        may_think_again=True,
        render_generate=True,
        token_exact=True,
        markers=["</a>"],
        served_names=["chat", "team-*"],
    )
    row.save()
    assert Strategy.objects.get(name="mine").compile() == CompiledStrategy(
        name="mine",
        model="my-model*",
        engine=Engine.VLLM,
        open="<a>\n",
        close=" </a>",
        content_open="\t",
        thinking_key="enable_thinking",
        structured=True,
        reasoning_field="reasoning_content",
        reasoning_end="\n",
        template_trims=True,
        may_think_again=True,
        render_generate=True,
        token_exact=True,
        markers=("</a>",),
        served_names=("chat", "team-*"),
        pk=row.pk,
    )


def test_a_new_row_has_the_generic_format():
    compiled = fresh(name="generic-like", model="generic").compile()
    assert compiled == CompiledStrategy(name="generic-like", model="generic")
    assert (compiled.open, compiled.close) == (GENERIC.open, GENERIC.close)


@pytest.mark.parametrize(
    "fields, field, says",
    [
        ({"name": ""}, "name", "blank"),
        ({"name": "two words"}, "name", "letters, digits and . _ : + - only"),
        ({"name": "mine\n"}, "name", "letters, digits"),
        ({"model": ""}, "model", "blank"),
        ({"model": " x"}, "model", "white space"),
        ({"model": "qwen[3"}, "model", "[ that is not closed"),
        ({"model": "x\x00"}, "model", "NUL character at position 1"),
        ({"engine": "tgi"}, "engine", "'tgi' is not a valid choice"),
        ({"thinking_key": "enable thinking"}, "thinking_key", "one word"),
        ({"thinking_key": "3d"}, "thinking_key", "one word"),
        ({"open_token": "a\ud83d"}, "open_token", "lone surrogate (\\ud83d) at position 1"),
        ({"close_token": ""}, "close_token", "CLOSE is needed"),
        (
            {"open_token": "", "close_token": "", "prompt_opens_thinking": True},
            "close_token",
            "CLOSE is needed",
        ),
        ({"open_token": "x" * (LONGEST_TOKEN + 1)}, "open_token", "at most 1000"),
        ({"notes": "\x00"}, "notes", "NUL"),
        ({"reasoning_field": "thoughts"}, "reasoning_field", "not a valid choice"),
        ({"structured_message": True, "prompt_opens_thinking": True}, "structured_message", "either this or"),
        ({"render_generate": True, "engine": "sglang"}, "render_generate", "must be vllm or any, not sglang"),
        ({"token_exact": True, "engine": "sglang"}, "token_exact", "must be vllm or any, not sglang"),
        ({"markers": "</think>"}, "markers", "no list of texts but str"),
        ({"markers": {}}, "markers", "no list of texts but dict"),
        ({"markers": None}, "markers", "no list of texts but NoneType"),
        ({"markers": ["a", ""]}, "markers", "Entry 2 is ''"),
        ({"markers": [1]}, "markers", "Entry 1 is 1"),
        ({"markers": ["a\x00"]}, "markers", "NUL"),
        ({"markers": ["a"] * (LONGEST_LIST + 1)}, "markers", "101 entries"),
        ({"markers": ["a" * (LONGEST_TOKEN + 1)]}, "markers", "1001 characters"),
        ({"served_names": [["a"]]}, "served_names", "Entry 1 is ['a']"),
        ({"served_names": ["a "]}, "served_names", "white space"),
        ({"served_names": ["[a"]}, "served_names", "not closed"),
        ({"served_names": ["\ud83d"]}, "served_names", "lone surrogate"),
    ],
)
def test_a_wrong_row_is_refused_with_its_field_and_what_is_allowed(fields, field, says):
    with pytest.raises(ValidationError) as refusal:
        fresh(**fields).save()
    assert list(refusal.value.message_dict) == [field]
    assert says in " ".join(refusal.value.message_dict[field])
    assert not Strategy.objects.filter(name="mine").exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"open_token": "", "close_token": "", "thinking_key": ""},
        {"open_token": " ", "close_token": "\n", "content_open_token": "\t \n"},
        {"render_generate": True, "token_exact": True},
        {"model": "qwen[34]*"},
        {"model": "org/Model-7B"},
        {"markers": [" </think>\n", "<｜end▁of▁sentence｜>"]},
        {"open_token": "x" * LONGEST_TOKEN, "markers": ["a"] * LONGEST_LIST},
    ],
)
def test_unusual_rows_are_kept_as_they_are(fields):
    fresh(**fields).save()
    stored = Strategy.objects.get(name="mine")
    assert {field: getattr(stored, field) for field in fields} == fields


def test_line_ends_of_tokens_become_line_feeds():
    fresh(open_token="<a>\r\n", close_token="\r</a>\r\n ").save()
    stored = Strategy.objects.get(name="mine")
    assert (stored.open_token, stored.close_token) == ("<a>\n", "\n</a>\n ")


def test_model_and_engine_are_taken_once_whatever_their_case():
    fresh().save()
    with pytest.raises(ValidationError, match="There is a strategy for this model and engine already"):
        fresh(name="other", model="MY-model*").save()
    fresh(name="other", model="MY-model*", engine="vllm").save()


def test_names_are_unique():
    fresh().save()
    with pytest.raises(ValidationError, match="Name already exists"):
        fresh(model="else").save()


def test_every_way_of_changing_rows_is_counted():
    row = fresh()
    changes = [
        row.save,
        row.save,
        lambda: Strategy.objects.create(name="b", model="b"),
        lambda: Strategy.objects.filter(name="b").update(enabled=False),
        lambda: Strategy.objects.bulk_create([fresh(name="c", model="c"), fresh(name="d", model="d")]),
        lambda: Strategy.objects.bulk_update([Strategy.objects.get(name="c")], ["notes"]),
        lambda: Strategy.objects.update_or_create(name="c", defaults={"notes": "n"}),
        row.delete,
        lambda: Strategy.objects.filter(name__in=["b", "c"]).delete(),
    ]
    for change in changes:
        before = counter()
        change()
        assert counter() > before


def test_a_refused_change_is_not_counted():
    before = counter()
    with pytest.raises(ValidationError):
        fresh(model="").save()
    assert counter() == before


@pytest.mark.parametrize("bulk", ["bulk_create", "bulk_update"])
def test_bulk_changes_are_validated(bulk):
    row = fresh()
    if bulk == "bulk_update":
        row.save()
    row.thinking_key = "not a key"
    arguments = [[row]] if bulk == "bulk_create" else [[row], ["thinking_key"]]
    with pytest.raises(ValidationError, match="one word"):
        getattr(Strategy.objects, bulk)(*arguments)


def test_the_count_goes_on_when_its_row_is_lost():
    StrategyRevision.objects.all().delete()
    fresh().save()
    assert counter() == 1


def test_a_row_written_past_validation_does_not_compile():
    fresh().save()
    Strategy.objects.filter(name="mine").update(markers="</think>")
    with pytest.raises(ValidationError, match="no list of texts"):
        Strategy.objects.get(name="mine").compile()


def dump() -> str:
    out = StringIO()
    call_command(
        "dumpdata", "strategies", use_natural_primary_keys=True, use_natural_foreign_keys=True, stdout=out
    )
    return out.getvalue()


def values() -> list[CompiledStrategy]:
    return [dataclasses.replace(row.compile(), pk=None) for row in Strategy.objects.order_by("name")]


def notes() -> list[str]:
    return list(Strategy.objects.order_by("name").values_list("notes", flat=True))


def test_fixtures_with_natural_keys_go_round(tmp_path):
    fresh(open_token=" <a>\n", markers=["é", " "], served_names=["x*"]).save()
    fixture = tmp_path / "strategies.json"
    fixture.write_text(dump())
    before = values(), notes()
    Strategy.objects.filter(name="mine").delete()
    Strategy.objects.filter(name="generic").update(notes="changed")
    changed = counter()
    call_command("loaddata", fixture, verbosity=0)
    assert (values(), notes()) == before
    assert counter() > changed
    call_command("loaddata", fixture, verbosity=0)
    assert (values(), notes()) == before


def test_fixtures_are_validated(tmp_path):
    fields = {"name": "bad", "model": "bad", "thinking_key": "not a key"}
    fixture = tmp_path / "bad.json"
    fixture.write_text(json.dumps([{"model": "strategies.strategy", "fields": fields}]))
    with pytest.raises(ValidationError, match="one word"):
        call_command("loaddata", fixture, verbosity=0)
    assert not Strategy.objects.filter(name="bad").exists()
