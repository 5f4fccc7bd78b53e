"""Deletes rows that are older than AUDIT_RETENTION_DAYS, in batches."""

from __future__ import annotations

from datetime import timedelta

from django.db import models
from django.utils import timezone

from continuation.models import ContinuationEvent

# Rows that one transaction deletes.
PRUNE_ROWS = 500


def expired(days: int) -> models.QuerySet[ContinuationEvent]:
    """The rows that are more than `days` days old."""
    try:
        limit = timezone.now() - timedelta(days=days)
    except OverflowError:
        return ContinuationEvent.objects.none()
    return ContinuationEvent.objects.filter(created_at__lt=limit)


def prune(days: int, most: int) -> int:
    """Delete up to `most` rows that are more than `days` days old; how many there were."""
    doomed = list(expired(days).order_by("created_at").values_list("pk", flat=True)[:most])
    deleted, _ = ContinuationEvent.objects.filter(pk__in=doomed).delete() if doomed else (0, {})
    return deleted
