"""The seam: what leg 2 says first is checked, put under the right field, and joined to the partial.

Text is joined exactly as received, but for five things, each a stage below. Text goes through them in this order
as pieces, with their tokens; a stage that cannot tell yet holds pieces back, and `flush` ends the waiting.

    OpeningTag    thinking-partial: a second opening token is not shown
    Restart       leg 2 tells the answer again from its start: an exact repetition is swallowed
    ClosingToken  thinking-partial: a closing token inside the text ends the reasoning there, and is not shown
    TrimmedSpace  white space that the template trimmed and the model wrote again is dropped once
    StopString    a stop string that begins before the seam and ends after it still ends the answer

Then `Seam` files reasoning that comes after content under content, unless the model may think again.
"""

from __future__ import annotations

from os.path import commonprefix
from typing import Protocol

from continuation.splice.pieces import Field, Piece, Pieces, first, text_in, without_first
from strategies.types import CompiledStrategy, Partial

RESTART_CHARS = 40
# A partial shorter than both is no proof of a restart: words do repeat ("very very").
RESTART_LEAST_CHARS = 8
RESTART_LEAST_WORDS = 2
# Longer stop strings are left to the engine: looking for them at the seam would hold up other streams.
LONGEST_STOP = 4096
# Nor are more of them looked for than this, in characters.
STOPS_LOOKED_FOR = 16 * LONGEST_STOP


class Stage(Protocol):
    """Takes pieces in, gives out what is certain; `flush` gives out the rest."""

    def feed(self, piece: Piece) -> Pieces: ...

    def flush(self) -> Pieces: ...

    @property
    def is_undecided(self) -> bool:
        """Whether the text that comes next may be held or swallowed, or some is held."""
        ...


class RestartDeparted(Exception):
    """Leg 2 wrote the answer again from its start, and differently."""


class OpeningTag:
    """Swallows one token at the very start, and one line end behind it if `line_end`."""

    def __init__(self, token: str, *, line_end: bool) -> None:
        self._token = token.strip()
        self._line_end = line_end
        self._held: Pieces = []

    def feed(self, piece: Piece) -> Pieces:
        if not self._token:
            return [piece]
        self._held.append(piece)
        text = text_in(self._held)
        if not text.startswith(self._token):
            return [] if self._token.startswith(text) else self._release(self._held)
        size = len(self._token)
        if len(text) == size and self._line_end:
            return []
        size += self._line_end and text.startswith("\n", size)
        return self._release(without_first(self._held, size))

    def flush(self) -> Pieces:
        return self._release([] if text_in(self._held) == self._token else self._held)

    @property
    def is_undecided(self) -> bool:
        return bool(self._token)

    def _release(self, pieces: Pieces) -> Pieces:
        self._held, self._token = [], ""
        return pieces


class Restart:
    """Compares leg 2 with the start of the partial, as one text over both fields; white space before it is no text."""

    def __init__(self, partial: Partial) -> None:
        told = {text.lstrip() for text in (partial.content, partial.reasoning + partial.content)}
        self._references = [text for text in told if _is_telling(text)]
        self._held: Pieces = []
        self._space = 0  # characters of white space that leg 2 began with
        self._seen = 0
        self.detected = False

    def feed(self, piece: Piece) -> Pieces:
        if not self._references:
            return [piece]
        text = piece.text
        self._held.append(piece)
        if not self._seen:
            text = text.lstrip()
            self._space += len(piece.text) - len(text)
            if self._space > RESTART_CHARS or not text:
                return [] if self._space <= RESTART_CHARS else self._departed()
        start, self._seen = self._seen, self._seen + len(text)
        repeated = {told: start + _common(told[start : self._seen], text) for told in self._references}
        if whole := next((told for told, n in repeated.items() if n == len(told)), None):
            self.detected = True
            return self._release(without_first([piece], len(piece.text) - len(text) + len(whole) - start))
        self.detected = self.detected or max(repeated.values()) >= RESTART_CHARS
        self._references = [told for told, n in repeated.items() if n == self._seen]
        if not self._references:
            return self._departed()
        if self.detected:
            self._held.clear()
        return []

    def flush(self) -> Pieces:
        """At the end of leg 2: a repetition that stops short departs from the partial, which went on."""
        if self.detected and self._references:
            raise RestartDeparted
        return self._release(self._held)

    @property
    def is_undecided(self) -> bool:
        return bool(self._references)

    def _departed(self) -> Pieces:
        if self.detected:
            self._held.clear()
            raise RestartDeparted
        return self._release(self._held)

    def _release(self, pieces: Pieces) -> Pieces:
        self._held, self._references = [], []
        return pieces


