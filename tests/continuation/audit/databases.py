"""A database of its own for a test, of the kind that this run of the tests is on, which can be taken away."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.harness.gateway import Database, SqliteDatabase
from tests.harness.postgres import PostgresDatabase, run_sql


class OwnSqlite:
    """A file, for all threads: one in memory behaves differently between threads."""

    when_away = "unable to open database file"
    # How a trigger refuses a row, and how it does so with the error of a database that is away.
    refusal = "BEGIN SELECT RAISE(ABORT, 'not this one'); END"
    refusal_as_if_away = "BEGIN SELECT json_extract('{', '$'); END"

    def __init__(self, template: Path, directory: Path) -> None:
        self._directory = directory / "here"
        self._directory.mkdir()
        self.name = shutil.copyfile(template, self._directory / "own.sqlite3").as_posix()

    def take_away(self) -> None:
        self._directory.rename(self._directory.with_name("elsewhere"))

    def bring_back(self) -> None:
        self._directory.with_name("elsewhere").rename(self._directory)

    def refuse(self, table: str, as_if_away: bool) -> list[str]:
        """The statements after which no row of a request `bad...` is taken."""
        how = self.refusal_as_if_away if as_if_away else self.refusal
        return [f"CREATE TRIGGER refuse BEFORE INSERT ON {table} WHEN NEW.request_id LIKE 'bad%' {how}"]

    def drop(self) -> None:
        """It goes with the directory of the test."""


class OwnPostgres:
    def __init__(self, template: PostgresDatabase) -> None:
        self._database = template.copy()
        self.name = self._database.name

    @property
    def when_away(self) -> str:
        return f'database "{self.name}" is not currently accepting connections'

    def take_away(self) -> None:
        server = self._database.server
        run_sql(server, f'ALTER DATABASE "{self.name}" ALLOW_CONNECTIONS false')
        run_sql(
            server, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (self.name,)
        )

    def bring_back(self) -> None:
        run_sql(self._database.server, f'ALTER DATABASE "{self.name}" ALLOW_CONNECTIONS true')

    def refuse(self, table: str, as_if_away: bool) -> list[str]:
        code = "query_canceled" if as_if_away else "check_violation"
        return [
            "CREATE FUNCTION refusal() RETURNS trigger AS "
            f"$$ BEGIN RAISE {code} USING MESSAGE = 'not this one'; END $$ LANGUAGE plpgsql",
            f"CREATE TRIGGER refuse BEFORE INSERT ON {table} FOR EACH ROW "
            "WHEN (NEW.request_id LIKE 'bad%') EXECUTE FUNCTION refusal()",
        ]

    def drop(self) -> None:
        self._database.drop()


OwnDatabase = OwnSqlite | OwnPostgres


def own_database(template: Database, directory: Path) -> OwnDatabase:
    if isinstance(template, SqliteDatabase):
        return OwnSqlite(template.path, directory)
    return OwnPostgres(template)
