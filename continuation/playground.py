"""The playground: a page in the admin that streams a prompt through the gateway, and lets its user break the stream."""

from __future__ import annotations

from typing import Any

from asgiref.sync import async_to_sync
from csp.decorators import csp_update
from django.conf import settings
from django.contrib.admin import ModelAdmin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, JsonResponse
from django.shortcuts import render
from django.urls import URLPattern, path

from continuation import lifecycle
from continuation.resume import token as tokens

BROKEN = "The connection to the engine has been broken off."
NOT_HERE = (
    "No such stream is running in the process that was asked. It has ended, or it is not resumable, or another "
    "process of the gateway runs it: that one's connection cannot be broken from here, so end its engine instead."
)


def urls(events: ModelAdmin[Any]) -> list[URLPattern]:
    """Show the page to users who may view the audit's events. admin_view() checks for staff and for the CSRF token."""
    checked = events.admin_site.admin_view

    @csp_update({"connect-src": ["http:", "https:"]})  # its user enters the address of a gateway
    def page(request: HttpRequest) -> HttpResponse:
        _check(events, request)
        context = {**events.admin_site.each_context(request), **_about(), "opts": events.opts}
        return render(request, "admin/continuation/playground.html", context)

    def break_engine(request: HttpRequest) -> HttpResponse:
        _check(events, request)
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        broken = _is_own_stream(request) and async_to_sync(_break)(request.POST["stream"])
        return JsonResponse({"broken": broken, "message": BROKEN if broken else NOT_HERE})

    return [
        path("playground/", checked(page), name="continuation_playground"),
        path("playground/break/", checked(break_engine), name="continuation_playground_break"),
    ]


def _check(events: ModelAdmin[Any], request: HttpRequest) -> None:
    if not events.has_view_permission(request):
        raise PermissionDenied


def _about() -> dict[str, Any]:
    return {
        "title": "Playground",
        "is_gateway": settings.GATEWAY_ROLE != "admin",
        "is_resumable": settings.RESUME_MODE != "off",
        "model": settings.CONTINUATION_MODEL,
    }


def _is_own_stream(request: HttpRequest) -> bool:
    """Nobody breaks the stream of another caller: the token must be this stream's and this caller's."""
    token = tokens.read(request.headers.get("X-Resume-Token", ""), request.headers.get("Authorization", ""))
    return token is not None and token.stream_id == request.POST.get("stream")


async def _break(stream_id: str) -> bool:
    """In the event loop, where the generation runs, and not in the thread of this view."""
    return lifecycle.current().generations.break_leg(stream_id)
