"""The admin's site: a value that no column can hold is an error of the request, and not of the server."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from django.contrib.admin import AdminSite
from django.contrib.admin.apps import AdminConfig
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import BadRequest
from django.db import DataError
from django.http import HttpRequest, HttpResponseBase

View = TypeVar("View", bound=Callable[..., HttpResponseBase])


class GatewayAdminSite(AdminSite):
    """Answers 400 where Django would answer 500: to keys of chosen rows that are no numbers, and to numbers and
    texts that the database, or the way to it, cannot hold."""

    def admin_view(self, view: View, cacheable: bool = False) -> View:
        shown = super().admin_view(view, cacheable)

        @wraps(shown)
        def answered(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            keys = request.POST.getlist(ACTION_CHECKBOX_NAME)
            if not all(key.isascii() and key.isdecimal() for key in keys):
                raise BadRequest("The key of a chosen row is no number.")
            try:
                return shown(request, *args, **kwargs)
            except (DataError, OverflowError) as trouble:
                raise BadRequest("A value is not one that the database can hold.") from trouble

        return cast(View, answered)


class GatewayAdminConfig(AdminConfig):
    default_site = "gatewaysite.admin.GatewayAdminSite"