def _is_telling(text: str) -> bool:
    return len(text) >= RESTART_LEAST_CHARS or len(text.split()) >= RESTART_LEAST_WORDS


def _common(a: str, b: str) -> int:
    """Length of the common start."""
    return len(commonprefix([a, b]))  # noqa: RUF071 - character by character is what is wanted


class ClosingToken:
    """Splits reasoning at a closing token that the engine left in the text; CONTENT_OPEN behind it goes as well."""

    def __init__(self, close: str, content_open: str) -> None:
        self._token = close.strip()
        self._after = OpeningTag(content_open, line_end=False)
        self._closed = not self._token
        self._reasoning_seen = False
        self._held: Pieces = []

    def feed(self, piece: Piece) -> Pieces:
        if self._closed:
            return self._after.feed(piece.under(Field.CONTENT)) if self._token else [piece]
        if piece.field is Field.CONTENT and self._reasoning_seen:
            return self._engine_closed(piece)
        self._reasoning_seen = piece.field is Field.REASONING
        pieces, self._held = [*self._held, piece], []
        text = text_in(pieces)
        at = text.find(self._token)
        if at >= 0:
            self._closed = True
            after = [out for one in without_first(pieces, at + len(self._token)) for out in self.feed(one)]
            return [one.under(Field.REASONING) for one in first(pieces, at)] + after
        if piece.field is Field.CONTENT:
            return self._engine_closed(piece)
        certain = len(text) - overlap(text, self._token)
        self._held = without_first(pieces, certain)
        return first(pieces, certain)

    def flush(self) -> Pieces:
        held, self._held = self._held, []
        return held + self._after.flush()

    @property
    def is_undecided(self) -> bool:
        return bool(self._held) or (self._closed and bool(self._token) and self._after.is_undecided)

    def _engine_closed(self, piece: Piece) -> Pieces:
        """The engine itself has moved on to content: from here on a token in it is ordinary text."""
        held, self._held = self._held, []
        self._closed, self._token = True, ""
        return [*held, piece]


class TrimmedSpace:
    """Drops, once, white space at the start of leg 2 that repeats the white space at the end of the partial."""

    def __init__(self, field: Field, delivered: str) -> None:
        self._field = field
        self._tail = delivered[len(delivered.rstrip()) :]
        self._held: Pieces = []
        self._length = 0

    def feed(self, piece: Piece) -> Pieces:
        if not self._tail:
            return [piece]
        if piece.field is not self._field:
            return [*self.flush(), piece]
        self._held.append(piece)
        self._length += len(piece.text)
        if piece.text.isspace() and self._length < len(self._tail):
            return []
        return self.flush()

    def forget(self) -> None:
        """The repetition has been swallowed elsewhere."""
        self._tail = ""

    def flush(self) -> Pieces:
        pieces, tail = self._held, self._tail
        self._held, self._tail = [], ""
        held = text_in(pieces)
        if tail.startswith(held):  # leg 2 ended while it was telling the tail again
            return []
        return without_first(pieces, _repeated(held, tail))

    @property
    def is_undecided(self) -> bool:
        return bool(self._tail)


def _repeated(text: str, tail: str) -> int:
    """The length of the longest start of `text` that `tail` ends with."""
    if text.startswith(tail) or tail.endswith(text):
        return min(len(text), len(tail))
    return max(_begun(text[: len(tail)], tail), default=0)


class StopString:
    """Ends the answer before a stop string that begins in the partial and ends in leg 2."""

    def __init__(self, field: Field, delivered: str, stops: tuple[str, ...], *, shown: bool) -> None:
        self._field = field
        self._spanning = [one for stop in _looked_for(stops) if (one := Spanning(stop, delivered)).may_come]
        self._shown = shown
        self._held: Pieces = []
        self.matched: str | None = None

    def feed(self, piece: Piece) -> Pieces:
        if self.matched is not None:
            return []
        if not self._spanning:
            return [piece]
        if piece.field is not self._field:
            return [*self.flush(), piece]
        self._held.append(piece)
        for one in self._spanning:
            one.feed(piece.text)
        ends = [(one.end, one.stop) for one in self._spanning if one.end]
        if ends:
            end, self.matched = min(ends)
            return first(self._held, end) if self._shown else []
        self._spanning = [one for one in self._spanning if one.may_come]
        return [] if self._spanning else self.flush()

    def flush(self) -> Pieces:
        held, self._held, self._spanning = self._held, [], []
        return held if self.matched is None else []

    @property
    def is_undecided(self) -> bool:
        return bool(self._spanning)


def _looked_for(stops: tuple[str, ...]) -> list[str]:
    found, left = [], STOPS_LOOKED_FOR
    for stop in dict.fromkeys(stops):
        if len(stop) <= min(left, LONGEST_STOP):
            found.append(stop)
            left -= len(stop)
    return found


