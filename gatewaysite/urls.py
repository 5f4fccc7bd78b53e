"""Where a path goes: the gateway's own pages, the planned chat route, and downstream for all else."""

from django.conf import settings
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import include, path, re_path

from continuation import views
from gatewaysite.static import static_file


def _not_here(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
    return views.not_found(request)


def _admin_pages() -> list[object]:
    if settings.GATEWAY_ROLE == "proxy":
        return [re_path(r"^(admin|static)(/|$)", _not_here)]
    return [
        path("admin/", admin.site.urls),
        path("static/<path:path>", static_file),
        re_path(r"^(admin|static)(/|$)", _not_here),
    ]


urlpatterns = [*_admin_pages(), path("", include("continuation.urls"))]
