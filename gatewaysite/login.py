"""Logins to the admin: from where one comes, and what those read who have guessed too often (django-axes counts)."""

import ipaddress
import math

from django.conf import settings
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

# Bits of an IPv6 address that name a network of one customer; the rest its owner changes at will.
IPV6_NETWORK_BITS = 64


def client_address(request: HttpRequest) -> str | None:
    """The address that failures are counted by; None where there is none, such as on a Unix socket.

    Each of TRUSTED_PROXY_COUNT proxies has added to X-Forwarded-For the address that it was called from. So the
    client's stands at that place, counted from the end; what stands before it was sent by the client.
    """
    hops = request.META.get("HTTP_X_FORWARDED_FOR", "").split(",")
    count = settings.TRUSTED_PROXY_COUNT
    forwarded = hops[-count] if 0 < count <= len(hops) else ""
    return _network(forwarded) or _network(request.META.get("REMOTE_ADDR") or "")


def _network(address: str) -> str | None:
    """An address without port, IPv6 reduced to its network; None for what is no address."""
    text = address.strip().strip("[]").partition("%")[0]
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return _without_port(address.strip())
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, IPV6_NETWORK_BITS), strict=False).network_address)


def _without_port(address: str) -> str | None:
    host, colon, port = address.rpartition(":")
    return _network(host) if colon and port.isdecimal() else None


def client_shown(username: str | None, address: str | None, *rest: object) -> str:
    """For the log; a user name is what somebody has typed, so it is quoted."""
    return f"user {username!a} at {address or 'an unknown address'}"


def refused(request: HttpRequest, *rest: object) -> HttpResponse:
    """The page in place of the login's, with status 429."""
    seconds = math.ceil(settings.LOGIN_LOCKOUT_SECONDS)
    minutes = math.ceil(seconds / 60)
    context = {
        **admin.site.each_context(request),
        "title": "Too many failed logins",
        "limit": settings.LOGIN_FAILURE_LIMIT,
        "wait": f"{seconds} s" if seconds < 120 else f"{minutes} minutes",
    }
    answer = render(request, "admin/login_refused.html", context, status=429)
    answer["Retry-After"] = str(seconds)
    answer["Cache-Control"] = "no-store"
    return answer
