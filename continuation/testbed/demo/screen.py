"""The terminal: streamed text that wraps as it comes, in the colour of its leg; plain where it is no terminal."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Callable, Sequence

INDENT = 4
NARROWEST, WIDEST = 30, 100
# Columns: a line that has fewer left is broken at the next space.
_SOFT_MARGIN = 12
_TAB = "    "
_PLAIN = "0"
BOLD, DIM, RED, GREEN, CYAN = "1", "2", "31", "32", "36"


class Screen:
    """Writes through `write`; `columns` is the width of the terminal."""

    def __init__(self, write: Callable[[str], object], columns: int, colour: bool) -> None:
        self._write = write
        self._width = max(NARROWEST, min(columns, WIDEST) - 1)
        self.colour = colour
        self._column = 0
        self._after_wide = False

    def styled(self, text: str, *styles: str) -> str:
        return f"\x1b[{';'.join(styles)}m{text}\x1b[{_PLAIN}m" if self.colour and styles and text else text

    def line(self, text: str = "", *styles: str, indent: int = 2) -> None:
        """A line of its own, whatever stands before it; `text` may be styled already."""
        self.end_text()
        self._write(f"{' ' * indent}{self.styled(text, *styles)}".rstrip(" ") + "\n")

    def words(self, text: str, *styles: str) -> None:
        """As many lines as it takes."""
        for line in textwrap.wrap(text, self._width - 2, subsequent_indent="  "):
            self.line(line, *styles)

    def rule(self, text: str, *styles: str) -> None:
        dashes = self._width - INDENT - width(text) - 4
        self.line(f"── {text} " + "─" * max(2, dashes), *styles, indent=INDENT)

    def stream(self, text: str, *styles: str, indent: int = INDENT) -> None:
        """A part of a text that goes on where the part before ended."""
        placed = "".join(self._placed(character, indent) for character in text.replace("\t", _TAB))
        self._write("\n".join(self.styled(line, *styles) for line in placed.split("\n")))

    def end_text(self) -> None:
        if self._column:
            self._write("\n")
            self._column = 0

    def table(self, rows: Sequence[Sequence[str]]) -> None:
        """The first row is its head."""
        widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
        for number, row in enumerate(rows):
            cells = [cell + " " * (space - width(cell)) for cell, space in zip(row, widths, strict=True)]
            self.line("  ".join(cells).rstrip(), *([BOLD] if number == 0 else []))

    def _placed(self, character: str, indent: int) -> str:
        """The character, with the line break or the indent that it needs before it."""
        columns = width(character)
        room = self._width - self._column - columns
        ends_word = character == " " or (self._after_wide and columns == 1)
        broken = bool(self._column) and (room < 0 or (ends_word and room < _SOFT_MARGIN))
        self._after_wide = columns > 1
        if character == "\n" or (broken and character == " "):
            self._column = 0
            return "\n"
        if broken or not self._column:
            self._column = indent + columns
            return ("\n" if broken else "") + " " * indent + character
        self._column += columns
        return character


def width(text: str) -> int:
    """Columns that a text takes in a terminal."""
    return sum(_columns(character) for character in text)


def _columns(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf", "Cc"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
