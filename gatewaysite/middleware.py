"""Django's middleware, limited to the site's own pages: a proxied request must not be touched by any of it."""

from typing import Any

from django.contrib.auth.middleware import AuthenticationMiddleware
from django.contrib.messages.middleware import MessageMiddleware
from django.contrib.sessions.middleware import SessionMiddleware
from django.http import HttpRequest
from django.middleware.clickjacking import XFrameOptionsMiddleware
from django.middleware.common import CommonMiddleware
from django.middleware.security import SecurityMiddleware

from gatewaysite import SITE_PREFIXES


class SiteOnly:
    """Mixin that hands every other path straight on."""

    get_response: Any

    def __call__(self, request: HttpRequest) -> Any:
        if request.path_info.startswith(SITE_PREFIXES):
            return super().__call__(request)  # type: ignore[misc]
        return self.get_response(request)


class SiteSecurityMiddleware(SiteOnly, SecurityMiddleware):
    pass


class SiteSessionMiddleware(SiteOnly, SessionMiddleware):
    pass


class SiteCommonMiddleware(SiteOnly, CommonMiddleware):
    pass


class SiteAuthenticationMiddleware(SiteOnly, AuthenticationMiddleware):
    pass


class SiteMessageMiddleware(SiteOnly, MessageMiddleware):
    pass


class SiteXFrameOptionsMiddleware(SiteOnly, XFrameOptionsMiddleware):
    pass
