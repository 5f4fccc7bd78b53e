"""Request ids: those of clients that are used as they are, and what becomes of others."""

import pytest
from django.test import RequestFactory
from hypothesis import given
from hypothesis import strategies as st

from continuation.http.incoming import ID_CHARACTERS, quoted_id, request_id

PRINTABLE = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=ID_CHARACTERS)


@pytest.mark.parametrize(
    "given_id",
    ["req-1", "0af7651916cd43dd8448eb211c80319c", "a/b+c=d", "100%", '{"id":1}', "x" * ID_CHARACTERS],
)
def test_a_normal_id_is_used_unchanged(given_id: str) -> None:
    assert quoted_id(given_id) == given_id


@given(PRINTABLE)
def test_no_printable_id_of_128_characters_is_changed(given_id: str) -> None:
    assert quoted_id(given_id) == given_id


@pytest.mark.parametrize(
    "given_id, used",
    [
        ("mine\r\nrequest other: rescued", "mine%0D%0Arequest%20other:%20rescued"),
        ("\x1b[31mred", "%1B[31mred"),
        ("nul\x00", "nul%00"),
        ("\x7f\x85\xa0", "%7F%85%A0"),
        ("a b\tc", "a%20b%09c"),
        ("caf\xc3\xa9", "caf%C3%A9"),
        ("x" * 4000, "x" * ID_CHARACTERS),
        ("\xff" * 4000, ("%FF" * 43)[:ID_CHARACTERS]),
        ("\u2028", "?"),
    ],
)
def test_what_could_change_a_log_line_is_encoded_and_the_rest_is_cut(given_id: str, used: str) -> None:
    assert quoted_id(given_id) == used


@given(st.text(st.characters(codec=None), max_size=300))
def test_whatever_comes_stands_in_a_header_and_in_one_word_of_a_log_line(given_id: str) -> None:
    used = quoted_id(given_id)
    assert len(used) <= ID_CHARACTERS
    assert all("!" <= character <= "~" for character in used)
    assert quoted_id(used) == used


def test_a_request_without_an_id_gets_one_that_stays_with_it() -> None:
    request = RequestFactory().get("/")
    assert request_id(request) == request_id(request) != request_id(RequestFactory().get("/"))
