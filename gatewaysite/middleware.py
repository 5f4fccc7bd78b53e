"""Django's middleware, limited to the site's own pages: a proxied request must not be touched by any of it."""

from typing import Any
from urllib.parse import unquote_to_bytes

from axes.middleware import AxesMiddleware
from csp.middleware import CSPMiddleware
from django.contrib.auth.middleware import AuthenticationMiddleware
from django.contrib.messages.middleware import MessageMiddleware
from django.contrib.sessions.middleware import SessionMiddleware
from django.core.exceptions import BadRequest
from django.http import HttpRequest
from django.middleware.clickjacking import XFrameOptionsMiddleware
from django.middleware.common import CommonMiddleware
from django.middleware.security import SecurityMiddleware
from django.utils.deprecation import MiddlewareMixin

from gatewaysite import BROWSER_PREFIXES, SITE_PREFIXES


class SiteOnly:
    """Mixin that hands every path without one of `prefixes` straight on."""

    get_response: Any
    prefixes = SITE_PREFIXES

    def __call__(self, request: HttpRequest) -> Any:
        if request.path_info.startswith(self.prefixes):
            return super().__call__(request)  # type: ignore[misc]
        return self.get_response(request)


class SiteSecurityMiddleware(SiteOnly, SecurityMiddleware):
    prefixes = BROWSER_PREFIXES


class SiteCSPMiddleware(SiteOnly, CSPMiddleware):
    prefixes = BROWSER_PREFIXES


class SiteTextMiddleware(SiteOnly, MiddlewareMixin):
    """Refuses a NUL in the address, the query, a cookie or a header: text in PostgreSQL cannot hold it, and nothing
    on the site's pages needs it. The fields of a form are left to the form, which names the field."""

    def process_request(self, request: HttpRequest) -> None:
        texts = [request.path_info, *request.COOKIES.values()]
        texts += [value for name, value in request.META.items() if name.startswith("HTTP_")]
        query = unquote_to_bytes(request.META.get("QUERY_STRING", ""))
        if b"\0" in query or any("\0" in text for text in texts):
            raise BadRequest("A NUL character is not allowed.")


class SiteSessionMiddleware(SiteOnly, SessionMiddleware):
    pass


class SiteCommonMiddleware(SiteOnly, CommonMiddleware):
    pass


class SiteAuthenticationMiddleware(SiteOnly, AuthenticationMiddleware):
    pass


class SiteMessageMiddleware(SiteOnly, MessageMiddleware):
    pass


class SiteXFrameOptionsMiddleware(SiteOnly, XFrameOptionsMiddleware):
    prefixes = BROWSER_PREFIXES


class SiteAxesMiddleware(SiteOnly, AxesMiddleware):  # type: ignore[misc]
    """In place of the login page for those who have guessed too often."""
