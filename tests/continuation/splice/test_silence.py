"""When silence is a failure."""

import pytest

from continuation.splice.course import Phase
from tests.continuation.splice.playbook import DONE, ID, Play, chunk, content, event, role


@pytest.mark.parametrize(
    "said", [[], [b": ping\n\n"], [b"id: 1\n\n"], [role()], [event({**ID, "choices": []})]]
)
def test_silence_before_there_is_text_is_waited_out(said: list[bytes]) -> None:
    play = Play(idle_timeout=1).reads(*said).waits(100_000)
    assert not play.splice.ended
    assert play.reads(content("a"), chunk({}, "stop"), DONE).splice.phase is Phase.DONE


def test_the_clock_starts_with_the_text_however_late_it_comes() -> None:
    play = Play(idle_timeout=5).reads(role()).waits(1000).reads(content("a")).waits(4.9)
    assert play.legs == []
    assert len(play.waits(0.2).legs) == 1
