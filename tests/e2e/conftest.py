"""One upstream and a fleet of gateways for the whole session; a test scripts the one and picks of the others.

Every test also asserts, when it is over, that its gateways still run and have logged no trouble, that no
request went beyond the script, and that no downstream connection outlived its client.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.resuming import close_all
from tests.harness.client import Stream, request_id
from tests.harness.gateway import SERVER, Database, Gateway, migrated_template
from tests.harness.redis import RedisServer
from tests.harness.upstream import Headers, Upstream

GATEWAYS_AT_ONCE = 12  # some 90 MB each
Fleet = Callable[[dict[str, str], str], Gateway]
GatewayFor = Callable[..., Gateway]
Chat = Callable[..., Stream]


@pytest.fixture(scope="session")
def session_second_upstream() -> Iterator[Upstream]:
    upstream = Upstream()
    yield upstream
    upstream.stop()


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Database:
    """With every migration; each gateway copies it."""
    return migrated_template(tmp_path_factory.mktemp("database"))


@pytest.fixture(scope="session")
def fleet(migrated: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Running gateways by their server and settings: starting one costs seconds."""
    running: OrderedDict[frozenset[tuple[str, str]], Gateway] = OrderedDict()
    statuses: list[int] = []

    def gateway(settings: dict[str, str], server: str) -> Gateway:
        key = frozenset({**settings, "server": server}.items())
        if key not in running or not running[key].is_running():
            if len(running) >= GATEWAYS_AT_ONCE:
                statuses.append(running.popitem(last=False)[1].stop())
            running[key] = Gateway(settings, migrated, tmp_path_factory.mktemp("gateway"), server)
        running.move_to_end(key)
        return running[key]

    yield gateway
    for one in running.values():
        one.terminate()
    statuses += [one.stop() for one in running.values()]
    assert set(statuses) <= {0, -15}, statuses


@pytest.fixture
def upstream(session_upstream: Upstream) -> Iterator[Upstream]:
    """What DOWNSTREAM_URL points to."""
    yield session_upstream
    assert session_upstream.settle() == []


@pytest.fixture
def second_upstream(session_second_upstream: Upstream) -> Iterator[Upstream]:
    """For CONTINUATION_URL, where legs are told apart."""
    yield session_second_upstream
    assert session_second_upstream.settle() == []


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def _no_stream_stays_open() -> Iterator[None]:
    yield
    close_all()


@pytest.fixture
def server() -> str:
    """What the gateways of a test run under; a module that has several to try has a fixture of its own."""
    return SERVER


@pytest.fixture
def gateway(
    fleet: Fleet, server: str, upstream: Upstream, watched: Callable[[Gateway], Gateway]
) -> GatewayFor:
    """gateway(NAME="value", ...): a running one. By itself it knows a model without a strategy of its own."""

    def running(**settings: str) -> Gateway:
        chosen = {"DOWNSTREAM_URL": upstream.url, "CONTINUATION_MODEL": "house-model", **settings}
        return watched(fleet({name: value for name, value in chosen.items() if value}, server))

    return running


@pytest.fixture
def open_stream(gateway: GatewayFor) -> Iterator[Callable[..., Stream]]:
    """open_stream(gateway, method, target, headers, body): closed when the test ends."""
    opened: list[Stream] = []

    def stream(to: Gateway, *request: Any) -> Stream:
        one = Stream(to.port, *request)
        opened.append(one)
        return one

    yield stream
    for one in opened:
        one.drop()


@pytest.fixture
def chat(open_stream: Callable[..., Stream]) -> Chat:
    """chat(gateway, body, headers): a chat request under way, with a request id of its own."""

    def ask(to: Gateway, body: Any, headers: Headers = ()) -> Stream:
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        own = [("Content-Type", "application/json"), ("X-Request-Id", request_id()), *headers]
        return open_stream(to, "POST", "/v1/chat/completions", own, sent)

    return ask


@pytest.fixture
def plain(gateway: GatewayFor) -> Gateway:
    """A gateway with the settings of these tests and no other."""
    return gateway()
