"""`manage.py prune_events`: delete old audit rows now, rather than within the hour."""

import argparse
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from continuation.audit import retention


class Command(BaseCommand):
    help = "Delete audit rows that are older than AUDIT_RETENTION_DAYS, or than --days."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--days", type=_days, metavar="N", help="keep the last N days; 0 keeps nothing")
        parser.add_argument("--dry-run", action="store_true", help="count them only")

    def handle(self, *args: Any, **options: Any) -> None:
        days = settings.AUDIT_RETENTION_DAYS if options["days"] is None else options["days"]
        if options["dry_run"]:
            self.stdout.write(f"{retention.expired(days).count()} events are older than {days} days")
            return
        pruned = 0
        while deleted := retention.prune(days, most=retention.PRUNE_ROWS):
            pruned += deleted
        self.stdout.write(f"{pruned} events older than {days} days deleted")


def _days(raw: str) -> int:
    try:
        days = int(raw)
    except ValueError:
        days = -1
    if days < 0:
        raise argparse.ArgumentTypeError(f"{raw!r} is not allowed; allowed is a whole number, 0 or more")
    return days