class Spanning:
    """One stop string that may span the seam, looked for by the automaton of Knuth, Morris and Pratt.

    end: how many characters of leg 2 belong to it, once it has come; 0 before.
    """

    def __init__(self, stop: str, delivered: str) -> None:
        self.stop = stop
        self.end = 0
        self._seen = 0
        self._length = max(_begun(stop, delivered), default=0)  # of its start that the text so far ends with
        self._borders = _borders(stop) if self._length else []

    @property
    def may_come(self) -> bool:
        """Whether what the text ends with began before the seam."""
        return not self.end and self._length > self._seen

    def feed(self, text: str) -> None:
        for character in text:
            if not self.may_come:
                return
            self._seen += 1
            while self._length and self.stop[self._length] != character:
                self._length = self._borders[self._length - 1]
            self._length += self.stop[self._length] == character
            if self._length == len(self.stop):
                self.end = self._seen


def _begun(stop: str, delivered: str) -> list[int]:
    """The lengths of the starts of `stop` that `delivered` ends with, but for all of it (Knuth, Morris, Pratt)."""
    if not delivered or delivered[-1] not in stop[:-1]:
        return []
    stop = stop[: len(delivered) + 1]
    tail = delivered[max(0, len(delivered) - len(stop) + 1) :]
    borders = _borders(stop)
    length = 0
    for character in tail:
        while length and (length == len(stop) or stop[length] != character):
            length = borders[length - 1]
        length += stop[length] == character
    found = []
    while length:
        if length < len(stop):
            found.append(length)
        length = borders[length - 1]
    return found


def _borders(text: str) -> list[int]:
    """For each prefix of `text`, the length of its longest proper border."""
    borders = [0] * len(text)
    length = 0
    for position in range(1, len(text)):
        while length and text[length] != text[position]:
            length = borders[length - 1]
        length += text[length] == text[position]
        borders[position] = length
    return borders


class Seam:
    """All stages in order; `feed` and `flush` return what may be shown."""

    def __init__(
        self,
        strategy: CompiledStrategy,
        partial: Partial,
        stops: tuple[str, ...],
        *,
        stop_shown: bool,
        exact: bool = False,
    ) -> None:
        """exact: leg 2 goes on from the very tokens of leg 1, so that nothing can come twice."""
        thinking = not partial.content
        field, delivered = (
            (Field.REASONING, partial.reasoning) if thinking else (Field.CONTENT, partial.content)
        )
        self._content_begun = not thinking
        self._may_think_again = strategy.may_think_again
        self._restart = Restart(Partial() if exact else partial)
        self._stop = StopString(field, delivered, stops, shown=stop_shown)
        self._before_filing: list[Stage] = [
            OpeningTag(strategy.open if thinking and not exact else "", line_end=True),
            self._restart,
            ClosingToken(strategy.close if thinking else "", strategy.content_open),
        ]
        self._trimmed = TrimmedSpace(field, delivered if strategy.template_trims and not exact else "")
        self._after_filing: list[Stage] = [self._trimmed, self._stop]

    @property
    def restarted(self) -> bool:
        return self._restart.detected

    @property
    def stopped_at(self) -> str | None:
        """The stop string that ended the answer at the seam."""
        return self._stop.matched

    @property
    def is_undecided(self) -> bool:
        """Whether the text that comes next may be held or swallowed, or some is held."""
        return any(stage.is_undecided for stage in (*self._before_filing, *self._after_filing))

    def feed(self, piece: Piece) -> Pieces:
        """Raises RestartDeparted."""
        return self._through([piece], last=False)

    def flush(self) -> Pieces:
        """Leg 2 says nothing more. Raises RestartDeparted."""
        return self._through([], last=True)

    def _through(self, pieces: Pieces, *, last: bool) -> Pieces:
        pieces = _staged(self._before_filing, pieces, last=last)
        if self._restart.detected:
            self._trimmed.forget()
        return _staged(self._after_filing, [self._filed(piece) for piece in pieces], last=last)

    def _filed(self, piece: Piece) -> Piece:
        if piece.field is Field.CONTENT:
            self._content_begun = True
        elif self._content_begun and not self._may_think_again:
            return piece.under(Field.CONTENT)
        return piece


def _staged(stages: list[Stage], pieces: Pieces, *, last: bool) -> Pieces:
    for stage in stages:
        pieces = [out for piece in pieces for out in stage.feed(piece)]
        if last:
            pieces += stage.flush()
    return pieces


def overlap(text: str, token: str) -> int:
    """How many characters at the end of `text` may be the start of `token`."""
    longest = min(len(text), len(token) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(token[:n])), 0)
