from collections.abc import Iterator

import pytest

from tests.continuation.clients.resumable.scripted import READERS, Reader
from tests.harness.upstream import Upstream


@pytest.fixture
def upstream(session_upstream: Upstream) -> Iterator[Upstream]:
    """It stands for a gateway."""
    yield session_upstream
    assert session_upstream.settle() == []


@pytest.fixture(params=list(READERS))
def read(request: pytest.FixtureRequest) -> Reader:
    """read(url or position, ...): by either client."""
    return READERS[request.param]
