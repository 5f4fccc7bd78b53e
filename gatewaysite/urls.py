"""Where a path goes: the gateway's own pages, the planned chat route, and downstream for all else."""

from collections.abc import Callable
from http import HTTPStatus

from django.conf import settings
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import include, path, re_path
from django.views import defaults

from continuation import views
from continuation.http.incoming import request_id
from continuation.http.response import json_error
from gatewaysite import SITE_PREFIXES
from gatewaysite.static import static_file


def _not_here(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
    return views.not_found(request)


def _own_error(page: Callable[..., HttpResponse], status: int, code: str) -> Callable[..., HttpResponse]:
    """Django's page for the site's own paths, JSON for all others."""

    def handler(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
        if request.path.startswith(SITE_PREFIXES):
            return page(request, *args, **kwargs)
        message = "The gateway cannot answer this request."
        headers = {"X-Request-Id": request_id(request), "Cache-Control": "no-store"}
        kind = "internal_error" if status == HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
        return json_error(status, message, kind, code, headers)

    return handler


def _admin_pages() -> list[object]:
    if settings.GATEWAY_ROLE == "proxy":
        # What a page in a browser comes back with is for those who face clients.
        own = "continuation/resumable.js"
        return [
            path(f"static/{own}", static_file, {"path": own}),
            re_path(r"^(admin|static)(/|$)", _not_here),
        ]
    return [
        path("admin/", admin.site.urls),
        path("static/<path:path>", static_file),
        re_path(r"^(admin|static)(/|$)", _not_here),
    ]


handler400 = _own_error(defaults.bad_request, 400, "bad_request")
handler404 = _own_error(defaults.page_not_found, 404, "not_found")
handler500 = _own_error(defaults.server_error, 500, "internal_error")

urlpatterns = [*_admin_pages(), path("", include("continuation.urls"))]
