"""For all tests: how long an example takes depends on how busy the machine is, and proves nothing. And what tests
over sockets have in common, be their client this suite's own or a package."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection
from hypothesis import settings

from strategies.models import Strategy
from tests.harness.gateway import TROUBLE, Gateway
from tests.harness.upstream import Refusing, Unanswering, Upstream

settings.register_profile("gateway", deadline=None)
settings.load_profile("gateway")


@pytest.fixture(autouse=True, scope="module")
def _what_the_migrations_wrote_is_there(django_db_blocker: Any) -> Iterator[None]:
    """For the next module: tests that commit leave empty tables behind."""
    yield
    written = getattr(connection, "_test_serialized_contents", None)
    if written is None:  # no test here has had a database
        return
    with django_db_blocker.unblock():
        if not Strategy.objects.exists():
            connection.creation.deserialize_db_from_string(written)


@pytest.fixture(scope="session")
def session_upstream() -> Iterator[Upstream]:
    upstream = Upstream()
    yield upstream
    upstream.stop()


@pytest.fixture(scope="session")
def refusing_url() -> Iterator[str]:
    """Nobody listens there."""
    nobody = Refusing()
    yield nobody.url
    nobody.stop()


@pytest.fixture(scope="session")
def unanswering_url() -> Iterator[str]:
    """A connect to it neither succeeds nor fails."""
    mute = Unanswering()
    yield mute.url
    mute.stop()


@pytest.fixture
def watched() -> Iterator[Callable[[Gateway], Gateway]]:
    """watched(gateway): the same one; when the test is over it must still run and have logged no trouble, but for
    what the test itself has taken out of `new_log`."""
    used: list[Gateway] = []

    def watching(one: Gateway) -> Gateway:
        if one not in used:  # what it logs between two uses is looked at too
            one.new_log()
            used.append(one)
        return one

    yield watching
    for one in used:
        assert one.is_running(), one.log
        text = one.new_log()
        assert not TROUBLE.search(text), text
