"""The gateway's paths; whatever is not named here is passed through."""

from django.urls import path, re_path

from continuation import health, views
from continuation.resume import views as resume

urlpatterns = [
    path("health", health.health),
    path("ready", health.ready),
    path("metrics", health.told_metrics),
    path("v1/streams/<str:stream_id>", resume.stream),
    path("v1/streams/<str:stream_id>/status", resume.status),
    re_path(r"^v1/streams/", resume.nothing),
    path("v1/chat/completions", views.chat_completions),
    re_path(r"", views.proxy),
]
