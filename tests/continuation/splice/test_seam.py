"""The seam joins text as received, and mends the five things that it must."""

import time

import pytest

from continuation.splice.pieces import Field, Piece, text_in
from continuation.splice.seam import RestartDeparted, Seam
from strategies.types import CompiledStrategy, Partial

R, C = Field.REASONING, Field.CONTENT
QWEN = CompiledStrategy("q", "q", open="<think>\n", close="</think>", template_trims=True)
K3 = CompiledStrategy(
    "k3",
    "k3",
    open="<|open|>think<|sep|>",
    close="<|close|>think<|sep|>",
    content_open="<|open|>response<|sep|>",
)
PLAIN = CompiledStrategy("p", "p")
AGAIN = CompiledStrategy("a", "a", may_think_again=True)


def joined(
    strategy: CompiledStrategy,
    partial: Partial,
    pieces: list[tuple[Field, str]],
    stops: tuple[str, ...] = (),
    shown: bool = False,
) -> tuple[str, str]:
    """(reasoning, content) of leg 2 as shown."""
    seam = Seam(strategy, partial, stops, stop_shown=shown)
    out = [piece for field, text in pieces for piece in seam.feed(Piece(field, text))]
    if seam.stopped_at is None:
        out += seam.flush()
    return text_in(one for one in out if one.field is R), text_in(one for one in out if one.field is C)


def by_characters(pieces: list[tuple[Field, str]]) -> list[tuple[Field, str]]:
    return [(field, character) for field, text in pieces for character in text]


