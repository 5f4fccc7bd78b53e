"""Verification in the admin: a run is asked for, watched, and shown as a table of routes and kinds of cut places."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from django import forms
from django.conf import settings
from django.core.exceptions import ValidationError
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from strategies.engines import Engine
from strategies.models import Strategy, VerificationResult, VerificationRun

MOST_CUTS = 1000
# Variants that are shown at once; the others are folded away.
SHOWN_AT_ONCE = 6


class VerificationForm(forms.Form):
    """What to verify against. An empty model is the one that the engine serves first."""

    base_url = forms.CharField(
        label="Base URL",
        max_length=500,
        widget=forms.TextInput({"size": 60}),
        help_text="The root of a running engine. It is asked for some hundred short greedy answers.",
    )
    model = forms.CharField(
        max_length=200,
        required=False,
        widget=forms.TextInput({"size": 60}),
        help_text="The name under which the engine serves the model; nothing for the first one of /v1/models.",
    )
    engine = forms.ChoiceField(
        choices=[("", "find out"), *((engine.value, engine.traits.label) for engine in Engine.real())],
        required=False,
    )
    cuts = forms.IntegerField(
        min_value=1,
        max_value=MOST_CUTS,
        initial=4,
        help_text="So many cut places of each kind are tried. More take longer and tell more.",
    )

    def clean_base_url(self) -> str:
        url = str(self.cleaned_data["base_url"]).strip().rstrip("/")
        try:
            parts = urlsplit(url)
            allowed = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            allowed = False
        if not allowed:
            raise ValidationError(f"{url!r} is no URL of an engine; allowed: http://host:port or https://...")
        return url


def first_values(row: Strategy) -> dict[str, Any]:
    last = row.verifications.first()
    known = {"base_url": last.base_url, "model": last.model, "cuts": last.cuts} if last else {}
    engine = row.engine if row.engine in Engine.real() else ""
    return {"base_url": getattr(settings, "CONTINUATION_URL", ""), "engine": engine, **known}


def progress_of(run: VerificationRun) -> dict[str, Any]:
    """For the page that polls."""
    return {
        "state": run.state,
        "done": run.done,
        "total": run.total,
        "doing": run.doing,
        "trouble": run.trouble,
    }


# -- the list --------------------------------------------------------------------------------------


def latest_finished(row: Strategy) -> VerificationRun | None:
    return row.verifications.filter(finished__isnull=False, trouble="").first()


def badge(row: Strategy) -> SafeString:
    """verified, partly, failing, edited since or never; with the score, and when."""
    run = latest_finished(row)
    state = run.verdict_on(row) if run else "never"
    found = run.variant_of(row) if run else None
    score = f" {found['exact']}/{found['tried']}" if found else ""
    when = timezone.localtime(run.finished).strftime("%Y-%m-%d") if run and run.finished else ""
    says = "edited since" if state == "edited" else state
    shown = format_html('<span class="verified verified-{}">{}{}</span>', state, says, score)
    return format_html('{} <span class="verified-when">{}</span>', shown, when) if when else shown


# -- the matrix ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    kind: str
    title: str


@dataclass(frozen=True, slots=True)
class VerificationLine:
    name: str
    route: str
    marks: tuple[str, ...]
    cells: tuple[Cell, ...]
    total: str
    usage: str


@dataclass(frozen=True, slots=True)
class Matrix:
    """Variants by kinds of cut places. rest: variants that are folded away."""

    run: VerificationRun
    places: Sequence[str]
    lines: Sequence[VerificationLine]
    rest: Sequence[VerificationLine]
    edited: bool


def matrix_of(run: VerificationRun) -> Matrix:
    by_variant: dict[str, dict[str, VerificationResult]] = {}
    for result in run.results.all():
        by_variant.setdefault(result.variant, {})[result.place] = result
    places = [str(place) for place, _number in run.places]
    ordered = sorted(run.variants, key=_importance)
    lines = [_line(one, by_variant.get(str(one["name"])[:500], {}), places) for one in ordered]
    return Matrix(
        run, places, lines[:SHOWN_AT_ONCE], lines[SHOWN_AT_ONCE:], run.verdict_on(run.strategy) == "edited"
    )


def _importance(variant: dict[str, Any]) -> tuple[Any, ...]:
    return not variant["configured"], not variant["recommended"], not variant["finalist"], -variant["exact"]


def _line(
    variant: dict[str, Any], results: dict[str, VerificationResult], places: Iterable[str]
) -> VerificationLine:
    marks = tuple(mark for mark in ("configured", "recommended") if variant[mark])
    marks += () if variant["finalist"] else ("first cuts only",)
    equal = sum(result.usage_equal for result in results.values())
    cells = tuple(_cell(results.get(place)) for place in places)
    total = f"{variant['exact']}/{variant['total']}"
    return VerificationLine(
        variant["name"], variant["route"], marks, cells, total, f"{equal}/{variant['exact']}"
    )


def _cell(result: VerificationResult | None) -> Cell:
    if result is None or not result.total:
        return Cell("", "none", "")
    if not result.tried:
        return Cell("not tried", "none", result.first_difference)
    kind = "all" if result.exact == result.total else "some" if result.exact else "no"
    counts = f"{result.exact} exact, {result.diverged} diverged, {result.refused} refused"
    counts += f", {result.not_tried} not tried" if result.not_tried else ""
    first = f"\n{result.first_difference}" if result.first_difference else ""
    return Cell(f"{result.exact}/{result.total}", kind, counts + first)
