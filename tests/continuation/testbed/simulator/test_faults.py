import pytest

from continuation.testbed.simulator.faults import (
    KINDS,
    Armed,
    Fault,
    FaultError,
    help_text,
    parse_header,
    read_armed,
    shown,
)


def test_a_header_names_a_fault_and_its_options() -> None:
    assert parse_header("reset") == (Fault("reset"),)
    assert parse_header("Reset; after=5;leg=any ;in=content;") == (Fault("reset", "any", 5, "content"),)
    assert parse_header("stall; for=0.5") == (Fault("stall", lasts=0.5),)
    assert parse_header("") == ()


def test_several_faults_are_separated_by_commas() -> None:
    found = parse_header("disconnect; after=3, refuse; leg=2; status=400")
    assert found == (Fault("disconnect", after=3), Fault("refuse", "2", status=400))


def test_a_header_fault_concerns_the_first_leg_unless_it_says_otherwise() -> None:
    assert parse_header("reset")[0].concerns(1)
    assert not parse_header("reset")[0].concerns(2)
    assert parse_header("reset; leg=any")[0].concerns(2)
    assert not parse_header("restart")[0].concerns(1)
    assert parse_header("restart")[0].concerns(2)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("explode", ["unknown fault 'explode'", *KINDS]),
        ("reset; when=3", ["no option 'when'", "leg", "after", "in"]),
        ("empty; after=3", ["no option 'after'"]),
        ("reset; after", ["grammar", "name; option=value"]),
        ("reset; after=", ["grammar"]),
        ("reset; after=1; after=2", ["grammar"]),
        ("reset; after=-1", ["after='-1'", "whole number"]),
        ("reset; after=³", ["whole number"]),
        ("reset; leg=3", ["leg='3'", "1 | 2 | any"]),
        ("reset; in=middle", ["reasoning | content | tool"]),
        ("refuse; status=200", ["status='200'", "400 to 599"]),
        ("stall; for=long", ["seconds"]),
        ("stall; for=nan", ["seconds"]),
        ("truncated; form=odd", ["length | no_done"]),
        ("slow_first_token; before=lunch", ["event | headers"]),
    ],
)
def test_bad_wording_is_refused_and_what_is_allowed_is_named(text: str, names: list[str]) -> None:
    with pytest.raises(FaultError) as error:
        parse_header(text)
    for name in names:
        assert name in str(error.value)


def test_faults_are_armed_from_json() -> None:
    armed = read_armed({"fault": "reset", "after_events": 7, "times": 3, "leg": 2})
    assert armed == [Armed(Fault("reset", "2", 7), 3)]
    both = read_armed([{"fault": "eof"}, {"fault": "refuse", "status": 500, "leg": "any", "times": "always"}])
    assert both == [Armed(Fault("eof")), Armed(Fault("refuse", "any", status=500), None)]


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        5,
        "reset",
        {},
        {"fault": 3},
        {"fault": "nope"},
        {"fault": "reset", "times": 0},
        {"fault": "reset", "times": True},
        {"fault": "reset", "times": "often"},
        {"fault": "reset", "after": None},
        {"fault": "reset", "leg": [1]},
        [{"fault": "reset"}, {"fault": "reset", "odd": 1}],
    ],
)
def test_bad_json_is_refused(value: object) -> None:
    with pytest.raises(FaultError):
        read_armed(value)


def test_what_is_shown_can_be_armed_again() -> None:
    for name in KINDS:
        (fault,) = parse_header(name)
        assert read_armed(shown(fault)) == [Armed(fault)]


def test_help_tells_each_fault_with_its_options() -> None:
    for name, kind in KINDS.items():
        line = next(line for line in help_text().splitlines() if line.split()[0] == name)
        assert all(option in line for option in kind.all_options)
