from hypothesis import given
from hypothesis import strategies as st

from continuation.testbed.simulator import vocabulary
from continuation.testbed.simulator.dialects import DIALECTS


@given(st.text())
def test_every_text_has_ids_that_give_it_back(text: str) -> None:
    ids = vocabulary.ids(vocabulary.encode(text))
    assert vocabulary.decode(ids) == text.encode("utf-8", "replace").decode()


@given(st.text(alphabet=st.characters(categories=["Cs"]), max_size=3))
def test_a_lone_surrogate_is_no_reason_to_fail(text: str) -> None:
    assert b"".join(vocabulary.encode(text)) == b"?" * len(text)


def test_each_token_has_one_id() -> None:
    assert len(set(vocabulary.TOKENS)) == len(vocabulary.TOKENS)


def test_control_tokens_are_single_tokens() -> None:
    for dialect in DIALECTS.values():
        for marker in dialect.markers:
            assert vocabulary.encode(marker) == [marker.encode()]


def test_an_emoji_is_two_tokens_and_some_tokens_begin_inside_a_character() -> None:
    assert vocabulary.encode("🌊") == ["🌊".encode()[:2], "🌊".encode()[2:]]
    pieces = vocabulary.encode("了解杭州")
    assert "了".encode()[2:] + "解杭".encode() in pieces
    assert b"".join(pieces) == "了解杭州".encode()
