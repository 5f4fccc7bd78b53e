"""Resume tokens: what ours say, and that nothing else says anything."""

from __future__ import annotations

import base64
import time
import zlib
from typing import Any

import pytest
from django.conf import settings
from django.core import signing
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from continuation.resume import token as tokens
from continuation.resume.token import TOKEN_SECONDS, ResumeToken, TokenKind, issue, new_stream_id, read

STREAM = "0123456789abcdef" * 2
CALLER = "Bearer sk-one"
SALT = "continuation.resume"


def test_a_token_says_which_stream_and_no_position_unless_it_has_one() -> None:
    token = read(issue(STREAM, CALLER), CALLER)
    assert token == ResumeToken(STREAM, None, expired=False)
    assert token.kind is TokenKind.HEADER


@pytest.mark.parametrize("position", [0, 1, 41, 10**9])
def test_a_checkpoint_resumes_at_its_position(position: int) -> None:
    token = read(issue(STREAM, CALLER, position), CALLER)
    assert token == ResumeToken(STREAM, position, expired=False)
    assert token.kind is TokenKind.CHECKPOINT


def test_stream_ids_are_128_random_bits() -> None:
    made = {new_stream_id() for _ in range(1000)}
    assert len(made) == 1000
    assert all(len(one) == 32 and int(one, 16) >= 0 for one in made)
    assert {one[0] for one in made} == set("0123456789abcdef")


def test_it_fits_into_a_header_and_a_query() -> None:
    token = issue(STREAM, "Bearer " + "k" * 5000, 10**14)
    assert len(token) < tokens.MOST_CHARACTERS
    assert set(token) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_:.")


@pytest.mark.parametrize(
    "caller", ["Bearer sk-two", "bearer sk-one", "Bearer sk-one ", "", "Bearer sk-onE", "Basic é"]
)
def test_it_is_good_for_the_caller_who_got_it(caller: str) -> None:
    assert read(issue(STREAM, CALLER), caller) is None
    assert read(issue(STREAM, caller), CALLER) is None
    assert read(issue(STREAM, caller), caller) == ResumeToken(STREAM)


def test_who_sends_no_authorization_is_a_caller_too() -> None:
    assert read(issue(STREAM, ""), "") == ResumeToken(STREAM)
    assert read(issue(STREAM, ""), CALLER) is None


def test_it_does_not_say_whose_it_is() -> None:
    payload = issue(STREAM, CALLER).split(":")[0]
    said = base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
    assert STREAM.encode() in said
    assert b"sk-one" not in said
    assert issue(STREAM, CALLER).split(":")[0] != issue(STREAM, CALLER + "x").split(":")[0]


@pytest.mark.parametrize("position", [None, 41])
def test_changed_in_any_character_it_is_none(position: int | None) -> None:
    token = issue(STREAM, CALLER, position)
    for at in range(len(token)):
        for other in {"A", "b", "0", ":", "-", ".", "é", "\0"} - {token[at]}:
            changed = token[:at] + other + token[at + 1 :]
            assert read(changed, CALLER) is None, (at, other)
        assert read(token[:at], CALLER) is None, at
        assert read(token[:at] + token[at + 1 :], CALLER) is None, at
    assert read(token + "A", CALLER) is None
    assert read(" " + token, CALLER) is None


def test_parts_of_two_tokens_are_none() -> None:
    mine = issue(STREAM, CALLER, 1).split(":")
    other = issue("f" * 32, CALLER, 2).split(":")
    for made in ([other[0], *mine[1:]], [mine[0], *other[1:]], [*mine[:2], other[2]]):
        assert read(":".join(made), CALLER) is None


def test_another_key_makes_another_token() -> None:
    with override_settings(SECRET_KEY="another"):
        foreign = issue(STREAM, CALLER)
        assert read(foreign, CALLER) == ResumeToken(STREAM)
    assert read(foreign, CALLER) is None
    with override_settings(SECRET_KEY="another"):
        assert read(issue(STREAM, CALLER), CALLER) == ResumeToken(STREAM)


@pytest.mark.parametrize("position", [None, 41])
def test_a_token_survives_a_turn_of_the_key(position: int | None) -> None:
    token = issue(STREAM, CALLER, position)
    with override_settings(SECRET_KEY="new", SECRET_KEY_FALLBACKS=["older", settings.SECRET_KEY]):
        assert read(token, CALLER) == ResumeToken(STREAM, position)
        assert read(token, "another") is None
        fresh = issue(STREAM, CALLER)
    with override_settings(SECRET_KEY="new"):
        assert read(fresh, CALLER) == ResumeToken(STREAM), "the old key signs no more"
        assert read(token, CALLER) is None