CASES: dict[str, tuple[CompiledStrategy, Partial, list[tuple[Field, str]], tuple[str, str]]] = {
    "a word cut in two": (PLAIN, Partial("", "imple"), [(C, "mented")], ("", "mented")),
    "a space on the right": (PLAIN, Partial("", "The"), [(C, " cat")], ("", " cat")),
    "a space on the left": (PLAIN, Partial("", "The "), [(C, "cat")], ("", "cat")),
    "a space on both sides": (PLAIN, Partial("", "The "), [(C, " cat")], ("", " cat")),
    "a repeated word": (PLAIN, Partial("", "very "), [(C, "very good")], ("", "very good")),
    "a repeated sign": (PLAIN, Partial("", "- "), [(C, "- x")], ("", "- x")),
    "the start alone": (PLAIN, Partial("", "The sea is wide"), [(C, "The sea was")], ("", "The sea was")),
    "a start that just ends": (PLAIN, Partial("", "The sea is wide"), [(C, "The sea")], ("", "The sea")),
    "the whole told again": (
        PLAIN,
        Partial("", "Hello world "),
        [(C, "Hello world and all")],
        ("", "and all"),
    ),
    "the whole told again behind a line break": (
        PLAIN,
        Partial("", "Hello world "),
        [(C, "\n\n"), (C, "Hello world and all")],
        ("", "and all"),
    ),
    "the whole told again without its line break": (
        PLAIN,
        Partial("", "\n\nHello world "),
        [(C, "Hello world and all")],
        ("", "and all"),
    ),
    "white space and no repetition": (
        PLAIN,
        Partial("", "Hello world"),
        [(C, "\n"), (C, "\nHi")],
        ("", "\n\nHi"),
    ),
    "white space alone": (PLAIN, Partial("", "Hello world"), [(C, " "), (C, "\n")], ("", " \n")),
    "a page of white space": (
        PLAIN,
        Partial("", "Hello world"),
        [(C, " " * 41), (C, "Hello world")],
        ("", " " * 41 + "Hello world"),
    ),
    "white space behind the whole told again": (
        QWEN,
        Partial("", "A line and more.\n"),
        [(C, "A line and more.\n"), (C, "\n"), (C, "Next")],
        ("", "\nNext"),
    ),
    "a start of the trimmed space and no more": (QWEN, Partial("", "def f():\n    "), [(C, "\n")], ("", "")),
    "no more than the whole": (PLAIN, Partial("", "Hello world "), [(C, "Hello world ")], ("", "")),
    "reasoning and content again": (
        PLAIN,
        Partial("I think so. ", "Hello world "),
        [(R, "I think so. "), (C, "Hello world again")],
        ("", "again"),
    ),
    "a thinking again": (
        PLAIN,
        Partial("I think so", ""),
        [(R, "I think so too"), (C, "Yes")],
        (" too", "Yes"),
    ),
    "a second opening": (PLAIN, Partial("I th", ""), [(R, "<think>\nink"), (C, "Yes")], ("ink", "Yes")),
    "a second opening and a thinking again": (
        PLAIN,
        Partial("I think so", ""),
        [(R, "<think>\nI think so too")],
        (" too", ""),
    ),
    "an opening in a content is text": (PLAIN, Partial("", "a tag: "), [(C, "<think>")], ("", "<think>")),
    "almost an opening": (PLAIN, Partial("I th", ""), [(R, "<thin ice")], ("<thin ice", "")),
    "a closing inside": (
        PLAIN,
        Partial("I th", ""),
        [(R, "ink</think>\n\nYes"), (R, "!")],
        ("ink", "\n\nYes!"),
    ),
    "a closing at once": (PLAIN, Partial("I think", ""), [(R, "</think>Yes")], ("", "Yes")),
    "a closing filed under content": (PLAIN, Partial("I th", ""), [(C, "ink</think>Yes")], ("ink", "Yes")),
    "almost a closing": (PLAIN, Partial("I th", ""), [(R, "ink</thin"), (R, "g>")], ("ink</thing>", "")),
    "a closing that never came": (PLAIN, Partial("I th", ""), [(R, "ink</thi")], ("ink</thi", "")),
    "a closing in a content is text": (PLAIN, Partial("r", "c "), [(C, "</think>")], ("", "</think>")),
    "the engine closed": (
        PLAIN,
        Partial("I th", ""),
        [(R, "ink"), (C, "Yes </think>")],
        ("ink", "Yes </think>"),
    ),
    "k3's closing and opening": (
        K3,
        Partial("I th", ""),
        [(R, "ink<|close|>think<|sep|><|open|>response<|sep|>\nYes")],
        ("ink", "\nYes"),
    ),
    "reasoning after content": (PLAIN, Partial("r", "c "), [(R, "more")], ("", "more")),
    "reasoning after content of leg 2": (PLAIN, Partial("r", ""), [(C, "c"), (R, "more")], ("", "cmore")),
    "thinking again, where it may": (AGAIN, Partial("r", "c "), [(R, "more"), (C, "x")], ("more", "x")),
    "trimmed and written again": (QWEN, Partial("r", "- a\n\n"), [(C, "\n\n- b")], ("", "- b")),
    "trimmed in part": (QWEN, Partial("r", "- a \n"), [(C, "\n- b")], ("", "- b")),
    "trimmed, and more of it": (QWEN, Partial("r", "- a\n"), [(C, "\n\n- b")], ("", "\n- b")),
    "not written again": (QWEN, Partial("r", "- a\n"), [(C, "- b")], ("", "- b")),
    "other white space": (QWEN, Partial("r", "- a\n"), [(C, " - b")], ("", " - b")),
    "trimmed in the thinking": (
        QWEN,
        Partial("so \n", ""),
        [(R, "\nthen"), (C, "\n\nYes")],
        ("then", "\n\nYes"),
    ),
    "trimmed, then content": (QWEN, Partial("so \n", ""), [(C, "\n\nYes")], ("", "\n\nYes")),
    "trimmed, and then nothing": (QWEN, Partial("r", "- a\n\n"), [(C, "\n")], ("", "")),
    "white space without trimming": (PLAIN, Partial("r", "- a\n\n"), [(C, "\n\n- b")], ("", "\n\n- b")),
}


@pytest.mark.parametrize("name", CASES)
def test_the_seam(name: str) -> None:
    strategy, partial, pieces, expected = CASES[name]
    assert joined(strategy, partial, pieces) == expected


