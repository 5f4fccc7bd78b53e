"""What a view raises."""

import json

import pytest
from django.core.exceptions import SuspiciousOperation
from django.http import Http404
from django.test import AsyncClient

from continuation import views

RAISED: list[tuple[Exception, int, str]] = [
    (ZeroDivisionError(), 500, "internal_error"),
    (SuspiciousOperation(), 400, "bad_request"),
    (Http404(), 404, "not_found"),
]


@pytest.mark.parametrize("fault,status,code", RAISED, ids=[code for _, _, code in RAISED])
async def test_what_a_view_raises_is_answered_in_json_with_the_request_id(
    monkeypatch: pytest.MonkeyPatch, fault: Exception, status: int, code: str
) -> None:
    def broken_view(*args: object) -> None:
        raise fault

    monkeypatch.setattr(views, "body_size", broken_view)
    client = AsyncClient(raise_request_exception=False)
    answer = await client.get("/v1/models", headers={"X-Request-Id": "mine"})
    assert (answer.status_code, answer.headers["X-Request-Id"]) == (status, "mine")
    assert json.loads(answer.content)["error"]["code"] == code
