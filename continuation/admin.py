"""The audit in the admin: read, filtered, searched, exported; never edited."""

import csv
import io
import json
from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.html import format_html

from continuation import playground
from continuation.models import ContinuationEvent

EXPORT_ROWS = 500  # rows read at a time
# Characters with which a spreadsheet begins a formula, and their wide forms.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")

admin.site.index_template = "admin/continuation/index.html"  # with a link to the playground


@admin.register(ContinuationEvent)
class ContinuationEventAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = [
        "when",
        "request",
        "requested_model",
        "strategy_link",
        "failure",
        "case",
        "decision",
        "route",
        "outcome_coloured",
        "reason",
        "seam_gap",
        "recovered",
    ]
    list_display_links = ["when", "request"]
    list_filter = ["outcome", "failure", "reason", "decision", "case", "route", "engine", "strategy"]
    list_select_related = ["strategy"]
    list_per_page = 50
    show_full_result_count = False
    date_hierarchy = "created_at"
    search_fields = ["request_id", "completion_id", "requested_model", "reason", "leg2_message"]
    search_help_text = "Request id, completion id, model, reason, or the engine's message to leg 2"
    actions = ["export_selected"]
    fieldsets = [
        (None, {"fields": ["created_at", "request_id", "completion_id", "requested_model"]}),
        (
            "What happened",
            {"fields": ["outcome_coloured", "failure", "case", "decision", "route", "reason"]},
        ),
        ("Strategy", {"fields": ["strategy_link", "strategy_name", "engine"]}),
        (
            "Recovered",
            {
                "fields": [
                    "reasoning_chars",
                    "content_chars",
                    "tokens_recovered",
                    "tokens_exact",
                    "budget_before",
                    "budget_after",
                ]
            },
        ),
        (
            "Times, in seconds",
            {"fields": ["idle_seconds", "seam_gap_seconds", "leg1_seconds", "leg2_seconds", "total_seconds"]},
        ),
        ("Leg 2", {"fields": ["leg2_status", "leg2_message"]}),
        ("Usage", {"fields": ["usage_before_shown", "usage_after_shown"]}),
        ("Text", {"fields": ["partial_text_shown", "continued_text_shown"], "classes": ["collapse"]}),
        ("More", {"fields": ["extra_shown"], "classes": ["collapse"]}),
    ]

    class Media:
        css = {"all": ["continuation/events.css"]}

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: ContinuationEvent | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: ContinuationEvent | None = None) -> bool:
        return False

    def get_urls(self) -> list[URLPattern]:
        export = self.admin_site.admin_view(self.export_listed)
        own = [path("export/", export, name="continuation_continuationevent_export"), *playground.urls(self)]
        return [*own, *super().get_urls()]

    def export_listed(self, request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
        """Export all rows of the list with this query, from all of its pages."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            listed = self.get_changelist_instance(request).get_queryset(request)
        except IncorrectLookupParameters:
            return HttpResponseRedirect(reverse("admin:continuation_continuationevent_changelist"))
        return csv_response(listed)

    @admin.action(description="Export the selected events as CSV", permissions=["view"])
    def export_selected(
        self, request: HttpRequest, queryset: QuerySet[ContinuationEvent]
    ) -> StreamingHttpResponse:
        return csv_response(queryset)

    # -- columns ---------------------------------------------------------------------------------

    @admin.display(description="when", ordering="-created_at")
    def when(self, event: ContinuationEvent) -> str:
        return timezone.localtime(event.created_at).strftime("%Y-%m-%d %H:%M:%S")

    @admin.display(description="request", ordering="request_id")
    def request(self, event: ContinuationEvent) -> str:
        shown = event.request_id if len(event.request_id) <= 20 else event.request_id[:18] + "…"
        return format_html('<span class="request-id" title="{}">{}</span>', event.request_id, shown)

    @admin.display(description="strategy", ordering="strategy_name")
    def strategy_link(self, event: ContinuationEvent) -> str:
        if event.strategy is None:
            return event.strategy_name or "-"
        url = reverse("admin:strategies_strategy_change", args=[event.strategy.pk])
        return format_html('<a href="{}">{}</a>', url, event.strategy)

    @admin.display(description="outcome", ordering="outcome")
    def outcome_coloured(self, event: ContinuationEvent) -> str:
        if not event.outcome:
            return "-"
        return format_html('<span class="outcome outcome-{}">{}</span>', event.outcome, event.outcome)

    @admin.display(description="seam gap", ordering="seam_gap_seconds")
    def seam_gap(self, event: ContinuationEvent) -> str:
        return "-" if event.seam_gap_seconds is None else f"{event.seam_gap_seconds:.2f} s"

    @admin.display(description="recovered", ordering="tokens_recovered")
    def recovered(self, event: ContinuationEvent) -> str:
        about = "" if event.tokens_exact else "~"
        return f"{about}{event.tokens_recovered} tokens" if event.tokens_recovered else "-"

    @admin.display(description="usage before")
    def usage_before_shown(self, event: ContinuationEvent) -> str:
        return _readable(event.usage_before)

    @admin.display(description="usage after")
    def usage_after_shown(self, event: ContinuationEvent) -> str:
        return _readable(event.usage_after)

    @admin.display(description="extra")
    def extra_shown(self, event: ContinuationEvent) -> str:
        return _readable(event.extra)

    @admin.display(description="partial text")
    def partial_text_shown(self, event: ContinuationEvent) -> str:
        return _verbatim(event.partial_text)

    @admin.display(description="continued text")
    def continued_text_shown(self, event: ContinuationEvent) -> str:
        return _verbatim(event.continued_text)


def _readable(value: Any) -> str:
    return _verbatim(_json(value, indent=2)) if value else "-"


def _json(value: Any, indent: int | None = None) -> str:
    """Sort the keys: PostgreSQL does not store the order in which they were written."""
    return json.dumps(value, indent=indent, ensure_ascii=False, sort_keys=True)


def _verbatim(text: str) -> str:
    return format_html('<pre class="event-text">{}</pre>', text) if text else "-"


# -- CSV -------------------------------------------------------------------------------------------


def csv_response(events: QuerySet[ContinuationEvent]) -> StreamingHttpResponse:
    """Stream the events, the newest first. One slice at a time is in memory."""
    name = timezone.now().strftime("continuation-events-%Y%m%d-%H%M%S.csv")
    return StreamingHttpResponse(
        _csv_lines(events),
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"},
    )


async def _csv_lines(events: QuerySet[ContinuationEvent]) -> AsyncIterator[str]:
    names = [field.attname for field in ContinuationEvent._meta.concrete_fields]
    yield _csv([names])
    # By key, not by offset: each slice costs the same, and new rows do not shift the others.
    remaining = events.order_by("-pk").values_list("pk", *names)
    page = await _page(remaining)
    while page:
        yield _csv(map(_cell, row[1:]) for row in page)
        page = await _page(remaining.filter(pk__lt=page[-1][0]))


@sync_to_async
def _page(rows: Any) -> list[tuple[Any, ...]]:
    return list(rows[:EXPORT_ROWS])


def _csv(rows: Iterable[Iterable[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Quote text that a spreadsheet would compute. Numbers stay numbers."""
    match value:
        case str():
            return f"'{value}" if value.startswith(FORMULA) else value
        case dict() | list():
            return _json(value)
        case datetime():
            return value.isoformat()
        case _:
            return value
