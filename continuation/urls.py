"""The gateway's paths; whatever is not named here is passed through."""

from django.http import HttpRequest, HttpResponse
from django.urls import path, re_path

from continuation import health, views


def _reserved(request: HttpRequest, *args: str) -> HttpResponse:
    return views.not_found(request)


urlpatterns = [
    path("health", health.health),
    path("ready", health.ready),
    re_path(r"^(metrics$|v1/streams/)", _reserved),
    path("v1/chat/completions", views.chat_completions),
    re_path(r"", views.proxy),
]
