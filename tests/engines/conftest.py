"""Suites against real engines: `make test-engines`. What they measured is printed at the end, as Markdown."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import pytest

from engines.serving import engines_dir
from tests.engines.cutting import Cut, Table
from tests.harness.gateway import ROOT, migrated_database


class Report:
    """Tables of cuts by the engine's title, and single measurements."""

    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}
        self.notes: list[str] = []

    def cuts(self, title: str, route: str, cuts: Collection[Cut]) -> None:
        self.tables.setdefault(title, Table()).add(route, cuts)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def lines(self) -> list[str]:
        tables = [["", *table.lines(title)] for title, table in self.tables.items()]
        notes = ["", *(f"- {note}" for note in self.notes)] if self.notes else []
        return [line for table in tables for line in table] + notes


REPORT = pytest.StashKey[Report]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[REPORT] = Report()


@pytest.fixture(scope="session")
def report(pytestconfig: pytest.Config) -> Report:
    return pytestconfig.stash[REPORT]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash[REPORT].lines()
    if lines:
        terminalreporter.section("answers that were cut and continued: identical of all")
        terminalreporter.write_line("\n".join(lines))
        written = ROOT / "build" / "engines.md"
        written.parent.mkdir(exist_ok=True)
        written.write_text("\n".join(lines).strip() + "\n", encoding="utf-8")
        terminalreporter.write_line(f"\nalso in {os.path.relpath(written)}")


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated database."""
    return migrated_database(tmp_path_factory.mktemp("database") / "template.sqlite3")


@pytest.fixture(scope="session", autouse=True)
def _installed() -> None:
    """Never skipped: whoever asks for these tests wants them run."""
    missing = [name for name in ("vllm", "sglang", "tiny") if not (engines_dir() / name).is_dir()]
    assert not missing, f"{', '.join(missing)} not in {engines_dir()}: run engines/prepare.py"
