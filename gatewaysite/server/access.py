"""The log of requests, without the credentials that stand in them."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import unquote_plus

from daphne.access import AccessLogGenerator  # type: ignore[import-untyped]
from django.conf import settings

# Beside CREDENTIAL_HEADERS: what only queries have.
CREDENTIALS = ("*pass*", "*pwd*", "*credential*", "*session*", "*signature*", "sig", "*jwt*", "code")
MASK = "***"


class AccessLog(AccessLogGenerator):  # type: ignore[misc]
    def __call__(self, protocol: str, action: str, details: dict[str, Any]) -> None:
        super().__call__(protocol, action, details | {"path": masked(details["path"])})


def masked(target: str) -> str:
    """A request target for a log: values of credentials in its query are `***`, as is a user before the host; what
    would break the line, or is no printable ASCII, is escaped."""
    path, mark, query = target.partition("?")
    path = re.sub(r"^(\w+://)[^/]*@", rf"\1{MASK}@", path)
    whole = path + mark + re.sub(r"[^&;]+", _masked_pair, query)
    return re.sub(r"[^!#-\[\]-~]", lambda found: f"\\x{ord(found[0]):02x}", whole)


def _masked_pair(found: re.Match[str]) -> str:
    name, equals, _value = found[0].partition("=")
    return f"{name}={MASK}" if equals and _is_credential(unquote_plus(name).lower()) else found[0]


def _is_credential(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in (*settings.CREDENTIAL_HEADERS, *CREDENTIALS))
