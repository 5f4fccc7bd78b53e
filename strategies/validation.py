"""What the text columns of a strategy may hold."""

from __future__ import annotations

import re

from django.core.exceptions import ValidationError

LONGEST_TOKEN = 1000  # characters
LONGEST_LIST = 100  # entries

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_GLOB_CLASS = re.compile(r"\[!?\]?[^\]]*\]")


def storable(text: str) -> None:
    """Raise ValidationError for text that databases and UTF-8 cannot hold."""
    found = _UNSTORABLE.search(text)
    if found:
        what = "a NUL character" if found[0] == "\x00" else f"a lone surrogate (\\u{ord(found[0]):04x})"
        raise ValidationError(f"{what} at position {found.start()} is not allowed.", code="unstorable")


def name_or_glob(text: str) -> None:
    """Raise ValidationError for a text that can match no model: an unclosed class, or white space at an end."""
    if text != text.strip():
        raise ValidationError(
            f"{text!r} begins or ends with white space; write the name alone.", code="name_or_glob"
        )
    if "[" in _GLOB_CLASS.sub("", text):
        raise ValidationError(
            f"{text!r} has a [ that is not closed; allowed are names and globs with *, ? and [...].",
            code="name_or_glob",
        )


def check_list(value: object, *, names: bool) -> None:
    """Raise ValidationError unless this is a list of texts. names: each names a model, or is a glob."""
    if not isinstance(value, list):
        kind = type(value).__name__
        raise ValidationError(f'This is no list of texts but {kind}; allowed is a list such as ["a", "b"].')
    if len(value) > LONGEST_LIST:
        raise ValidationError(f"{len(value)} entries are too many; {LONGEST_LIST} are allowed.")
    for position, entry in enumerate(value, start=1):
        if not isinstance(entry, str) or not entry:
            raise ValidationError(f"Entry {position} is {entry!r}; each must be a text that is not empty.")
        if len(entry) > LONGEST_TOKEN:
            raise ValidationError(
                f"Entry {position} has {len(entry)} characters; {LONGEST_TOKEN} are allowed."
            )
        storable(entry)
        if names:
            name_or_glob(entry)
