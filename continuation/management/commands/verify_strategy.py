"""`manage.py verify_strategy`: test a strategy on a live engine, say what is exact, and recommend settings."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import httpx
from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from continuation.shapes.encoding import JSON
from continuation.verification import runs
from continuation.verification.bench import Report
from continuation.verification.cuts import Place
from continuation.verification.order import DEFAULT_PROMPTS, Order, Progress, Trouble, prompts_in
from continuation.verification.ranking import Measured, percent
from continuation.verification.variants import shown
from strategies.columns import label_of
from strategies.models import Strategy, VerificationRun

SHORT = {
    Place.REASONING_WORD: "R word",
    Place.REASONING_MID_WORD: "R mid word",
    Place.REASONING_SPACE: "R space",
    Place.REASONING_CHARACTER: "R char",
    Place.REASONING_END: "R end",
    Place.CONTENT_BLANK: "C blank",
    Place.CONTENT_START: "C first",
    Place.CONTENT_WORD: "C word",
    Place.CONTENT_MID_WORD: "C mid word",
    Place.CONTENT_SPACE: "C space",
    Place.CONTENT_CHARACTER: "C char",
    Place.CONTENT_END: "C end",
    Place.TOOL_CALL: "tool call",
}
SHOWN_OF_EACH_ROUTE = 3
SHOWN_DIFFERENCES = 12


class Command(BaseCommand):
    help = (
        "Ask a live engine for greedy answers, cut them at every kind of place, continue them through the gateway's "
        "own code in every way that the strategy could be set, and compare. Exits with 1 when the strategy as "
        "configured (with --apply: as it is then) is exact at less than --require per cent of the cuts."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", help="the strategy's name")
        parser.add_argument("--base-url", default="", help="root of the engine (CONTINUATION_URL)")
        parser.add_argument("--model", default="", help="served model name (the first one of /v1/models)")
        parser.add_argument("--engine", choices=("vllm", "sglang"), default="", help="found out otherwise")
        parser.add_argument(
            "--cuts", type=_whole, default=4, metavar="N", help="cut places of each kind (4); 0: all"
        )
        parser.add_argument(
            "--prompts", type=Path, metavar="FILE", help="a question, or a JSON chat body, per line"
        )
        parser.add_argument("--require", type=_percent, default=100.0, metavar="PERCENT", help="(100)")
        parser.add_argument(
            "--apply", action="store_true", help="write the recommended settings into the row"
        )
        parser.add_argument("--api-key", default="", help="bearer token (CONTINUATION_API_KEY, for its URL)")
        parser.add_argument("--max-tokens", type=_positive, default=1024, help="of an answer (1024)")
        parser.add_argument(
            "--parallel",
            type=_positive,
            default=1,
            metavar="N",
            help="continuations at a time (1); more can make greedy answers vary",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        strategy = _strategy(options["name"])
        try:
            order = self._order(strategy, options)
            run = runs.begin(strategy, order)
            report = runs.perform(run, order, self._show_progress)
        except Trouble as trouble:
            self._show_progress(None)
            raise CommandError(str(trouble)) from trouble
        self._show_progress(None)
        self._show(run, report)
        judged = report.configured
        if options["apply"]:
            self._apply(strategy, report)
            judged = report.recommendation.best or judged
        reached = percent(judged.tallies.values())
        if reached < options["require"]:
            raise CommandError(
                f"{strategy.name} is exact at {reached:.1f} % of the cuts; {options['require']:g} % is required",
                returncode=1,
            )

    def _order(self, strategy: Strategy, options: dict[str, Any]) -> Order:
        asked = {key: options[key] for key in ("model", "engine", "cuts", "max_tokens", "parallel")}
        if options["api_key"]:
            asked["api_key"] = options["api_key"]
        prompts = _prompts(options["prompts"]) if options["prompts"] else DEFAULT_PROMPTS
        url = _url(options["base_url"] or settings.CONTINUATION_URL)
        return runs.order_for(strategy, url, prompts=prompts, **asked)

    def _show_progress(self, progress: Progress | None) -> None:
        """Write progress to one line of a terminal, over the line before; nothing elsewhere."""
        if not sys.stderr.isatty():
            return
        of = f" {progress.done} of {progress.total}" if progress and progress.total else ""
        sys.stderr.write(f"\r\033[K{progress.says + of if progress else ''}")
        sys.stderr.flush()

    # -- what is shown -----------------------------------------------------------------------------

    def _show(self, run: VerificationRun, report: Report) -> None:
        self.stdout.write(f"{run.strategy.name} against {run.model} at {run.base_url}\n")
        for probe in report.probes:
            self.stdout.write(f"  {probe.says}")
        places = list(report.cuts)
        rows = _rows_to_show(report)
        self.stdout.write("\nExact cuts of those made, by kind of place (R reasoning, C content):\n")
        self.stdout.write(_table(rows, places, report))
        hidden = len(report.measured) - len(rows)
        if hidden:
            self.stdout.write(f"({hidden} more combinations were tried, none better; the admin shows them)")
        self._show_differences(rows)
        self.stdout.write("\nRecommendation:")
        for sentence in report.recommendation.says:
            self.stdout.write(f"  {sentence}")

    def _show_differences(self, rows: list[Measured]) -> None:
        found = [
            (number, place, tally.first_difference)
            for number, one in enumerate(rows)
            for place, tally in one.tallies.items()
            if tally.first_difference
        ]
        if found:
            self.stdout.write("\nFirst differences:")
        for number, place, difference in found[:SHOWN_DIFFERENCES]:
            self.stdout.write(f"  [{number}] {place}: {difference}")
        if len(found) > SHOWN_DIFFERENCES:
            self.stdout.write(f"  and {len(found) - SHOWN_DIFFERENCES} more")

    def _apply(self, strategy: Strategy, report: Report) -> None:
        changes = report.recommendation.changes
        if not changes:
            self.stdout.write("Nothing to apply.")
            return
        try:
            runs.apply(strategy, changes)
        except ValidationError as trouble:
            raise CommandError(f"not applied: {' '.join(trouble.messages)}") from trouble
        written = ", ".join(f"{label_of(name)} {shown(value)}" for name, value in changes.items())
        self.stdout.write(f"Applied to {strategy.name}: {written}.")


def _rows_to_show(report: Report) -> list[Measured]:
    """The configured one, the recommended one, and the best of each route."""
    best = report.recommendation.best
    first = [report.configured, *([best] if best and best is not report.configured else [])]
    others = sorted(
        (one for one in report.measured if one.finalist and not any(one is other for other in first)),
        key=lambda one: -one.total.exact,
    )
    shown_of: dict[str, int] = {}
    for one in others:
        shown_of[one.variant.route] = shown_of.get(one.variant.route, 0) + 1
        if shown_of[one.variant.route] <= SHOWN_OF_EACH_ROUTE:
            first.append(one)
    return first


def _table(rows: list[Measured], places: list[Place], report: Report) -> str:
    head = ["", *(SHORT[place] for place in places), "all", "usage"]
    body = []
    for number, one in enumerate(rows):
        total = one.total
        cells = [_cell(one, place) for place in places]
        counted = f"{total.usage_equal}/{total.exact}"
        body.append([f"[{number}]", *cells, f"{total.exact}/{total.total}", counted])
    widths = [max(len(row[column]) for row in (head, *body)) for column in range(len(head))]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *body)
    ]
    names = []
    for number, one in enumerate(rows):
        route = f" ({one.variant.route})" if one.variant.configured else ""
        mark = "  <- recommended" if one is report.recommendation.best else ""
        names.append(f"[{number}] {one.variant.name}{route}{mark}")
    return "\n".join([*lines, "", *names])


def _cell(one: Measured, place: Place) -> str:
    tally = one.tallies.get(place)
    if tally is None or not tally.total:
        return "-"
    return f"{tally.exact}/{tally.total}" if tally.tried else "not tried"


# -- arguments -------------------------------------------------------------------------------------


def _strategy(name: str) -> Strategy:
    try:
        return Strategy.objects.get(name=name)
    except Strategy.DoesNotExist:
        names = ", ".join(Strategy.objects.values_list("name", flat=True)) or "none"
        raise CommandError(f"there is no strategy {name!r}; there are: {names}") from None
    except DatabaseError as trouble:
        raise CommandError(
            f"the strategies cannot be read ({trouble}); run `manage.py migrate` first"
        ) from None


def _prompts(path: Path) -> tuple[JSON, ...]:
    try:
        return prompts_in(path.read_text(encoding="utf-8"))
    except OSError as trouble:
        raise CommandError(f"--prompts {path} cannot be read: {trouble.strerror}") from trouble
    except UnicodeDecodeError as trouble:
        raise CommandError(f"--prompts {path} is no UTF-8 text") from trouble
    except Trouble as trouble:
        raise CommandError(f"--prompts {path}: {trouble}") from trouble


def _url(text: str) -> str:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise CommandError(
            f"--base-url {text!r} is no URL of an engine; allowed: http://host:port or https://..."
        )
    return text.rstrip("/")


def _whole(text: str) -> int:
    if not text.isdigit() or int(text) > 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; a whole number, 0 to 10000, is")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; a whole number, 1 or more, is")
    return int(text)


def _percent(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; a number from 0 to 100 is")
    return value
