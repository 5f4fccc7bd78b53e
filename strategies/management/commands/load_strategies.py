"""Load the built-in strategies; rows that exist already are left as they are unless a reset is asked for."""

from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from strategies.builtin import builtin_rows
from strategies.models import Strategy


class Command(BaseCommand):
    help = "Create the built-in strategies that are missing. Existing rows are kept, whatever they hold."

    def add_arguments(self, parser: ArgumentParser) -> None:
        which = parser.add_mutually_exclusive_group()
        which.add_argument(
            "--reset",
            action="append",
            default=[],
            metavar="NAME",
            help="bring this row back to its built-in values (may be given more than once)",
        )
        which.add_argument("--reset-all", action="store_true", help="bring every built-in row back")
        which.add_argument(
            "--list", action="store_true", help="show the built-in strategies and change nothing"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        rows = {row["name"]: row for row in builtin_rows()}
        if options["list"]:
            self._show(rows)
            return
        resets = set(rows) if options["reset_all"] else set(options["reset"])
        unknown = sorted(resets - set(rows))
        if unknown:
            raise CommandError(
                f"no built-in strategy is named {', '.join(unknown)}; there are {', '.join(rows)}"
            )
        with transaction.atomic():
            done = [(name, self._load(row, reset=name in resets)) for name, row in rows.items()]
        for name, what in done:
            self.stdout.write(f"{name}: {what}")

    def _load(self, row: dict[str, Any], *, reset: bool) -> str:
        existing = Strategy.objects.filter(name=row["name"]).first()
        if existing and not reset:
            return "kept as it is"
        rival = Strategy.objects.filter(model__iexact=row["model"], engine=row["engine"]).first()
        if rival and not existing:
            return f"left out, {rival.name} is for {row['model']} on {row['engine']} already"
        strategy = existing or Strategy()
        for field, value in (_defaults() | row).items():
            setattr(strategy, field, value)
        try:
            strategy.save()
        except ValidationError as trouble:
            raise CommandError(
                f"{row['name']}: {' '.join(trouble.messages)} Nothing was changed."
            ) from trouble
        return "reset" if existing else "created"

    def _show(self, rows: dict[str, dict[str, Any]]) -> None:
        stored = set(Strategy.objects.values_list("name", flat=True))
        for name, row in rows.items():
            state = "in the database" if name in stored else "missing"
            self.stdout.write(f"{name}: {row['model']} on {row['engine']}, {state}")


def _defaults() -> dict[str, Any]:
    fields = Strategy._meta.concrete_fields
    return {
        field.attname: field.get_default() for field in fields if field.editable and not field.primary_key
    }
