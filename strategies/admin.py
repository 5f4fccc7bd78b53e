"""The admin of strategies: white space that can be seen, and a live preview of what goes to the engine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import models
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, JsonResponse
from django.shortcuts import redirect, render
from django.template.loader import render_to_string
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils.html import format_html, format_html_join

from strategies import verification
from strategies.columns import Kind, Section, fields_of, fields_of_kind
from strategies.models import Strategy, StrategyQuerySet, VerificationRun
from strategies.preview import preview, sample_number, sample_partial
from strategies.types import CompiledStrategy
from strategies.verification_admin import (
    VerificationForm,
    badge,
    first_values,
    latest_finished,
    matrix_of,
    progress_of,
)
from strategies.visible import visible

if TYPE_CHECKING:
    StrategyModelAdmin = admin.ModelAdmin[Strategy]
else:
    StrategyModelAdmin = admin.ModelAdmin

# The three columns that make up the prefix, which the list shows.
TOKEN_FIELDS = ("open_token", "close_token", "content_open_token")


class TextListField(forms.JSONField):
    """A JSON list of texts. An empty field is the empty list."""

    default_error_messages = {"invalid": 'This is no JSON. Write a list of texts, such as ["a", "b"].'}

    def to_python(self, value: Any) -> Any:
        if value in self.empty_values:
            return []
        try:
            return super().to_python(value)
        except (RecursionError, ValueError) as trouble:
            raise ValidationError(self.error_messages["invalid"], code="invalid") from trouble

    def prepare_value(self, value: Any) -> Any:
        shown = super().prepare_value(value)
        try:
            shown.encode()
        except UnicodeEncodeError:  # a lone surrogate that is refused, and shown again
            return json.dumps(value)
        return shown


@admin.register(Strategy)
class StrategyAdmin(StrategyModelAdmin):
    list_display = (
        "name",
        "model",
        "engine",
        "enabled",
        "route",
        "control_tokens",
        "thinking_key",
        "verified",
        "updated_at",
    )
    list_filter = ("enabled", "engine", "render_generate", "structured_message", "prompt_opens_thinking")
    search_fields = ("name", "model", "notes")
    readonly_fields = ("latest_verification", "audit_events", "updated_at")
    actions = ("enable", "disable", "verify")
    save_as = True
    save_on_top = True
    fieldsets = (
        (None, {"fields": (*fields_of(Section.IDENTITY), "enabled")}),
        (
            Section.TOKENS.value,
            {
                "fields": fields_of(Section.TOKENS),
                "description": "The prefix is OPEN reasoning CLOSE CONTENT_OPEN content; while only "
                "reasoning has been delivered it is OPEN reasoning. Nothing is stripped from these fields: "
                "a space or a line break at an end is part of the token.",
            },
        ),
        (Section.TEMPLATE.value, {"fields": fields_of(Section.TEMPLATE)}),
        (Section.TOKEN_ROUTE.value, {"fields": fields_of(Section.TOKEN_ROUTE)}),
        ("Notes", {"fields": ("notes", "audit_events", "updated_at")}),
        ("Verification", {"fields": ("latest_verification",)}),
    )

    class Media:
        css = {"all": ("strategies/admin.css",)}
        js = ("strategies/preview.js",)

    def formfield_for_dbfield(
        self, db_field: models.Field[Any, Any], request: HttpRequest, **kwargs: Any
    ) -> Any:
        if db_field.name in fields_of_kind(Kind.TOKEN):
            attrs = {"rows": 2, "cols": 60, "spellcheck": "false", "data-white-space": "shown"}
            return db_field.formfield(strip=False, widget=forms.Textarea(attrs))
        if db_field.name in fields_of_kind(Kind.LIST):
            attrs = {"rows": 2, "cols": 60, "spellcheck": "false"}
            return db_field.formfield(form_class=TextListField, widget=forms.Textarea(attrs))
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    def get_urls(self) -> list[URLPattern]:
        # admin_view() checks for staff and for the CSRF token, which no middleware does here.
        checked = self.admin_site.admin_view
        own = [
            path("preview/", checked(self.preview_view), name="strategies_strategy_preview"),
            path("<int:pk>/verify/", checked(self.verify_view), name="strategies_strategy_verify"),
            path(
                "verification/<int:pk>/",
                checked(self.verification_view),
                name="strategies_strategy_verification",
            ),
            path(
                "verification/<int:pk>/progress/",
                checked(self.verification_progress_view),
                name="strategies_strategy_verification_progress",
            ),
        ]
        return [*own, *super().get_urls()]

    def preview_view(self, request: HttpRequest) -> HttpResponse:
        """Answer a form and a sample with the request that would be sent, or with `errors`: {label: [messages]}."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        try:
            strategy = self._strategy_in_form(request)
            max_tokens = sample_number(request.POST, "sample_max_tokens", "sample max_tokens")
            spent = sample_number(request.POST, "sample_spent", "sample tokens already spent")
        except ValidationError as trouble:
            return JsonResponse({"errors": trouble.message_dict})
        return JsonResponse(preview(strategy, sample_partial(request.POST), max_tokens, spent or 0))

    def _strategy_in_form(self, request: HttpRequest) -> CompiledStrategy:
        pk = request.POST.get("strategy_pk")
        stored = self.get_object(request, pk) if pk else None
        if pk and stored is None:
            raise ValidationError({"strategy": "It has been deleted meanwhile."})
        editable = self.has_change_permission(request, stored) if stored else self.has_add_permission(request)
        if editable:
            form = self.get_form(request, stored, change=stored is not None)(request.POST, instance=stored)
            if not form.is_valid():
                raise ValidationError(_by_label(form))
            return form.instance.compile()
        if stored is None or not self.has_view_permission(request, stored):
            raise PermissionDenied
        return stored.compile()

    # -- verification ------------------------------------------------------------------------------

    @admin.action(description="Verify against the engine…", permissions=["change"])
    def verify(self, request: HttpRequest, rows: StrategyQuerySet) -> HttpResponse | None:
        chosen = list(rows[:2])
        if len(chosen) != 1:
            messages.error(request, "Choose one strategy: an engine serves the model of one.")
            return None
        return redirect("admin:strategies_strategy_verify", chosen[0].pk)

    def verify_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Ask for the engine, then start the run in the background."""
        row = self._row_to_change(request, pk)
        running = next(
            (run for run in row.verifications.filter(finished=None) if run.state == "running"), None
        )
        if running:
            messages.info(request, "This strategy is being verified already.")
            return redirect("admin:strategies_strategy_verification", running.pk)
        form = VerificationForm(request.POST or None, initial=first_values(row))
        if verification.runner is None:
            messages.error(request, "Nothing in this installation can verify a strategy.")
        elif request.method == "POST" and form.is_valid():
            settings = verification.settings_of(row.compile())
            run = VerificationRun.objects.create(strategy=row, settings=settings, **form.cleaned_data)
            verification.start(run.pk)
            return redirect("admin:strategies_strategy_verification", run.pk)
        context = {"title": f"Verify {row}", "strategy": row, "form": form}
        return self._page(request, "verify.html", context)

    def verification_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        run = self._run_to_view(request, pk)
        context: dict[str, Any] = {"title": f"Verification of {run.strategy}", "run": run}
        context["can_verify"] = self.has_change_permission(request, run.strategy)
        if run.state == "finished":
            context["matrix"] = matrix_of(run)
        return self._page(request, "verify_run.html", context)

    def verification_progress_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        return JsonResponse(progress_of(self._run_to_view(request, pk)))

    def _row_to_change(self, request: HttpRequest, pk: int) -> Strategy:
        row = self.get_object(request, str(pk))
        if row is None:
            raise Http404("There is no such strategy.")
        if not self.has_change_permission(request, row):
            raise PermissionDenied
        return row

    def _run_to_view(self, request: HttpRequest, pk: int) -> VerificationRun:
        run = VerificationRun.objects.select_related("strategy").filter(pk=pk).first()
        if run is None:
            raise Http404("There is no such verification.")
        if not self.has_view_or_change_permission(request, run.strategy):
            raise PermissionDenied
        return run

    def _page(self, request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
        whole = {**self.admin_site.each_context(request), "opts": self.opts, **context}
        return render(request, f"admin/strategies/strategy/{template}", whole)

    @admin.display(description="verified")
    def verified(self, row: Strategy) -> str:
        return badge(row)

    @admin.display(description="latest run")
    def latest_verification(self, row: Strategy) -> str:
        if row.pk is None:
            return "-"
        url = reverse("admin:strategies_strategy_verify", args=[row.pk])
        again = format_html('<p><a href="{}">Verify against the engine…</a></p>', url)
        run = latest_finished(row)
        if run is None:
            return format_html("{}{}", "never", again)
        table = render_to_string("admin/strategies/strategy/matrix.html", {"matrix": matrix_of(run)})
        return format_html("{}{}", table, again)

    # -- columns and actions -----------------------------------------------------------------------

    @admin.display(description="route", ordering="render_generate")
    def route(self, row: Strategy) -> str:
        return "token route" if row.render_generate or row.token_exact else "chat-continue"

    @admin.display(description="OPEN / CLOSE / CONTENT_OPEN")
    def control_tokens(self, row: Strategy) -> str:
        shown = [(visible(getattr(row, field)).rstrip("\n") or "(empty)",) for field in TOKEN_FIELDS]
        if not row.content_open_token:
            shown.pop()
        return format_html_join(" ", '<code class="strategy-token">{}</code>', shown)

    @admin.display(description="audit events")
    def audit_events(self, row: Strategy) -> str:
        url = audit_events_url(row)
        return format_html('<a href="{}">Streams that this strategy was chosen for</a>', url) if url else "-"

    @admin.action(description="Enable the chosen strategies", permissions=["change"])
    def enable(self, request: HttpRequest, rows: StrategyQuerySet) -> None:
        messages.success(request, f"Enabled: {rows.update(enabled=True)}.")

    @admin.action(description="Disable the chosen strategies", permissions=["change"])
    def disable(self, request: HttpRequest, rows: StrategyQuerySet) -> None:
        messages.success(request, f"Disabled: {rows.update(enabled=False)}.")


def audit_events_url(row: Strategy) -> str | None:
    """Address of this strategy's streams in the audit; None for a new row, or without an audit."""
    if row.pk is None:
        return None
    try:
        page = reverse("admin:continuation_continuationevent_changelist")
    except NoReverseMatch:
        return None
    return f"{page}?strategy__id__exact={row.pk}"


def _by_label(form: forms.ModelForm[Strategy]) -> dict[str, list[str]]:
    return {
        str(form.fields[name].label) if name in form.fields else "row": [
            str(message) for message in messages_
        ]
        for name, messages_ in form.errors.items()
    }
