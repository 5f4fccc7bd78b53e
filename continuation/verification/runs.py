"""Verifications as database rows: a row is begun, brought up to date while the run goes on, and stays as its record."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import connections, router, transaction
from django.utils import timezone

from continuation.shapes.chat.usage import Estimator
from continuation.verification.bench import Report, verify
from continuation.verification.order import Order, Progress, Trouble
from continuation.verification.ranking import Measured
from strategies.models import Strategy, VerificationResult, VerificationRun
from strategies.verification import settings_of

# Least seconds between two writes of progress to the row.
PROGRESS_SECONDS = 0.5
RUNS_PER_STRATEGY = 20  # older ones are deleted

ShowProgress = Callable[[Progress], None]


def order_for(strategy: Strategy, base_url: str, **asked: Any) -> Order:
    """The order for a run; what is not given comes from the settings. Raises Trouble if the row does not compile."""
    try:
        compiled = strategy.compile()
    except ValidationError as trouble:
        raise Trouble(f"strategy {strategy.name} does not compile: {' '.join(trouble.messages)}") from trouble
    # The key belongs to the engine of the settings; it is not sent to a URL that somebody types.
    known = base_url.rstrip("/") == settings.CONTINUATION_URL.rstrip("/")
    defaults: dict[str, Any] = {
        "api_key": settings.CONTINUATION_API_KEY if known else "",
        "batch_chunks": settings.DERENDER_BATCH_CHUNKS,
        "estimator": Estimator(settings.CJK_CHARS_PER_TOKEN, settings.OTHER_CHARS_PER_TOKEN),
        "connect_timeout": settings.CONNECT_TIMEOUT_SECONDS,
    }
    return Order(compiled, base_url, **(defaults | asked))


def begin(strategy: Strategy, order: Order) -> VerificationRun:
    return VerificationRun.objects.create(
        strategy=strategy,
        base_url=order.base_url,
        model=order.model,
        engine=order.engine,
        cuts=order.cuts,
        settings=settings_of(order.strategy),
    )


def run_in_background(pk: int) -> None:
    """Perform a run in the thread of strategies.verification.start()."""
    try:
        run = VerificationRun.objects.select_related("strategy").get(pk=pk)
        try:
            order = order_for(run.strategy, run.base_url, model=run.model, engine=run.engine, cuts=run.cuts)
            perform(run, order)
        except Trouble as trouble:
            fail(run, str(trouble))
    finally:
        connections[router.db_for_write(VerificationRun)].close()


def perform(run: VerificationRun, order: Order, show: ShowProgress | None = None) -> Report:
    """Verify, and write the findings to `run`. Raises Trouble, after writing its message to the row."""
    told_at = 0.0
    try:
        for step in steps(order):
            if isinstance(step, Report):
                keep(run, step)
                return step
            if show:
                show(step)
            if time.monotonic() - told_at >= PROGRESS_SECONDS:
                told_at = time.monotonic()
                _note(run, step)
    except Trouble as trouble:
        fail(run, str(trouble))
        raise
    except BaseException as trouble:
        fail(run, f"it was broken off: {type(trouble).__name__}")
        raise
    raise AssertionError("a verification ends with its report")


def steps(order: Order) -> Iterator[Progress | Report]:
    """Yield each step while no event loop runs, so that the caller may use the database."""
    with asyncio.Runner() as runner:
        found = verify(order)
        try:
            while (step := runner.run(_next(found))) is not None:
                yield step
        finally:
            runner.run(found.aclose())


async def _next(found: Any) -> Progress | Report | None:
    return await anext(found, None)


def _note(run: VerificationRun, step: Progress) -> None:
    run.done, run.total, run.heard = step.done, step.total, timezone.now()
    run.doing = _storable(step.says)[:200]
    run.save(update_fields=["done", "total", "doing", "heard"])


def fail(run: VerificationRun, trouble: str) -> None:
    run.trouble, run.finished = _storable(trouble), timezone.now()
    run.save(update_fields=["trouble", "finished"])


def keep(run: VerificationRun, report: Report) -> None:
    best = report.recommendation.best
    run.engine, run.engine_version = str(report.known.engine), _storable(report.known.version)[:100]
    run.model = _storable(report.known.model)[:200]
    run.probes = _storable_json([{"name": p.name, "value": p.value, "says": p.says} for p in report.probes])
    run.places = [[str(place), number] for place, number in report.cuts.items()]
    run.variants = _storable_json([_variant(one, one is best) for one in report.measured])
    run.recommendation = _storable_json(
        {
            "says": list(report.recommendation.says),
            "changes": dict(report.recommendation.changes),
            "variant": best.variant.name if best else "",
        }
    )
    run.done = run.total or run.done
    run.finished = run.heard = timezone.now()
    with transaction.atomic(using=router.db_for_write(VerificationRun)):
        run.save()
        VerificationResult.objects.bulk_create(
            [row for one in report.measured for row in _results(run, one)], batch_size=200
        )
        _prune(run.strategy)


def _variant(one: Measured, recommended: bool) -> dict[str, Any]:
    total = one.total
    return {
        "name": one.variant.name,
        "route": one.variant.route,
        "configured": one.variant.configured,
        "recommended": recommended,
        "finalist": one.finalist,
        "settings": settings_of(one.variant.strategy),
        "exact": total.exact,
        "tried": total.tried,
        "total": total.total,
    }


def _results(run: VerificationRun, one: Measured) -> Iterator[VerificationResult]:
    for place, tally in one.tallies.items():
        yield VerificationResult(
            run=run,
            variant=_storable(one.variant.name)[:500],
            route=one.variant.route,
            place=str(place),
            **{**asdict(tally), "first_difference": _storable(tally.first_difference)},
        )


def _storable(text: str) -> str:
    """Without lone surrogates and NUL: an engine may say anything, and PostgreSQL refuses a row for it."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


def _storable_json(value: Any) -> Any:
    match value:
        case str():
            return _storable(value)
        case dict():
            return {_storable(str(key)): _storable_json(item) for key, item in value.items()}
        case list() | tuple():
            return [_storable_json(item) for item in value]
        case _:
            return value


def _prune(strategy: Strategy) -> None:
    """Delete all runs of a strategy but the newest."""
    old = list(strategy.verifications.values_list("pk", flat=True)[RUNS_PER_STRATEGY:])
    VerificationRun.objects.filter(pk__in=old).delete()


def apply(strategy: Strategy, changes: Mapping[str, Any]) -> None:
    """Write recommended settings into the row. Raises ValidationError, and leaves the row unchanged."""
    for name, value in changes.items():
        setattr(strategy, name, value)
    try:
        strategy.save()
    except ValidationError:
        strategy.refresh_from_db()
        raise
