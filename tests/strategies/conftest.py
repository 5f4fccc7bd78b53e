"""Each test has a shelf of its own, so that no book is carried from one test to the next."""

from collections.abc import Iterator

import pytest

from strategies import cache


@pytest.fixture(autouse=True)
def shelf(monkeypatch: pytest.MonkeyPatch) -> Iterator[cache.BookShelf]:
    fresh = cache.BookShelf()
    monkeypatch.setattr(cache, "_shelf", fresh)
    yield fresh
    cache.stop()