@pytest.mark.parametrize("name", [name for name in CASES if name != "a closing filed under content"])
def test_the_seam_whatever_the_pieces_are_cut_into(name: str) -> None:
    strategy, partial, pieces, expected = CASES[name]
    assert joined(strategy, partial, by_characters(pieces)) == expected


LONG = "It was the best of times, it was the worst of times, it was the age."


@pytest.mark.parametrize("cut", [40, 41, len(LONG) - 1])
def test_forty_characters_told_again_and_then_something_else_is_a_departure(cut: int) -> None:
    with pytest.raises(RestartDeparted):
        joined(PLAIN, Partial("", LONG), [(C, LONG[:cut] + "#")])
    with pytest.raises(RestartDeparted):
        joined(PLAIN, Partial("", LONG), by_characters([(C, LONG[:cut] + "#")]))


def test_forty_characters_told_again_and_then_an_end_is_a_departure() -> None:
    with pytest.raises(RestartDeparted):
        joined(PLAIN, Partial("", LONG), [(C, LONG[:40])])


def test_thirty_nine_characters_told_again_are_no_restart() -> None:
    assert joined(PLAIN, Partial("", LONG), [(C, LONG[:39] + "#")]) == ("", LONG[:39] + "#")


STOPS: dict[str, tuple[str, list[str], tuple[str, ...], bool, str, str | None]] = {
    "across": ("text EN", ["D more"], ("END",), False, "", "END"),
    "across, shown": ("text EN", ["D more"], ("END",), True, "D", "END"),
    "across, in small pieces": ("text #", ["#", "#", "x"], ("###",), False, "", "###"),
    "none": ("text EN", ["TRY"], ("END",), False, "TRY", None),
    "nearly, then an end": ("text E", ["N"], ("END",), False, "N", None),
    "the whole in leg 2 is the engine's": ("text ", ["END"], ("END",), False, "END", None),
    "the first of two": ("ab", ["cd"], ("abc", "bcd"), False, "", "abc"),
    "one character": ("text .", ["x"], (".",), False, "x", None),
    "no stops": ("text", ["x"], (), False, "x", None),
    "begun twice": ("text aab", ["aabaac"], ("aabaabaac",), False, "", "aabaabaac"),
    "begun again after the seam is the engine's": ("aa", ["baab"], ("aab", "baab"), False, "", "aab"),
    "longer than is looked for": ("text x", ["y" * 5000], ("x" + "y" * 5000,), False, "y" * 5000, None),
}


@pytest.mark.parametrize("name", STOPS)
def test_stop_strings_across_the_seam(name: str) -> None:
    delivered, texts, stops, shown, expected, matched = STOPS[name]
    seam = Seam(PLAIN, Partial("", delivered), stops, stop_shown=shown)
    out = [piece for text in texts for piece in seam.feed(Piece(C, text))]
    assert seam.stopped_at == matched
    if matched is None:
        out += seam.flush()
    assert text_in(out) == expected


def work(size: int, alphabet: str, stops: int) -> float:
    """CPU seconds of a seam with `size` characters of trouble on both sides of it."""
    delivered = "x" + alphabet * size
    wanted = tuple(alphabet * (1000 + n) for n in range(stops))
    seam = Seam(QWEN, Partial("", delivered), wanted, stop_shown=False)
    start = time.process_time()
    for _ in range(size):
        seam.feed(Piece(C, alphabet))
    seam.feed(Piece(C, "end"))
    return time.process_time() - start


@pytest.mark.parametrize("alphabet, stops", [(" ", 0), ("a", 3), (" ", 3)], ids=["space", "stops", "both"])
def test_twice_the_trouble_at_the_seam_is_twice_the_work(alphabet: str, stops: int) -> None:
    work(1000, alphabet, stops)
    small, large = (min(work(size, alphabet, stops) for _ in range(3)) for size in (20_000, 80_000))
    assert large < 10 * small + 0.05  # four times as much; quadratic would be sixteen
