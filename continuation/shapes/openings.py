"""How a text of the conversation is recognized again: by its first characters."""

PROBE_CHARS = 12


def opening_of(text: str) -> str:
    """By what a text of the conversation is recognized."""
    return text.strip()[:PROBE_CHARS]


def beginning_of(text: str) -> str:
    """As much of it as its opening depends on, whatever follows."""
    text = text.lstrip()
    return text[:PROBE_CHARS] + text[PROBE_CHARS:].strip()[:1]
