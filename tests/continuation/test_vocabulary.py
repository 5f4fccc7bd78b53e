"""The words of the vocabulary are complete, and their values are what they were."""

import pytest

from continuation.vocabulary import Failure, Outcome, Reason, Worded, ended_by, failed_message


def test_a_word_without_a_text_fails_where_it_is_written() -> None:
    with pytest.raises(TypeError, match="text"):

        class Mood(Worded):
            CALM = "calm", "nothing happened"
            UPSET = "upset"


@pytest.mark.parametrize("word", [*Failure, *Reason])
def test_a_word_with_a_text_is_its_value(word: Worded) -> None:
    assert word == word.value == str(word)
    assert type(word)(str(word)) is word
    assert bool(word.text) == bool(word)


def test_the_texts_of_failure_and_reason_make_one_sentence() -> None:
    assert failed_message(Failure.ABORTED, Reason.LEG2_EMPTY) == (
        "The stream was interrupted: the engine aborted the answer; the continuation was empty."
    )
    assert failed_message(None, Reason.SHUTTING_DOWN) == (
        "The stream was interrupted: the gateway is shutting down."
    )


@pytest.mark.parametrize(
    "failure, outcome, reason, words",
    [
        (Failure.EOF, Outcome.FAILED, Reason.STOPPED, "eof"),
        ("", Outcome.FAILED, Reason.STOPPED, "stopped by its client"),
        ("", Outcome.CLIENT_GONE, Reason.NONE, "left by its client"),
        ("", Outcome.FAILED, Reason.SHUTTING_DOWN, "ended by the shutdown"),
        ("", Outcome.RESCUED, Reason.NONE, "unfailed"),
    ],
)
def test_the_log_names_what_ended_a_stream(failure: str, outcome: str, reason: str, words: str) -> None:
    assert ended_by(failure, outcome, reason) == words
