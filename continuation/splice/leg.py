"""What one leg has delivered so far."""

from __future__ import annotations

from copy import copy
from typing import Any

from continuation.shapes.chat.chunks import (
    REASONING_NAMES,
    brings_something_new,
    choices,
    count,
    delta_of,
    finish_of,
    has_tool_call,
    ids_in,
    index_of,
    reasoning_of,
    text_of,
    tool_ids_in,
    usage_of,
)
from continuation.shapes.encoding import JSON
from strategies.builders import without_lone_surrogates
from strategies.types import Partial

# Pieces of a text that are joined to one: a piece alone costs some fifty bytes more than its characters.
PIECES_JOINED = 1024
# An id takes several bytes in the request that carries it.
ID_BYTES = 4
# More choices than any engine gives are not distinguished.
MOST_CHOICES = 128


class Text:
    """A text that grows by pieces, at little more memory than its characters. False while it is empty."""

    __slots__ = ("_blocks", "_last", "_pieces", "whole")

    def __init__(self) -> None:
        self._blocks: list[str] = []
        self._pieces: list[str] = []
        self._last = ""
        self.whole = False  # half a character alone is nothing that could be continued

    def __bool__(self) -> bool:
        return bool(self._pieces or self._blocks)

    def __str__(self) -> str:
        return "".join((*self._blocks, *self._pieces))

    def add(self, piece: str) -> None:
        """piece is not empty."""
        self.whole = self.whole or bool(without_lone_surrogates(self._last + piece))
        self._last = piece[-1:]
        self._pieces.append(piece)
        if len(self._pieces) >= PIECES_JOINED:
            self._blocks.append("".join(self._pieces))
            self._pieces.clear()

    def copy(self) -> Text:
        other = copy(self)
        other._blocks, other._pieces = [*self._blocks], [*self._pieces]
        return other


