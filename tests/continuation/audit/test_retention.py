from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from continuation.audit import retention
from continuation.models import ContinuationEvent

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def events() -> None:
    for days in (0, 1, 6, 8, 20, 40):
        ContinuationEvent.objects.create(
            created_at=timezone.now() - timedelta(days=days, minutes=1), request_id=f"{days} days"
        )


def prune(*options: str) -> str:
    out = StringIO()
    call_command("prune_events", *options, stdout=out)
    return out.getvalue().strip()


def left() -> list[str]:
    return list(ContinuationEvent.objects.values_list("request_id", flat=True))


def test_rows_older_than_the_retention_are_deleted(settings: Any) -> None:
    settings.AUDIT_RETENTION_DAYS = 7
    assert prune() == "3 events older than 7 days deleted"
    assert left() == ["0 days", "1 days", "6 days"]


def test_the_days_can_be_given(settings: Any) -> None:
    settings.AUDIT_RETENTION_DAYS = 7
    assert prune("--days", "30") == "1 events older than 30 days deleted"
    assert left() == ["0 days", "1 days", "6 days", "8 days", "20 days"]


def test_zero_days_keep_nothing() -> None:
    assert prune("--days=0") == "6 events older than 0 days deleted"
    assert left() == []


def test_a_dry_run_only_counts() -> None:
    assert prune("--days", "7", "--dry-run") == "3 events are older than 7 days"
    assert len(left()) == 6


def test_more_rows_than_a_slice_holds_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "PRUNE_ROWS", 2)
    assert prune("--days", "0") == "6 events older than 0 days deleted"
    assert left() == []


@pytest.mark.parametrize("days", ["-1", "seven", "1.5", ""])
def test_days_that_are_no_whole_number_are_refused(days: str) -> None:
    with pytest.raises(CommandError, match="allowed is a whole number, 0 or more"):
        prune(f"--days={days}")
    assert len(left()) == 6
