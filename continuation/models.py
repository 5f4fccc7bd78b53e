"""The audit: one row for each stream that failed, was continued, or was left by its client."""

from enum import StrEnum
from typing import Any

from django.db import models

from continuation.vocabulary import Case, Decision, Failure, Outcome, Reason, Route, label
from strategies.engines import Engine


def _labelled(words: type[StrEnum]) -> list[tuple[str, str]]:
    return [(str(word), label(word)) for word in words]


# Callables, so that a new word of the vocabulary needs no migration.
def failures() -> list[tuple[str, str]]:
    return _labelled(Failure)


def cases() -> list[tuple[str, str]]:
    return _labelled(Case)


def decisions() -> list[tuple[str, str]]:
    return _labelled(Decision)


def routes() -> list[tuple[str, str]]:
    return _labelled(Route)


def outcomes() -> list[tuple[str, str]]:
    return _labelled(Outcome)


def reasons() -> list[tuple[str, str]]:
    return _labelled(Reason)


def engines() -> list[tuple[str, str]]:
    return _labelled(Engine)


def _word(choices: Any, help_text: str) -> Any:
    return models.CharField(max_length=40, blank=True, default="", choices=choices, help_text=help_text)


def _seconds(help_text: str) -> Any:
    return models.FloatField(null=True, blank=True, help_text=help_text)


class ContinuationEvent(models.Model):
    """The fields of `continuation.splice.record.StreamRecord`, under the same names."""

    created_at = models.DateTimeField("when")
    request_id = models.CharField("request id", max_length=200)
    completion_id = models.CharField("completion id", max_length=200, blank=True, default="")
    requested_model = models.CharField(
        "model", max_length=200, blank=True, default="", help_text="As the client named it."
    )
    strategy = models.ForeignKey(
        "strategies.Strategy",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        db_index=False,
    )
    strategy_name = models.CharField(
        max_length=200, blank=True, default="", help_text="As it was called then; outlives the strategy."
    )
    engine = _word(engines, "The engine that the strategy is for.")

    failure = _word(failures, "How leg 1 died before its finish_reason.")
    case = _word(cases, "What the client had received by then.")
    decision = _word(decisions, "Whether a continuation request was sent.")
    route = _word(routes, "How the continuation was asked for.")
    outcome = _word(outcomes, "How the client's stream ended.")
    reason = _word(reasons, "Why there was no leg 2, or why it did not rescue the stream.")

    reasoning_chars = models.BigIntegerField("reasoning characters", default=0, help_text="Kept from leg 1.")
    content_chars = models.BigIntegerField("content characters", default=0, help_text="Kept from leg 1.")
    tokens_recovered = models.BigIntegerField(default=0, help_text="Tokens of leg 1 that were not lost.")
    tokens_exact = models.BooleanField(default=False, help_text="Counted by the engine, not estimated.")
    budget_before = models.BigIntegerField(null=True, blank=True, help_text="The client's token limit.")
    budget_after = models.BigIntegerField(null=True, blank=True, help_text="What leg 2 was left with.")

    idle_seconds = _seconds("Since the last event of leg 1, when it was given up.")
    seam_gap_seconds = _seconds("From the last event of leg 1 to the first of leg 2.")
    leg1_seconds = _seconds("How long leg 1 ran.")
    leg2_seconds = _seconds("How long leg 2 ran.")
    total_seconds = _seconds("The whole stream, as the client saw it.")

    leg2_status = models.BigIntegerField(
        "leg 2 status", null=True, blank=True, help_text="HTTP status of the answer to leg 2."
    )
    leg2_message = models.CharField(
        "leg 2 message",
        max_length=200,
        blank=True,
        default="",
        help_text="First line of what the engine said when it refused.",
    )
    usage_before = models.JSONField(null=True, blank=True, help_text="Leg 1's usage, as far as reported.")
    usage_after = models.JSONField(null=True, blank=True, help_text="The usage that the client was told.")
    partial_text = models.TextField(blank=True, default="", help_text="Only with AUDIT_STORE_TEXT.")
    continued_text = models.TextField(blank=True, default="", help_text="Only with AUDIT_STORE_TEXT.")
    extra = models.JSONField(default=dict, blank=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        verbose_name = "continuation event"
        # One for the list, one for each of its filters (newest first within it), two for ids looked up.
        indexes = [
            models.Index(fields=["-created_at", "-id"], name="event_newest"),
            models.Index(fields=["failure", "-created_at"], name="event_failure"),
            models.Index(fields=["case", "-created_at"], name="event_case"),
            models.Index(fields=["decision", "-created_at"], name="event_decision"),
            models.Index(fields=["route", "-created_at"], name="event_route"),
            models.Index(fields=["outcome", "-created_at"], name="event_outcome"),
            models.Index(fields=["reason", "-created_at"], name="event_reason"),
            models.Index(fields=["engine", "-created_at"], name="event_engine"),
            models.Index(fields=["strategy", "-created_at"], name="event_strategy"),
            models.Index(fields=["request_id"], name="event_request_id"),
            models.Index(fields=["completion_id"], name="event_completion_id"),
        ]

    def __str__(self) -> str:
        return f"{self.request_id} {self.outcome}".strip()
