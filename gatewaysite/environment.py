"""Environment variables read strictly: a value that is not understood stops the start and is named."""

import math
import os
import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any, TypeVar
from urllib.parse import urlsplit

import environ  # type: ignore[import-untyped]
from django.core.exceptions import ImproperlyConfigured

T = TypeVar("T")

# finish_reasons of answers that are whole: were one of them a failure, every answer would be continued.
ENDINGS = {"stop", "length", "tool_calls", "function_call", "content_filter"}
TRUE = {"1", "true", "yes", "on"}
FALSE = {"0", "false", "no", "off"}


class Environment:
    """Collects every problem, so that one start reports all of them.

    A variable is read from the process environment (`.env` has been merged into it), or from the file
    that `NAME_FILE` points to.
    """

    def __init__(self, env: environ.Env) -> None:
        self._env = env
        self._problems: list[str] = []

    def text(self, name: str, default: str = "") -> str:
        return self._read(name, default, lambda raw: raw, "any text")

    def choice(self, name: str, default: str, allowed: Iterable[str]) -> str:
        """One of `allowed`, compared without case."""
        words = tuple(allowed)
        shown = ", ".join(word or "(empty)" for word in words)
        return self._read(
            name, default, lambda raw: words[words.index(raw.strip().lower())], f"one of: {shown}"
        )

    def boolean(self, name: str, default: bool) -> bool:
        return self._read(name, default, _boolean, "true or false (also 1/0, yes/no, on/off)")

    def whole(self, name: str, default: int, least: int = 0) -> int:
        return self._read(
            name, default, lambda raw: _at_least(int(raw), least), f"a whole number, {least} or more"
        )

    def seconds(self, name: str, default: float, *, zero: bool = True) -> float:
        return self._number(name, default, "a number of seconds", zero)

    def seconds_if_any(self, name: str) -> float | None:
        """None where nothing is set."""
        allowed = "a number of seconds, 0 or more, or nothing"
        return self._read(name, None, lambda raw: _finite(float(raw), zero=True), allowed)

    def number(self, name: str, default: float, *, zero: bool = True) -> float:
        return self._number(name, default, "a number", zero)

    def url(self, name: str, default: str = "") -> str:
        """An http(s) base URL without its trailing slash; empty stays empty."""
        allowed = "an http:// or https:// URL with a host, without query or fragment"
        return self._read(name, default, _base_url, allowed)

    def secret_words(self, name: str) -> list[str]:
        """Comma-separated words that no message shows, blanks around them dropped."""
        return self._read(name, [], _secret_words, "comma-separated words, at least one", secret=True)

    def words(self, name: str, default: str) -> list[str]:
        """Comma-separated words, blanks around them dropped."""
        return self._read(
            name,
            default.split(","),
            lambda raw: [w.strip() for w in raw.split(",") if w.strip()],
            "a comma-separated list",
        )

    def finish_reasons(self, name: str, default: str) -> list[str]:
        """Comma-separated finish_reasons that are failures, in lower case; a comma alone is none."""
        allowed = "comma-separated words of 1 to 64 letters, digits, _ . or -, but none of " + ", ".join(
            sorted(ENDINGS)
        )
        return self._read(name, default.split(","), _finish_reasons, allowed)

    def prefixes(self, name: str, default: str) -> list[str]:
        return self._read(
            name, default.split(","), _prefixes, "* or comma-separated path prefixes that begin with /"
        )

    def header_names(self, name: str, default: str) -> list[str]:
        """Comma-separated names of headers in lower case; `*` in one stands for anything."""
        allowed = "comma-separated names of headers, in which * stands for anything"
        return self._read(name, default.split(","), _header_names, allowed)

    def database(self, name: str, default: str) -> dict[str, Any]:
        allowed = "a database URL such as sqlite:///path/file.sqlite3 or postgres://user:password@host/name"
        return self._read(name, None, _database, allowed, secret=True) or _database(default)

    def redis(self, name: str) -> str:
        """A Redis URL, or empty."""
        allowed = (
            "a Redis URL such as redis://:password@host:6379/0, rediss://host or unix:///path/redis.sock"
        )
        return self._read(name, "", _redis_url, allowed, secret=True)

    def keys(self, name: str) -> list[str]:
        """Comma-separated Fernet keys."""
        allowed = "comma-separated keys of 32 bytes each, in url-safe base64: 44 characters, the last one ="
        return self._read(name, [], _fernet_keys, allowed, secret=True)

    def bearer(self, name: str) -> str:
        """What may stand behind `Bearer` in an Authorization header."""
        allowed = "letters, digits and any of . _ ~ + / - with any = at the end"
        return self._read(name, "", _bearer_token, allowed, secret=True)

    def header_and_value(self, name: str) -> tuple[str, str] | None:
        """`Header: value` as Django's META key and the value; None where nothing is set."""
        allowed = "a header and its value, such as X-Forwarded-Proto: https"
        return self._read(name, None, _header_and_value, allowed)

    def origins(self, name: str) -> list[str]:
        """Comma-separated origins as browsers write them, or `*` alone."""
        allowed = "* or comma-separated origins such as https://app.example.org:8443, without path"
        return self._read(name, [], _origins, allowed)

    def directory(self, name: str) -> str:
        return self._read(name, "", _directory, "a directory that exists and can be written to")

    def stop_if_wrong(self) -> None:
        """Raise ImproperlyConfigured with one line for each wrong variable."""
        if self._problems:
            raise ImproperlyConfigured("wrong settings:\n  " + "\n  ".join(self._problems))

    def _number(self, name: str, default: float, what: str, zero: bool) -> float:
        allowed = f"{what}, 0 or more" if zero else f"{what}, more than 0"
        return self._read(name, default, lambda raw: _finite(float(raw), zero), allowed)

    def _read(self, name: str, default: T, cast: Callable[[str], T], allowed: str, secret: bool = False) -> T:
        try:
            # Not through `env.str`: it takes a value that begins with $ for the name of another variable.
            raw = self._env.ENVIRON.get(name, "")
        except (OSError, ValueError, ImproperlyConfigured) as trouble:
            self._problems.append(f"{name}_FILE cannot be read: {trouble}")
            return default
        raw = raw.rstrip("\r\n")
        if raw == "":
            return default
        try:
            return cast(raw)
        except (ValueError, KeyError, TypeError, ImproperlyConfigured):
            value = "the value given" if secret else repr(_without_login(raw))
            self._problems.append(f"{name}: {value} is not allowed; allowed is {allowed}")
            return default


