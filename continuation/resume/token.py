"""Resume tokens: signed with SECRET_KEY, good for one stream and one caller, for a day. Those that were signed with one
of SECRET_KEY_FALLBACKS are read too.

A caller is who sends a certain Authorization header; who sends none is a caller too. What a token says is not secret,
what it is bound to is a keyed digest.
"""

from __future__ import annotations

import secrets
import zlib
from dataclasses import dataclass
from enum import StrEnum

from django.conf import settings
from django.core import signing
from django.utils.crypto import constant_time_compare, salted_hmac

_SALT = "continuation.resume"
TOKEN_SECONDS = 24 * 3600
# Longer ones are no tokens of ours, and are not worth a digest.
MOST_CHARACTERS = 512


class TokenKind(StrEnum):
    HEADER = "header"  # of the answer; it says nothing of a position
    CHECKPOINT = "checkpoint"  # inside the stream


@dataclass(frozen=True, slots=True)
class ResumeToken:
    """position: the event after which it resumes by itself, None if it does not say. expired: too old to be used."""

    stream_id: str
    position: int | None = None
    expired: bool = False

    @property
    def kind(self) -> TokenKind:
        return TokenKind.HEADER if self.position is None else TokenKind.CHECKPOINT


def new_stream_id() -> str:
    """128 random bits in hexadecimal."""
    return secrets.token_hex(16)


def issue(stream_id: str, authorization: str, position: int | None = None) -> str:
    said: dict[str, object] = {"s": stream_id, "c": _caller(authorization)}
    if position is not None:
        said["n"] = position
    return signing.dumps(said, salt=_SALT)


def read(text: str, authorization: str) -> ResumeToken | None:
    """None for a token that is not ours, or not this caller's: nobody learns which."""
    if len(text) > MOST_CHARACTERS:
        return None
    try:
        said, expired = signing.loads(text, salt=_SALT), _is_old(text)
    except (signing.BadSignature, ValueError, zlib.error):  # also what was signed, but is no token
        return None
    if not isinstance(said, dict) or not _is_of(str(said.get("c")), authorization):
        return None
    stream_id, position = said.get("s"), said.get("n")
    if not isinstance(stream_id, str) or not (position is None or _is_position(position)):
        return None
    return ResumeToken(stream_id, position, expired)


def _is_position(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_old(text: str) -> bool:
    try:
        signing.loads(text, salt=_SALT, max_age=TOKEN_SECONDS)
    except signing.SignatureExpired:
        return True
    return False


def _is_of(caller: str, authorization: str) -> bool:
    """Whether a token's caller sent this Authorization, by the key of today or one that was used before."""
    keys = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    return any(constant_time_compare(caller, _caller(authorization, key)) for key in keys)


def _caller(authorization: str, key: str | None = None) -> str:
    """key: None for SECRET_KEY."""
    return salted_hmac(_SALT, authorization, secret=key, algorithm="sha256").hexdigest()[:32]
