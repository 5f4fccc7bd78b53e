"""The reader of these tests is strict."""

import pytest

from tests.continuation.splice.playbook import DONE, content, told


def test_the_strict_reader_of_these_tests_is_strict() -> None:
    with pytest.raises(AssertionError):
        told(DONE + content("a"))
    with pytest.raises(AssertionError):
        told(content("a")[:-1])
