"""`manage.py migrate`, as Django has it, but on PostgreSQL by one process at a time: a rollout that starts several at
once lets each of them migrate, and all but the first find nothing left to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.commands import migrate
from django.db import connections

# Of the advisory lock in the database that is migrated; nothing else there uses this number.
LOCK = int.from_bytes(b"contmigr", "big")


class Command(migrate.Command):
    def handle(self, *args: Any, **options: Any) -> str | None:
        if options["check_unapplied"] or options["plan"]:  # these write nothing
            return super().handle(*args, **options)
        with self._alone(options["database"], options["verbosity"]):
            return super().handle(*args, **options)

    @contextmanager
    def _alone(self, alias: str, verbosity: int) -> Iterator[None]:
        """Hold the lock in a transaction on a connection of its own: it goes with the connection, however this process
        ends, and poolers that lend a connection for each transaction leave it alone."""
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
