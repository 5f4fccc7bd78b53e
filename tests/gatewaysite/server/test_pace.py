"""Who sends a request too slowly, by the clock that is passed in."""

from gatewaysite.server.pace import Pace, Part, Slowest

SLOWEST = Slowest(head=30, window=60, rate=500)


def seconds_until_too_slow(part: Part, bytes_a_second: float, slowest: Slowest = SLOWEST) -> int | None:
    """Of a client that is looked at each second; None where it is still waited for after an hour."""
    pace = Pace()
    for second in range(3600):
        received = int(second * bytes_a_second)
        pace.look(1000.0 + second, part, 1, received)
        if pace.is_too_slow(1000.0 + second, received, slowest):
            return second
    return None


def test_a_head_is_given_up_at_its_deadline() -> None:
    assert seconds_until_too_slow(Part.HEAD, 0) == 30


def test_a_body_is_given_up_after_a_window_in_which_less_than_the_rate_came() -> None:
    assert seconds_until_too_slow(Part.BODY, 0) == 60
    assert seconds_until_too_slow(Part.BODY, 499) == 60


def test_a_body_at_the_least_rate_is_waited_for() -> None:
    assert seconds_until_too_slow(Part.BODY, 500) is None


def test_a_rate_of_nought_waits_for_any_body() -> None:
    assert seconds_until_too_slow(Part.BODY, 0, Slowest(head=30, window=60, rate=0)) is None


def test_a_picture_of_ten_megabytes_over_a_poor_mobile_network_is_not_given_up() -> None:
    """10 kB/s, and 40 s of nothing every two minutes, as in a tunnel."""
    pace, received, second = Pace(), 0, 0
    while received < 10_000_000:
        second += 1
        received += 10_000 if second % 120 >= 40 else 0
        pace.look(second, Part.BODY, 1, received)
        assert not pace.is_too_slow(second, received, SLOWEST), f"after {second} s"


def test_each_request_has_time_of_its_own() -> None:
    pace = Pace()
    for number in range(100):
        pace.look(number * 20.0, Part.HEAD, number, 0)
        assert not pace.is_too_slow(number * 20.0, 0, SLOWEST)


def test_nothing_on_its_way_is_idle_and_never_too_slow() -> None:
    pace = Pace()
    pace.look(0.0, Part.NONE, 3, 0)
    pace.look(500.0, Part.NONE, 3, 0)
    assert not pace.is_too_slow(500.0, 0, SLOWEST)
    assert pace.idle_seconds(500.0) == 500.0
    pace.look(501.0, Part.HEAD, 3, 0)
    assert pace.idle_seconds(501.0) == 0.0