def test_a_process_reads_the_tokens_of_one_whose_key_has_been_turned_already() -> None:
    with override_settings(SECRET_KEY="new", SECRET_KEY_FALLBACKS=[settings.SECRET_KEY]):
        ahead = issue(STREAM, CALLER, 7)
    with override_settings(SECRET_KEY_FALLBACKS=["new"]):
        assert read(ahead, CALLER) == ResumeToken(STREAM, 7)


@pytest.mark.parametrize(
    "salt", ["", "continuation.resum", "django.core.signing", "continuation.resume.caller"]
)
def test_what_was_signed_for_another_purpose_is_none(salt: str) -> None:
    payload = signing.loads(issue(STREAM, CALLER), salt=SALT)
    assert read(signing.dumps(payload, salt=SALT), CALLER) == ResumeToken(STREAM)
    assert read(signing.dumps(payload, salt=salt), CALLER) is None


@pytest.mark.parametrize(
    ("seconds", "expired"),
    [(0, False), (TOKEN_SECONDS - 2, False), (TOKEN_SECONDS + 2, True), (30 * TOKEN_SECONDS, True)],
)
def test_it_is_good_for_a_day_and_known_after_it(
    seconds: int, expired: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, now = issue(STREAM, CALLER, 7), time.time()
    monkeypatch.setattr(signing.time, "time", lambda: now + seconds)
    assert read(token, CALLER) == ResumeToken(STREAM, 7, expired=expired)
    assert read(token, "another") is None


def _signed(value: Any) -> str:
    return signing.dumps(value, salt=SALT)


def _payload(**changed: Any) -> dict[str, Any]:
    said: dict[str, Any] = signing.loads(issue(STREAM, CALLER, 7), salt=SALT)
    return {key: value for key, value in (said | changed).items() if value is not ...}


ODD: dict[str, Any] = {
    "a list": [1, 2],
    "a text": "s",
    "a number": 7,
    "nothing": None,
    "an empty object": {},
    "no caller": _payload(c=...),
    "no stream": _payload(s=...),
    "a caller that is no text": _payload(c=7),
    "a caller that is nothing": _payload(c=None),
    "a caller that is a list": _payload(c=["x"]),
    "a caller beyond ASCII": _payload(c="é"),
    "a stream that is no text": _payload(s=7),
    "a stream that is nothing": _payload(s=None),
    "a position that is a text": _payload(n="7"),
    "a position that is a fraction": _payload(n=7.5),
    "a position that is true": _payload(n=True),
    "a position before the beginning": _payload(n=-1),
    "a position that is a list": _payload(n=[7]),
}


@pytest.mark.parametrize("name", ODD)
def test_what_was_signed_and_is_no_token_is_none(name: str) -> None:
    assert read(_signed(_payload()), CALLER) == ResumeToken(STREAM, 7)
    assert read(_signed(ODD[name]), CALLER) is None


@pytest.mark.parametrize("text", ["", "x", "%%%", "a:b", ".AAAA", "=", "e30"])
def test_a_payload_that_is_no_json_is_none_though_it_was_signed(text: str) -> None:
    assert read(signing.TimestampSigner(salt=SALT).sign(text), CALLER) is None
    assert read(signing.Signer(salt=SALT).sign(text), CALLER) is None
    assert read(signing.Signer(salt=SALT).sign(f"{text}:!!"), CALLER) is None


def test_a_bomb_is_not_unpacked_unless_it_was_signed() -> None:
    bomb = "." + base64.urlsafe_b64encode(zlib.compress(b"0" * 2**20)).decode().rstrip("=")
    assert read(f"{bomb}:{issue(STREAM, CALLER).split(':', 1)[1]}", CALLER) is None


@given(st.text(st.characters(codec=None), max_size=600), st.text(max_size=20))
def test_no_text_is_a_token_or_trouble(text: str, caller: str) -> None:
    assert read(text, caller) is None


@given(st.text("abcXYZ019:-_.=\ud800é", max_size=200))
def test_no_text_that_looks_like_one_is(text: str) -> None:
    assert read(text, CALLER) is None


def test_what_is_far_too_long_is_no_token() -> None:
    token = issue(STREAM, CALLER)
    assert read(token + "x" * 10**6, CALLER) is None
    assert read("x" * 10**6 + token, CALLER) is None
    assert read(":" * 10**6, CALLER) is None


@given(st.text(max_size=50), st.integers(0, 10**15) | st.none())
def test_what_is_issued_is_read_whoever_calls(caller: str, position: int | None) -> None:
    assert read(issue(STREAM, caller, position), caller) == ResumeToken(STREAM, position)
