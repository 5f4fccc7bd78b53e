"""How a lack of descriptors is recognized, and how often it is said."""

import errno

import httpx
import pytest

from continuation.downstream.shortage import Notice
from continuation.downstream.troubles import status_for


@pytest.mark.parametrize(
    ("number", "status"), [(errno.EMFILE, 503), (errno.ENFILE, 503), (errno.ECONNREFUSED, 502)]
)
def test_a_lack_of_descriptors_is_told_from_a_downstream_that_is_away(number: int, status: int) -> None:
    trouble = httpx.ConnectError("no connection")
    trouble.__cause__ = RuntimeError("what a library makes of it")
    trouble.__cause__.__cause__ = OSError(number, "why")
    assert status_for(trouble) == status


def test_a_notice_is_said_once_a_second_with_the_number_of_those_in_between(
    caplog: pytest.LogCaptureFixture,
) -> None:
    times = iter([10.0, 10.2, 10.9, 11.0, 15.0])
    notice = Notice(lambda: next(times))
    for _ in range(5):
        notice.say("none left")
    assert caplog.messages == ["none left", "none left (2 more since the last such line)", "none left"]
