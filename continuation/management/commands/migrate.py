"""`manage.py migrate`, like Django's, but on PostgreSQL one process at a time. A rollout may start several at once: the
first migrates, the others wait and find nothing left to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.commands import migrate
from django.db import connections

# Number of the advisory lock. Nothing else in the database uses it.
LOCK = int.from_bytes(b"contmigr", "big")


class Command(migrate.Command):
    def handle(self, *args: Any, **options: Any) -> str | None:
        if options["check_unapplied"] or options["plan"]:  # these write nothing
            return super().handle(*args, **options)
        with self._alone(options["database"], options["verbosity"]):
            return super().handle(*args, **options)

    @contextmanager
    def _alone(self, alias: str, verbosity: int) -> Iterator[None]:
        """Hold the lock in a transaction on a connection of its own: the lock ends with the connection, however this
        process ends, and it works with poolers that lend a connection per transaction."""
        if connections[alias].vendor != "postgresql":
            yield
            return
        holder = connections[alias].copy()
        try:
            holder.set_autocommit(False)
            with holder.cursor() as cursor:
                cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [LOCK])
                if not cursor.fetchone()[0]:
                    if verbosity:
                        self.stdout.write("Another process is migrating this database: waiting for its end.")
                        self.stdout.flush()
                    cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
            yield
        finally:
            holder.close()
