"""For all tests: how long an example takes depends on how busy the machine is, and proves nothing. And what tests
over sockets have in common, be their client this suite's own or a package."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings

from strategies.models import Strategy, StrategyRevision
from tests.harness.gateway import TROUBLE, Gateway
from tests.harness.upstream import Refusing, Unanswering, Upstream

settings.register_profile("gateway", deadline=None)
settings.load_profile("gateway")


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any, written: list[Any]) -> None:
    with django_db_blocker.unblock():
        written += [*Strategy.objects.all(), *StrategyRevision.objects.all()]


@pytest.fixture(scope="session")
def written() -> list[Any]:
    """The rows that the migrations have written, once there is a database."""
    return []


@pytest.fixture(autouse=True, scope="module")
def _what_the_migrations_wrote_is_there(django_db_blocker: Any, written: list[Any]) -> None:
    """Also after another module, whose tests have committed: these leave empty tables behind."""
    with django_db_blocker.unblock():
        if written and not Strategy.objects.exists():
            for row in written:
                row.save_base(raw=True)


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
