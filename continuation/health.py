"""Is the process alive (`/health`), can it do its work (`/ready`), and what has it done (`/metrics`)?"""

import asyncio
import logging
import secrets

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse

from continuation import lifecycle
from continuation.http.incoming import request_id
from continuation.http.response import json_error
from continuation.metrics import processes
from strategies import cache

logger = logging.getLogger(__name__)

DATABASE_SECONDS = 2.0
METHODS = "GET, HEAD"


async def health(request: HttpRequest) -> HttpResponse:
    """200 as long as the process answers; asks nobody. `tasks`: of its event loop, to see that none are left behind."""
    if request.method not in METHODS.split(", "):
        return _refusal(request)
    return _answer({"status": "ok", "tasks": len(asyncio.all_tasks())})


async def ready(request: HttpRequest) -> HttpResponse:
    """200, or 503 while a check is not ok: `{"status", "checks": {name: state}}`."""
    if request.method not in METHODS.split(", "):
        return _refusal(request)
    checks = {"strategies": "ok" if cache.is_loaded() else "not loaded"}
    if settings.GATEWAY_ROLE != "proxy":
        checks["database"] = await _database()
    if lifecycle.current().is_stopping:
        checks["server"] = "stopping"
    well = all(state == "ok" for state in checks.values())
    return _answer({"status": "ok" if well else "unavailable", "checks": checks}, 200 if well else 503)


async def told_metrics(request: HttpRequest) -> HttpResponse:
    """For Prometheus, in the form that it accepts; 401 without the METRICS_TOKEN, if one is set."""
    if request.method not in METHODS.split(", "):
        return _refusal(request)
    if not _may_read_metrics(request.headers.get("Authorization", "")):
        message = "The metrics are for those who send the METRICS_TOKEN as a bearer token."
        headers = {"WWW-Authenticate": 'Bearer realm="metrics"', "X-Request-Id": request_id(request)}
        return _with_length(json_error(401, message, "invalid_request_error", "unauthorized", headers))
    body, content_type = await asyncio.to_thread(_figures, request.headers.get("Accept", ""))
    no_store = {"Cache-Control": "no-store"}
    return _with_length(HttpResponse(body, content_type=content_type, headers=no_store))


def _figures(accept: str) -> tuple[bytes, str]:
    lifecycle.current().watch.note()
    return processes.told(accept)


def _may_read_metrics(authorization: str) -> bool:
    scheme, _, token = authorization.partition(" ")
    if not settings.METRICS_TOKEN:
        return True
    same = secrets.compare_digest(token.strip().encode(), settings.METRICS_TOKEN.encode())
    return same and scheme.lower() == "bearer"


async def _database() -> str:
    question = asyncio.wrap_future(lifecycle.current().database.future())
    try:
        # Shielded, because others may be waiting for the same answer.
        await asyncio.wait_for(asyncio.shield(question), DATABASE_SECONDS)
    except TimeoutError:
        return f"no answer within {DATABASE_SECONDS:g} s"
    except Exception as trouble:
        logger.warning("the database does not answer: %s", trouble)
        return "not available"
    return "ok"


def _answer(body: dict[str, object], status: int = 200) -> HttpResponse:
    return _with_length(JsonResponse(body, status=status, headers={"Cache-Control": "no-store"}))


def _refusal(request: HttpRequest) -> HttpResponse:
    message = f"Only {METHODS} here."
    headers = {"Allow": METHODS, "X-Request-Id": request_id(request)}
    return _with_length(json_error(405, message, "invalid_request_error", "method_not_allowed", headers))


def _with_length(response: HttpResponse) -> HttpResponse:
    response["Content-Length"] = str(len(response.content))
    return response
