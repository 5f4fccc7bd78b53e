"""Text with its white space made visible, for people who must see which line break is where."""

# The script of the change form holds the same marks.
MARKS = {" ": "·", "\t": "→", "\n": "⏎\n", "\r": "␍", "\u00a0": "⍽", "\u3000": "□"}


def visible(text: str) -> str:
    """Each white space character as a mark; a line break keeps breaking the line after its mark."""
    return "".join(MARKS.get(character, character) for character in text)
