"""Does the database answer?"""

from __future__ import annotations

import concurrent.futures
import threading

from django.db import connection


class Question:
    """`SELECT 1`, asked once for all who ask at the same time, in a thread of its own.

    So a database that hangs costs one thread, which keeps no process from ending.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: concurrent.futures.Future[None] | None = None

    def future(self) -> concurrent.futures.Future[None]:
        with self._lock:
            if self._pending is None or self._pending.done():
                self._pending = concurrent.futures.Future()
                threading.Thread(
                    target=_ask, args=[self._pending], name="ready-database", daemon=True
                ).start()
            return self._pending


def _ask(future: concurrent.futures.Future[None]) -> None:
    try:
        select_one()
    except Exception as trouble:
        future.set_exception(trouble)
    else:
        future.set_result(None)


def select_one() -> None:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            cursor.fetchone()
    finally:
        connection.close()
