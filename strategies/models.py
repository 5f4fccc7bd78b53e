"""Strategies as rows: validated here, so that admin, fixtures and commands agree, and compiled from here."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from typing import Any, ClassVar

from django.core.exceptions import ValidationError
from django.core.validators import MaxLengthValidator, RegexValidator
from django.db import models, router, transaction
from django.db.models.functions import Lower
from django.db.models.signals import post_delete, post_save, pre_save
from django.dispatch import receiver
from django.utils import timezone

from strategies import cache
from strategies.columns import COLUMNS, Kind, fields_of_kind
from strategies.engines import Engine, engine_choices, engines_with_token_route
from strategies.types import CompiledStrategy, Fallback

# Migrations name the validators as parts of this module.
from strategies.validation import LONGEST_TOKEN, check_list, name_or_glob, storable
from strategies.verification import settings_of

_LINE_END = re.compile(r"\r\n?")


class StrategyRevision(models.Model):
    """One row, counted up in the transaction of every change of a strategy; other processes poll it."""

    THE_ROW: ClassVar[int] = 1

    counter = models.PositiveBigIntegerField(default=0)
    # Distinguishes a counter that was reset (a flush, a restored backup) from an earlier one of the same value.
    changed_at = models.DateTimeField(default=timezone.now)

    class Meta:
        verbose_name = "strategy revision"

    def __str__(self) -> str:
        return f"revision {self.counter}"

    @classmethod
    def bump(cls, using: str) -> None:
        cls._default_manager.using(using).get_or_create(pk=cls.THE_ROW)
        row = cls._default_manager.using(using).filter(pk=cls.THE_ROW)
        row.update(counter=models.F("counter") + 1, changed_at=timezone.now())


class StrategyQuerySet(models.QuerySet["Strategy"]):
    """Bulk changes send no signals, so they validate and count here."""

    def update(self, **kwargs: Any) -> int:
        with transaction.atomic(using=self.db):
            changed = super().update(**kwargs)
            _changed(self.db)
        return changed

    def bulk_create(self, objs: Iterable[Strategy], *args: Any, **kwargs: Any) -> list[Strategy]:
        rows = list(objs)
        for row in rows:
            row.full_clean()
        with transaction.atomic(using=self.db):
            created = super().bulk_create(rows, *args, **kwargs)
            _changed(self.db)
        return created

    def bulk_update(
        self, objs: Iterable[Strategy], fields: Iterable[str], batch_size: int | None = None
    ) -> int:
        rows = list(objs)
        for row in rows:
            row.full_clean()
        return super().bulk_update(rows, fields, batch_size)  # it calls update()

    def get_by_natural_key(self, name: str) -> Strategy:
        return self.get(name=name)


def _token_field(label: str, help_text: str, default: str = "", **more: Any) -> models.TextField[str, str]:
    validators: list[Callable[[Any], None]] = [MaxLengthValidator(LONGEST_TOKEN), storable]
    return models.TextField(
        label, blank=True, default=default, validators=validators, help_text=help_text, **more
    )


class Strategy(models.Model):
    """How a broken answer of one model on one engine is continued."""

    class FallbackChoice(models.TextChoices):
        NONE = Fallback.NONE, "fail the stream"
        CHAT = Fallback.CHAT, "try chat-continue"
        COMPLETIONS = Fallback.COMPLETIONS, "/v1/completions with the prompt's ids"

    class ReasoningField(models.TextChoices):
        REASONING = "reasoning", "reasoning"
        REASONING_CONTENT = "reasoning_content", "reasoning_content"

    name = models.CharField(
        max_length=100,
        unique=True,
        validators=[
            RegexValidator(
                r"^[A-Za-z0-9][A-Za-z0-9._:+-]*\Z",
                "A name begins with a letter or digit and goes on with letters, digits and . _ : + - only.",
            )
        ],
        help_text="Unique, for example qwen3.6-vllm. The row named generic is used where no other row fits.",
    )
    model = models.CharField(
        max_length=200,
        validators=[storable, name_or_glob],
        help_text="The real model, as in CONTINUATION_MODEL: a name, or a glob with *, ? and [...] such as "
        "qwen3.6*. Compared without case, and also with what follows the last / of names like "
        "Qwen/Qwen3.6-35B-A3B. The most specific row wins.",
    )
    engine = models.CharField(
        max_length=10,
        choices=engine_choices,
        default=Engine.ANY.value,
        help_text="The engine at CONTINUATION_URL that this row is right for. A row for the engine named by "
        "CONTINUATION_ENGINE is preferred to one for any.",
    )
    served_names = models.JSONField(
        default=list,
        blank=True,
        help_text="Names or globs that clients send as `model` and that this row serves, whatever "
        'CONTINUATION_MODEL says. A JSON list of texts, such as ["chat-large", "team-*"].',
    )
    enabled = models.BooleanField(default=True, help_text="A row that is not enabled is never chosen.")

    open_token = _token_field(
        "OPEN", "Comes before the reasoning. White space counts: nothing is stripped.", "<think>"
    )
    close_token = _token_field(
        "CLOSE",
        "Comes after the reasoning, once content has begun; line breaks that the model writes around it "
        "are already part of the reasoning and the content.",
        "</think>",
    )
    content_open_token = _token_field(
        "CONTENT_OPEN",
        "Comes between CLOSE and the content, for models that open a channel for it. Mostly empty.",
    )
    prompt_opens_thinking = models.BooleanField(
        default=False,
        help_text="The engine appends the prefix to a generation prompt that already ends with OPEN (SGLang, "
        "with templates that do so), so OPEN is left out of the prefix.",
    )

    thinking_key = models.CharField(
        max_length=64,
        blank=True,
        default="thinking",
        validators=[
            RegexValidator(
                r"^[A-Za-z_][A-Za-z0-9_]*\Z",
                "A thinking key is one word of letters, digits and _ that does not begin with a digit, "
                "such as enable_thinking, or empty for none.",
            )
        ],
        help_text="The key of chat_template_kwargs that switches thinking off, sent as false once content "
        "has begun: enable_thinking for Qwen, thinking for Kimi, GLM and DeepSeek. Empty: nothing is sent.",
    )
    structured_message = models.BooleanField(
        default=False,
        help_text='Send reasoning and content as two fields of the message, {"role", "reasoning", '
        '"content"}, for templates that rewrite the one-string form. Used once content has begun.',
    )
    reasoning_field = models.CharField(
        max_length=20,
        choices=ReasoningField.choices,
        default=ReasoningField.REASONING,
        help_text="The field of the structured message that holds the reasoning.",
    )
    reasoning_end = _token_field(
        "reasoning ends with",
        "A reasoning that ends with this is taken as complete, and sent closed, while no content has begun: a line "
        "break for Qwen on vLLM, whose template spoils an open one. A reasoning that was not complete is then cut "
        "short. Empty: it is never closed, and the model closes it itself. Chat-continue only.",
        db_default="",  # for processes that do not know the column yet
    )
    template_trims = models.BooleanField(
        default=False,
        help_text="The chat template trims the prefix, so the model writes white space at its end a second "
        "time; it is then dropped once.",
    )
    may_think_again = models.BooleanField(
        default=False,
        help_text="The model may go back to thinking after content has begun: such reasoning is kept as "
        "reasoning. Otherwise it is put right as content.",
    )

    render_generate = models.BooleanField(
        "token route",
        default=False,
        help_text="Continue with the engine's render, generate and derender endpoints (vLLM with scale-out), "
        "for models whose renderer ignores continue_final_message.",
    )
    token_exact = models.BooleanField(
        default=False,
        help_text="Have the engine report token ids while it streams and continue from exactly these (vLLM).",
    )
    without_scale_out = models.CharField(
        max_length=20,
        choices=FallbackChoice.choices,
        default=Fallback.NONE.value,
        help_text="What is done where the server lacks those endpoints: the stream fails; chat-continue is tried "
        "(for models whose renderer honours the flag); or the ids go to /v1/completions (no tools then).",
    )
    markers = models.JSONField(
        default=list,
        blank=True,
        help_text="Control texts that the token route must not cut in two. A JSON list of texts, such as "
        '["[/THINK]", "[TOOL_CALLS]"].',
    )

    notes = models.TextField(
        blank=True, validators=[storable], help_text="What is known about this row, and what is not verified."
    )
    updated_at = models.DateTimeField("last change", auto_now=True)

    objects = StrategyQuerySet.as_manager()

    class Meta:
        verbose_name_plural = "strategies"
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(
                Lower("model"),
                "engine",
                name="one_strategy_per_model_and_engine",
                violation_error_message="There is a strategy for this model and engine already.",
            )
        ]

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, **kwargs: Any) -> None:
        # The row and its revision are committed together. Validation is in pre_save: fixtures pass there too.
        with transaction.atomic(using=kwargs.get("using") or router.db_for_write(type(self), instance=self)):
            super().save(*args, **kwargs)

    def natural_key(self) -> tuple[str]:
        return (self.name,)

    def clean_fields(self, exclude: Collection[str] | None = None) -> None:
        for token in fields_of_kind(Kind.TOKEN):
            text = getattr(self, token)
            if isinstance(text, str):
                setattr(self, token, _LINE_END.sub("\n", text))
        super().clean_fields(exclude=exclude)

    def clean(self) -> None:
        problems: dict[str, list[ValidationError]] = {}
        for field, trouble in (*self._contradictions(), *self._wrong_lists()):
            problems.setdefault(field, []).append(trouble)
        if problems:
            raise ValidationError(problems)

    def compile(self) -> CompiledStrategy:
        """Compile the row for the request path. Raises ValidationError if it was written past validation."""
        self.clean_fields()
        self.clean()
        values = {column.attribute: column.compile(getattr(self, column.field)) for column in COLUMNS}
        return CompiledStrategy(**values, pk=self.pk)

    def _contradictions(self) -> list[tuple[str, ValidationError]]:
        able = engines_with_token_route()
        takes_tokens = self.engine in able
        must_be = f"the engine must be {' or '.join(sorted(able, reverse=True))}, not {self.engine}"
        rules = (
            (
                "close_token",
                (self.open_token or self.prompt_opens_thinking) and not self.close_token,
                "CLOSE is needed where the thinking is opened (by OPEN, or by the prompt), or reasoning and "
                "content would run together.",
            ),
            (
                "structured_message",
                self.structured_message and self.prompt_opens_thinking,
                "A structured message has no opening token to leave out: choose either this or "
                "'prompt opens thinking'.",
            ),
            (
                "render_generate",
                self.render_generate and not takes_tokens,
                f"The token route exists on {_labels_of_token_route()} only: {must_be}.",
            ),
            (
                "token_exact",
                self.token_exact and not takes_tokens,
                f"Token ids are reported while streaming by {_labels_of_token_route()} only: {must_be}.",
            ),
        )
        return [
            (field, ValidationError(message, code="contradiction"))
            for field, wrong, message in rules
            if wrong
        ]

    def _wrong_lists(self) -> list[tuple[str, ValidationError]]:
        found = []
        for field in fields_of_kind(Kind.LIST):
            try:
                check_list(getattr(self, field), names=field == "served_names")
            except ValidationError as trouble:
                found.append((field, trouble))
        return found


class VerificationRun(models.Model):
    """A strategy tested on a live engine, in the background or by a command.

    settings  what the row said when the run began
    probes    [{"name", "value", "says"}]; recommendation {"says": [...], "changes": {field: value}, "variant"}
    variants  [{"name", "route", "configured", "recommended", "finalist", "settings", "exact", "tried", "total"}]
    places    [[kind of cut place, number of cuts]] in the order of an answer
    """

    # Time without progress after which a run counts as lost: its process has ended.
    LOST_AFTER: ClassVar[timedelta] = timedelta(minutes=15)

    strategy = models.ForeignKey(Strategy, on_delete=models.CASCADE, related_name="verifications")
    engine = models.CharField(max_length=10, blank=True)
    engine_version = models.CharField(max_length=100, blank=True)
    base_url = models.CharField(max_length=500)
    model = models.CharField(max_length=200, blank=True)
    cuts = models.PositiveIntegerField(default=4)
    started = models.DateTimeField(default=timezone.now)
    finished = models.DateTimeField(null=True, blank=True)
    heard = models.DateTimeField(default=timezone.now)
    done = models.PositiveIntegerField(default=0)
    total = models.PositiveIntegerField(default=0)
    doing = models.CharField(max_length=200, blank=True)
    trouble = models.TextField(blank=True)
    settings = models.JSONField(default=dict)
    probes = models.JSONField(default=list)
    places = models.JSONField(default=list)
    variants = models.JSONField(default=list)
    recommendation = models.JSONField(default=dict)

    class Meta:
        ordering = ["-started", "-pk"]
        get_latest_by = ["started", "pk"]

    def __str__(self) -> str:
        return f"{self.strategy} against {self.base_url}"

    @property
    def state(self) -> str:
        """running, lost, failed or finished."""
        if self.finished is None:
            return "running" if timezone.now() - self.heard < self.LOST_AFTER else "lost"
        return "failed" if self.trouble else "finished"

    def variant_of(self, row: Strategy) -> dict[str, Any] | None:
        """The measured variant with the settings that the row has now; None if the row was edited since."""
        try:
            now = settings_of(row.compile())
        except ValidationError:
            return None
        known = (one for one in self.variants if one.get("finalist") and one.get("settings") == now)
        return next(known, None)

    def verdict_on(self, row: Strategy) -> str:
        """verified, partly or failing; edited if the row has settings now that were not measured."""
        found = self.variant_of(row)
        if found is None:
            return "edited"
        if not found["exact"]:
            return "failing"
        return "verified" if found["exact"] == found["tried"] else "partly"


class VerificationResult(models.Model):
    """One variant of a run at one kind of cut place."""

    run = models.ForeignKey(VerificationRun, on_delete=models.CASCADE, related_name="results")
    variant = models.CharField(max_length=500)
    route = models.CharField(max_length=30)
    place = models.CharField(max_length=60)
    exact = models.PositiveIntegerField(default=0)
    diverged = models.PositiveIntegerField(default=0)
    refused = models.PositiveIntegerField(default=0)
    not_tried = models.PositiveIntegerField(default=0)
    usage_equal = models.PositiveIntegerField(default=0)
    first_difference = models.TextField(blank=True)

    class Meta:
        ordering = ["pk"]

    def __str__(self) -> str:
        return f"{self.variant} at {self.place}: {self.exact} of {self.total}"

    @property
    def tried(self) -> int:
        return self.exact + self.diverged + self.refused

    @property
    def total(self) -> int:
        return self.tried + self.not_tried


def _labels_of_token_route() -> str:
    return ", ".join(engine.traits.label for engine in Engine if engine.traits.token_route)


def _changed(using: str) -> None:
    """Raise the revision, and refresh the book of this process as soon as the change is committed."""
    StrategyRevision.bump(using)
    transaction.on_commit(cache.refresh, using=using)


@receiver(pre_save, sender=Strategy)
def _validate(
    sender: type[Strategy], instance: Strategy, using: str, raw: bool = False, **kwargs: Any
) -> None:
    if raw:
        # A row of a fixture always looks new. Without this it would be refused as a duplicate of the row it replaces.
        instance._state.adding = not Strategy.objects.using(using).filter(pk=instance.pk).exists()
    instance.full_clean()


@receiver(post_save, sender=Strategy)
@receiver(post_delete, sender=Strategy)
def _count(sender: type[Strategy], using: str, **kwargs: Any) -> None:
    _changed(using)


@receiver(pre_save, sender=StrategyRevision)
def _never_count_back(
    sender: type[StrategyRevision], instance: StrategyRevision, using: str, raw: bool = False, **kwargs: Any
) -> None:
    """Raise the counter that a fixture brings from another database: a lower one would hide changes from others."""
    if raw:
        known = StrategyRevision._default_manager.using(using).filter(pk=instance.pk).first()
        instance.counter = max(instance.counter, known.counter if known else 0) + 1
        instance.changed_at = timezone.now()
