import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError
from django.http import HttpResponse
from django.test import AsyncRequestFactory

from continuation import health
from continuation.audit import database
from continuation.lifecycle import Process
from strategies import cache

request = AsyncRequestFactory()


def body(response: HttpResponse) -> Any:
    assert response["Content-Type"] == "application/json"
    assert response["Content-Length"] == str(len(response.content))
    return json.loads(response.content)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Whether the strategies have been loaded: they have, until the test clears it."""
    event = threading.Event()
    event.set()
    monkeypatch.setattr(cache._shelf, "loaded", event)
    return event


@pytest.fixture
def hanging_database(process: Process, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The threads that ask it."""
    asked: list[str] = []
    answer = threading.Event()

    def hang() -> None:
        asked.append(threading.current_thread().name)
        answer.wait(20)

    monkeypatch.setattr(database, "select_one", hang)
    monkeypatch.setattr(health, "DATABASE_SECONDS", 0.05)
    yield asked
    answer.set()


# Not marked django_db: a query would fail these.
@pytest.mark.parametrize("method", ["get", "head"])
async def test_health_is_the_process_alone(method: str) -> None:
    response = await health.health(getattr(request, method)("/health"))
    assert response.status_code == 200
    told = body(response)
    assert (told["status"], set(told)) == ("ok", {"status", "tasks"})
    assert told["tasks"] >= 1
    assert response["Cache-Control"] == "no-store"


async def test_a_proxy_is_ready_without_a_database(loaded: threading.Event, settings: Any) -> None:
    settings.GATEWAY_ROLE = "proxy"
    response = await health.ready(request.get("/ready"))
    assert response.status_code == 200
    assert body(response) == {"status": "ok", "checks": {"strategies": "ok"}}


async def test_a_proxy_is_not_ready_before_its_strategies(loaded: threading.Event, settings: Any) -> None:
    settings.GATEWAY_ROLE = "proxy"
    loaded.clear()
    response = await health.ready(request.get("/ready"))
    assert response.status_code == 503
    assert body(response) == {"status": "unavailable", "checks": {"strategies": "not loaded"}}
    assert response["Cache-Control"] == "no-store"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("role", ["all", "admin"])
async def test_with_an_admin_the_database_has_to_answer(
    loaded: threading.Event, settings: Any, role: str
) -> None:
    settings.GATEWAY_ROLE = role
    response = await health.ready(request.get("/ready"))
    assert response.status_code == 200
    assert body(response) == {"status": "ok", "checks": {"strategies": "ok", "database": "ok"}}


async def test_each_check_is_named_with_its_own_state(
    loaded: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> None:
        raise OperationalError("connection to 10.0.0.5 refused")

    monkeypatch.setattr(database, "select_one", refuse)
    loaded.clear()
    response = await health.ready(request.get("/ready"))
    assert response.status_code == 503
    assert body(response) == {
        "status": "unavailable",
        "checks": {"strategies": "not loaded", "database": "not available"},
    }
    # Where the database is, the log tells, and no caller.
    assert caplog.messages == ["the database does not answer: connection to 10.0.0.5 refused"]


async def test_a_database_that_hangs_is_not_waited_for_and_costs_one_thread(
    loaded: threading.Event, hanging_database: list[str]
) -> None:
    asking = (health.ready(request.get("/ready")) for _ in range(5))
    responses = [*await asyncio.gather(*asking), await health.ready(request.get("/ready"))]
    for response in responses:
        assert response.status_code == 503
        assert body(response)["checks"] == {"strategies": "ok", "database": "no answer within 0.05 s"}
    assert hanging_database == ["ready-database"]


async def test_a_caller_that_leaves_does_not_take_the_answer_from_the_others(
    process: Process, loaded: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()
    monkeypatch.setattr(database, "select_one", lambda: answer.wait(20))
    leaving = asyncio.create_task(health._database())
    staying = asyncio.create_task(health._database())
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    answer.set()
    assert await staying == "ok"


@pytest.mark.parametrize("view", [health.health, health.ready])
@pytest.mark.parametrize("method", ["post", "put", "patch", "delete", "options"])
async def test_other_methods_are_refused_in_the_form_of_openai(view: Any, method: str) -> None:
    response = await view(getattr(request, method)("/health"))
    assert response.status_code == 405
    assert response["Allow"] == "GET, HEAD"
    error = body(response)["error"]
    assert error == {
        "message": "Only GET, HEAD here.",
        "type": "invalid_request_error",
        "code": "method_not_allowed",
    }