def _without_login(raw: str) -> str:
    """The value for a message: a URL may carry a user and a password."""
    return re.sub(r"^(\w+://)?.*@", r"\1***@", raw, flags=re.DOTALL)


def _database(raw: str) -> dict[str, Any]:
    with warnings.catch_warnings():
        # django-environ guesses with a warning: a host in a SQLite URL is dropped, and the file with it.
        warnings.simplefilter("error")
        try:
            config = environ.Env.db_url_config(raw)
        except Warning as guess:
            raise ValueError("not a database URL") from guess
    if config["ENGINE"] not in environ.Env.DB_SCHEMES.values():
        raise ValueError(config["ENGINE"])
    return dict(config)


def _boolean(raw: str) -> bool:
    word = raw.strip().lower()
    if word not in TRUE | FALSE:
        raise ValueError(word)
    return word in TRUE


def _at_least(value: int, least: int) -> int:
    if value < least:
        raise ValueError(value)
    return value


def _finite(value: float, zero: bool) -> float:
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise ValueError(value)
    return value


def _base_url(raw: str) -> str:
    parts = urlsplit(raw.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname or set("?#") & set(raw):
        raise ValueError(raw)
    _ = parts.port  # raises ValueError when it is no number from 0 to 65535
    if re.search(r"\s", raw.strip()):
        raise ValueError(raw)
    return raw.strip().rstrip("/")


def _finish_reasons(raw: str) -> list[str]:
    words = [word.strip().lower() for word in raw.split(",") if word.strip()]
    if any(word in ENDINGS or not re.fullmatch(r"[a-z0-9_.-]{1,64}", word) for word in words):
        raise ValueError(raw)
    return words


def _prefixes(raw: str) -> list[str]:
    words = [word.strip() for word in raw.split(",") if word.strip()]
    if not words or any(word != "*" and not word.startswith("/") for word in words):
        raise ValueError(raw)
    return words


def _secret_words(raw: str) -> list[str]:
    words = [word.strip() for word in raw.split(",") if word.strip()]
    if not words:
        raise ValueError("no words")
    return words


def _header_names(raw: str) -> list[str]:
    words = [word.strip().lower() for word in raw.split(",") if word.strip()]
    if not words or not all(re.fullmatch(r"[a-z0-9!#$%&'*+.^_`|~-]+", word) for word in words):
        raise ValueError(raw)
    return words


def _header_and_value(raw: str) -> tuple[str, str]:
    found = re.fullmatch(r"\s*([A-Za-z0-9-]+)\s*:\s*([!-~]+)\s*", raw)
    if not found:
        raise ValueError(raw)
    header, value = found.groups()
    return f"HTTP_{header.upper().replace('-', '_')}", value


def _redis_url(raw: str) -> str:
    url = raw.strip()
    parts = urlsplit(url)
    if re.search(r"[\s#]", url):
        raise ValueError("not a URL")
    if parts.scheme == "unix":
        right = parts.path not in ("", "/")
    else:
        right = bool(parts.hostname) and re.fullmatch(r"/?\d*", parts.path) is not None
        _ = parts.port  # raises ValueError when it is no number from 0 to 65535
    if parts.scheme not in ("redis", "rediss", "unix") or not right:
        raise ValueError("not a Redis URL")
    return url


def _fernet_keys(raw: str) -> list[str]:
    keys = [key.strip() for key in raw.split(",") if key.strip()]
    # 32 bytes are 42 characters of six bits, one of four, and the filling
    if not keys or not all(re.fullmatch(r"[A-Za-z0-9_-]{42}[AEIMQUYcgkosw048]=", key) for key in keys):
        raise ValueError("not Fernet keys")
    return keys


def _bearer_token(raw: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._~+/-]+=*", raw.strip()):
        raise ValueError("not a token")
    return raw.strip()


def _origins(raw: str) -> list[str]:
    words = [word.strip().lower() for word in raw.split(",") if word.strip()]
    if not words:
        raise ValueError(raw)
    return words if words == ["*"] else [_origin(word) for word in words]


def _origin(word: str) -> str:
    """Without the port that browsers leave out."""
    found = re.fullmatch(r"(https?)://([a-z0-9_.-]+|\[[0-9a-f:.]+\])(:\d+)?", word)
    if not found:
        raise ValueError(word)
    scheme, host = found.group(1, 2)
    number = urlsplit(word).port
    if number in (None, {"http": 80, "https": 443}[scheme]):
        return f"{scheme}://{host}"
    if not number:
        raise ValueError(word)
    return f"{scheme}://{host}:{number}"


def _directory(raw: str) -> str:
    if not os.path.isdir(raw) or not os.access(raw, os.W_OK | os.X_OK):
        raise ValueError(raw)
    return os.path.abspath(raw)