class Leg:
    """Reads chunks in order. Only choice 0 makes up the partial; others are noted.

    choices: how many the client asked for. `finish` comes with the first finish_reason of choice 0; where there are
    several choices, with that of the last of them.

    Text beyond `limit` characters is dropped, and sets `too_large`. Ids are dropped when they would make a request
    larger than about `limit` bytes.
    """

    __slots__ = (
        "_asked",
        "_brings_reasoning",
        "_brings_text",
        "_chars",
        "_choice_lost",
        "_content",
        "_ended_choices",
        "_ids",
        "_ids_shown",
        "_limit",
        "_lost_ids",
        "_open_choices",
        "_others",
        "_reasoning",
        "_shown_at_once",
        "_uncounted",
        "created",
        "events",
        "fingerprint",
        "finish",
        "id",
        "last_usage",
        "model",
        "other_choices",
        "prompt_ids",
        "prompt_tokens",
        "reasoning_events",
        "reasoning_names",
        "role_seen",
        "text_events",
        "too_large",
        "tool_call_seen",
        "tool_ids",
        "unreadable",
        "usage_current",
    )

    def __init__(self, limit: int, choices: int = 1) -> None:
        self._limit = limit
        self._asked = choices
        self._ended_choices: set[int] = set()
        self._choice_lost = False
        self._chars = 0
        self.too_large = False
        self._ids: list[int] = []
        self._ids_shown = 0
        self._shown_at_once = 0
        self._lost_ids = False
        self.prompt_tokens: int | None = None
        self.prompt_ids: tuple[int, ...] = ()
        self.tool_ids: list[str] = []
        self._reasoning = Text()
        self._content = Text()
        self._others = Text()  # of the other choices, one after the other as it comes
        self._uncounted = 0
        self._brings_text = self._brings_reasoning = False  # the chunk that is taken in
        self.text_events = self.reasoning_events = (
            0  # chunks that brought text; of them, those with reasoning
        )
        self.events = 0
        self.id: Any = None
        self.created: Any = None
        self.model: Any = None
        self.fingerprint: Any = None
        self.role_seen = False
        self.reasoning_names: tuple[str, ...] = ()
        self.finish: str | None = None
        self.tool_call_seen = False
        self.other_choices = choices > 1
        self._open_choices: set[int] = set()
        self.unreadable = False
        self.last_usage: JSON | None = None
        self.usage_current = False

    @property
    def partial(self) -> Partial:
        return Partial(str(self._reasoning), str(self._content))

    @property
    def has_text(self) -> bool:
        return bool(self._reasoning or self._content)

    @property
    def has_whole_text(self) -> bool:
        """Half a character alone is nothing that could be continued."""
        return self._reasoning.whole or self._content.whole

    @property
    def has_reasoning(self) -> bool:
        return bool(self._reasoning)

    @property
    def carried_ids(self) -> tuple[int, ...] | None:
        """All ids that were generated, where the engine reported them and its own count agrees; else None."""
        told = count(self.last_usage, "completion_tokens")
        known = self.prompt_ids and self._ids and not self._lost_ids
        return tuple(self._ids) if known and told == len(self._ids) else None

    @property
    def shown_ids(self) -> tuple[int, ...] | None:
        """The carried ids up to the last chunk that had text. None where that chunk had several: its text may end
        between two of them."""
        ids = self.carried_ids
        return ids[: self._ids_shown] if ids is not None and self._shown_at_once < 2 else None

    @property
    def ids_withheld(self) -> bool:
        """Whether the newest ids have not shown as text yet: half a character, or a control token."""
        return len(self._ids) > self._ids_shown

    @property
    def another_goes_on(self) -> bool:
        """Whether a choice that the engine sent unasked has not had its finish_reason."""
        return bool(self._open_choices)

    def copy(self) -> Leg:
        """As it is now; what either of the two takes in from here on leaves the other alone."""
        other = copy(self)
        other._reasoning, other._content = self._reasoning.copy(), self._content.copy()
        other._others = self._others.copy()
        other._ids, other.tool_ids = [*self._ids], [*self.tool_ids]
        other._open_choices, other._ended_choices = {*self._open_choices}, {*self._ended_choices}
        return other

    def take_identity(self, later: Leg) -> None:
        """What `later`, a copy that has read on, knows of the completion itself, not of its text."""
        self.events = later.events
        self.id, self.created = later.id, later.created
        self.model, self.fingerprint = later.model, later.fingerprint
        self.prompt_ids, self.prompt_tokens = later.prompt_ids, later.prompt_tokens

    def lose_choice(self) -> None:
        """One of the choices that the client asked for has failed, so the answer will never have its finish."""
        self._choice_lost = True

    def take_finish(self, choice: JSON) -> None:
        """Note the finish_reason of a choice, if the choice has one."""
        if (finish := finish_of(choice)) is None:
            return
        index = index_of(choice)
        if self._asked == 1:
            self.finish = self.finish or (finish if index == 0 else None)
            return
        if 0 <= index < self._asked:
            self._ended_choices.add(index)
        if len(self._ended_choices) == self._asked and not self._choice_lost:
            self.finish = self.finish or finish

    def absorb(self, chunk: JSON) -> bool:
        """Take in one chunk; True if it brought something new."""
        tokens_before = count(self.last_usage, "completion_tokens") or 0
        self._identity(chunk)
        self._brings_text = self._brings_reasoning = False
        for choice in choices(chunk):
            self._choice(choice)
        if self._brings_text:  # an engine sends at least one token in each such event
            self.text_events += 1
            self._uncounted += 1
            self.reasoning_events += self._brings_reasoning
        usage = usage_of(chunk)
        if usage is not None:
            self.last_usage, self.usage_current, self._uncounted = usage, True, 0
            self.prompt_tokens = count(usage, "prompt_tokens") or self.prompt_tokens
        return brings_something_new(chunk, tokens_before)

    @property
    def least_tokens(self) -> int:
        """What the text has cost at least: the engine's newest count, and one token for each event with text since."""
        counted = count(self.last_usage, "completion_tokens") or 0
        return max(counted + self._uncounted, self.text_events)

    @property
    def others(self) -> str:
        """The text of all choices but choice 0."""
        return str(self._others)

    def _identity(self, chunk: JSON) -> None:
        self.id = self.id or _plain(chunk.get("id"))
        self.created = self.created or _plain(chunk.get("created"))
        self.model = self.model or _plain(chunk.get("model"))
        self.fingerprint = self.fingerprint or _plain(chunk.get("system_fingerprint"))
        self.prompt_ids = self.prompt_ids or ids_in(chunk.get("prompt_token_ids"))

    def _choice(self, choice: JSON) -> None:
        if choice.get("finish_reason"):
            self.take_finish(choice)
        if (index := index_of(choice)) != 0:
            self.other_choices = True
            self._other_choice(index, over=finish_of(choice) is not None)
            self._other_text(delta_of(choice))
            return
        delta = delta_of(choice)
        self.role_seen = self.role_seen or bool(delta.get("role"))
        ids = ids_in(choice.get("token_ids"))
        self._take_ids(ids)
        if has_tool_call(delta):
            self.tool_call_seen = True
            self.tool_ids += tool_ids_in(delta)
        self._text(delta)
        if any(delta.values()):
            self._shown_at_once = len(ids)
            self._ids_shown = len(self._ids)

    def _other_choice(self, index: int, *, over: bool) -> None:
        if over:
            self._open_choices.discard(index)
        elif len(self._open_choices) < MOST_CHOICES:
            self._open_choices.add(index)

    def _other_text(self, delta: JSON) -> None:
        """Only for the count of tokens: it is part of no partial."""
        reasoning = reasoning_of(delta)
        text = reasoning + text_of(delta.get("content"))
        if not text:
            return
        self._note_text(reasoning)
        self._chars += len(text)
        if self._chars <= self._limit:
            self._others.add(text)

    def _take_ids(self, ids: tuple[int, ...]) -> None:
        self._lost_ids = self._lost_ids or (len(self._ids) + len(ids)) * ID_BYTES > self._limit
        if not self._lost_ids:
            self._ids += ids

    def _text(self, delta: JSON) -> None:
        reasoning, content = reasoning_of(delta), text_of(delta.get("content"))
        self.unreadable = self.unreadable or isinstance(delta.get("content"), list | dict)
        if not self.reasoning_names or (reasoning and not self._reasoning):
            self.reasoning_names = _names(delta) or self.reasoning_names
        if not (reasoning or content):
            return
        self._note_text(reasoning)
        self._chars += len(reasoning) + len(content)
        self.too_large = self._chars > self._limit
        if self.too_large:
            return
        if reasoning:
            self._reasoning.add(reasoning)
        if content:
            self._content.add(content)

    def _note_text(self, reasoning: str) -> None:
        self.usage_current, self._brings_text = False, True
        self._brings_reasoning = self._brings_reasoning or bool(reasoning)


def _names(delta: JSON) -> tuple[str, ...]:
    """The reasoning fields of a delta: those with text if there are any."""
    present = tuple(name for name in REASONING_NAMES if name in delta)
    return tuple(name for name in present if delta[name]) or present


def _plain(value: Any) -> Any:
    """Text and numbers; nothing else identifies a completion."""
    return value if isinstance(value, str | int | float) else None
