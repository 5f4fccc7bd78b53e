"""Seed and number of a stream -> what happens to it, and where. The same seed gives the same plans, whatever the load.

Kinds come in rounds: each round has every chosen kind once, in an order of its own, so that short drills cover all.
Places are counted in events of the uninterrupted answer, which is asked for before anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from random import Random
from typing import Any

from continuation.testbed.drill.reading import BOM, Told

BREAKS = (
    *("reset", "disconnect", "half_closed", "broken_framing", "eof", "done_without_finish"),
    *("cut_inside_event", "cut_inside_character", "stall", "stall_with_pings"),
    *("error_event", "aborted", "malformed"),
)
STALLS = ("stall", "stall_with_pings")
# Characters of the partial, or all of it, after which a restarted answer is known for one.
TELLING_CHARS = 40
PADDING_BYTES = 40_000
# What the error events say that are put into an answer.
ERROR = "The drill has broken the engine."
_EOLS = {"lf": b"\n", "crlf": b"\r\n", "cr": b"\r"}


@dataclass(frozen=True, slots=True)
class Framing:
    """How an answer's events are written. pieces: bytes of the largest write, 0 for whole events.

    comments is the probability of a comment before an event, padding the size of one before each.
    """

    eol: str = "lf"
    space: bool = True
    bom: bool = False
    comments: float = 0.0
    pieces: int = 0
    padding: int = 0

    def dress(self, event: bytes, rng: Random, *, first: bool) -> bytes:
        """An engine's event, which ends in a blank line, as it is written."""
        if self == PLAIN:
            return event
        text = event if self.space else event.replace(b"data: ", b"data:", 1)
        comment = b"note" if rng.random() < self.comments else b"-" * self.padding
        text = (b": " + comment + b"\n\n" if comment else b"") + text
        return (BOM if self.bom and first else b"") + text.replace(b"\n", _EOLS[self.eol])

    def split(self, data: bytes, rng: Random) -> list[bytes]:
        if not self.pieces:
            return [data]
        found, at = [], 0
        while at < len(data):
            size = rng.randint(1, self.pieces)
            found.append(data[at : at + size])
            at += size
        return found


PLAIN = Framing()


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault of one leg. after: events of the leg before it. how: one of the fault's ways.

    share, from 0 to 1, is a place inside something: an event that is cut, an answer that departs.
    """

    name: str
    after: int = 0
    how: str = ""
    code: int = 0
    share: float = 0.5


@dataclass(frozen=True, slots=True)
class Return:
    """The client's connection breaks after some events of its own, and `pause` seconds later it comes back.

    parting: close or reset. way: get, post, or query (where a browser's EventSource has token and position).
    """

    after: int
    parting: str
    way: str
    pause: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What happens to one stream; usage is what the client asks for (see questions.body_of)."""

    number: int
    kind: str
    question: int
    usage: str = "asked"
    leg1: Strike | None = None
    leg2: Strike | None = None
    framing: Framing = PLAIN
    framing2: Framing = PLAIN
    keeps_connection: bool = True
    returns: tuple[Return, ...] = ()

    @property
    def place(self) -> str:
        """In words, for a report of what went wrong."""
        told = [f"question {self.question}, usage {self.usage}"]
        for name, strike in (("leg 1", self.leg1), ("leg 2", self.leg2)):
            if strike:
                how = f" ({strike.how})" if strike.how else ""
                told.append(f"{name}: {strike.name}{how} after {strike.after} events")
        told += [
            f"client: {back.parting} after {back.after} events, back by {back.way}" for back in self.returns
        ]
        return "; ".join(told)


@dataclass(frozen=True, slots=True)
class Reference:
    """The uninterrupted answer to a question. chars[n] is how much text its first n events hold."""

    question: int
    told: Told
    chars: tuple[int, ...]

    @classmethod
    def of(cls, question: int, told: Told, texts: Sequence[int]) -> Reference:
        return cls(question, told, (0, *accumulate(texts)))

    @property
    def finish_at(self) -> int:
        return self.told.kinds.index("finish")

    @property
    def text_ends_at(self) -> int:
        """Events before the first of a tool call, or before the finish."""
        kinds = self.told.kinds
        return kinds.index("tool") if "tool" in kinds else self.finish_at

    def after_chars(self, least: int) -> range:
        """Numbers of events after which the client has at least that much text, and no tool call."""
        found = [n for n in range(self.text_ends_at + 1) if self.chars[n] >= least]
        return range(found[0], found[-1] + 1) if found else range(0)


Parts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Planner:
    seed: int
    kinds: tuple[str, ...]
    references: tuple[Reference, ...]
    _rounds: dict[int, list[str]] = field(default_factory=dict)

    def plan(self, number: int) -> Plan:
        """The plan of stream `number`, from 0 on."""
        rng = Random(f"{self.seed}/{number}")
        kind = self._kind(number)
        reference = rng.choice(self._suitable(kind))
        usage = rng.choice(("none", "asked", "asked", "running"))
        framing, framing2 = _framing(rng), _framing(rng)
        parts = _PARTS.get(kind, _engine_fault)(kind, rng, reference)
        common: Parts = {"usage": usage, "framing": framing, "framing2": framing2}
        common["keeps_connection"] = rng.random() < 0.5
        return Plan(number, kind, reference.question, **(common | parts))

    def _kind(self, number: int) -> str:
        turn, place = divmod(number, len(self.kinds))
        if turn not in self._rounds:
            self._rounds.clear()  # numbers are asked for in order, or nearly so
            order = list(self.kinds)
            Random(f"{self.seed}/round {turn}").shuffle(order)
            self._rounds[turn] = order
        return self._rounds[turn][place]

    def _suitable(self, kind: str) -> tuple[Reference, ...]:
        least = _LEAST_CHARS.get(kind, 0)
        return tuple(one for one in self.references if not least or one.after_chars(least))


# What the client must have before leg 2 is struck.
_LEAST_CHARS: Mapping[str, int] = {
    "leg2_refused": 1,
    "leg2_unreachable": 1,
    "leg2_broken": 1,
    "leg2_empty": 1,
    "leg2_restarted": TELLING_CHARS,
    "leg2_departed": TELLING_CHARS + 20,
    "leg2_renamed": 1,
    "leg2_pause": 1,
    "client_leaves_leg2": 1,
}
HOWS: Mapping[str, tuple[str, ...]] = {
    "cut_inside_event": ("json", "json", "blank_line"),
    "error_event": ("openai", "flat", "named", "text", "retryable"),
    "client_error_event": ("openai", "flat"),
    "aborted": ("abort", "error", "insufficient_system_resource", "network_error"),
    "malformed": ("cut", "words", "bracket"),
    "ending_lost": ("reset", "disconnect", "eof", "no_done"),
    "pause": ("short",),
    "refused": ("400", "404", "408", "422", "429", "500", "502", "503"),
    "unreachable": ("reset", "close"),
}


def _framing(rng: Random) -> Framing:
    if rng.random() < 0.6:
        return PLAIN
    return Framing(
        eol=rng.choice(("lf", "crlf", "cr")),
        space=rng.random() < 0.7,
        bom=rng.random() < 0.3,
        comments=rng.choice((0.0, 0.3)),
        pieces=rng.choice((0, 0, 30, 150)),
    )


def _anywhere(rng: Random, reference: Reference) -> int:
    """Uniform, but the edges are visited more often."""
    edge = rng.random()
    if edge < 0.08:
        return rng.randint(0, 2)
    return reference.finish_at if edge > 0.92 else rng.randint(0, reference.finish_at)


def _strike(name: str, rng: Random, after: int) -> Strike:
    how = rng.choice(HOWS[name]) if name in HOWS else ""
    return Strike(name, after, how, share=rng.random())


def _engine_fault(kind: str, rng: Random, reference: Reference) -> Parts:
    return {"leg1": _strike(kind, rng, _anywhere(rng, reference))}


def _no_fault(kind: str, rng: Random, reference: Reference) -> Parts:
    return {}


def _continuation_fault(kind: str, rng: Random, reference: Reference) -> Parts:
    after = rng.choice(reference.after_chars(_LEAST_CHARS[kind]))
    leg1 = _strike(rng.choice(BREAKS), rng, after)
    # What lacks only its blank line counts as an event, and here it may be one of a tool call.
    if after == reference.text_ends_at and leg1.how == "blank_line":
        leg1 = replace(leg1, how="json")
    return {"leg1": leg1, "leg2": _LEG2[kind](rng)}


def _leg2_broken(rng: Random) -> Strike:
    name = rng.choice([one for one in BREAKS if one not in STALLS])
    return _strike(name, rng, rng.choice((0, 1, 2, rng.randint(0, 60))))


_LEG2: Mapping[str, Callable[[Random], Strike]] = {
    "leg2_refused": lambda rng: _strike("refused", rng, 0),
    "leg2_unreachable": lambda rng: _strike("unreachable", rng, 0),
    "leg2_broken": _leg2_broken,
    "leg2_empty": lambda rng: Strike("empty_stop"),
    "leg2_restarted": lambda rng: Strike("restart"),
    "leg2_departed": lambda rng: Strike("depart", share=rng.random()),
    "leg2_renamed": lambda rng: Strike("rename"),
    "leg2_pause": lambda rng: Strike("pause", rng.randint(0, 30), "long"),
    "client_leaves_leg2": lambda rng: Strike("hold", rng.randint(0, 30), rng.choice(("close", "reset"))),
}


def _late(kind: str, rng: Random, reference: Reference) -> Parts:
    return {"leg1": Strike("late")}


def _client_leaves(kind: str, rng: Random, reference: Reference) -> Parts:
    """Ways: before the headers; when the engine has fallen silent after some events; while events flow."""
    way = rng.choice(("headers", "silent", "silent", "flowing"))
    after = 0 if way == "headers" else rng.randint(0, max(0, reference.finish_at - 1))
    parting = rng.choice(("close", "reset"))
    return {"leg1": Strike("hold", after, f"{way} {parting}"), "keeps_connection": False}


def _client_slow(kind: str, rng: Random, reference: Reference) -> Parts:
    return {"framing": Framing(padding=PADDING_BYTES), "keeps_connection": False}


def _client_returns(kind: str, rng: Random, reference: Reference) -> Parts:
    """Its bytes less the numbers are the engine's, so these are written plainly, though in any pieces."""
    returns = []
    for _ in range(rng.randint(1, 3)):
        after = rng.choice((0, 1, rng.randint(0, 10), rng.randint(0, reference.finish_at)))
        way = rng.choice(("get", "post", "query"))
        returns.append(Return(after, rng.choice(("close", "reset")), way, rng.choice((0.0, 0.0, 0.3))))
    parts: Parts = {"framing": _in_pieces(rng), "framing2": _in_pieces(rng), "keeps_connection": False}
    if kind == "client_returns_leg2":
        parts["leg1"] = _strike(rng.choice(BREAKS), rng, _anywhere(rng, reference))
    return parts | {"returns": tuple(returns)}


def _in_pieces(rng: Random) -> Framing:
    return Framing(pieces=rng.choice((0, 0, 30, 150)))


def _client_opts_out(kind: str, rng: Random, reference: Reference) -> Parts:
    return {"leg1": _strike(rng.choice(BREAKS), rng, _anywhere(rng, reference))}


PASSING = ("not_stream", "choices", "structured", "guided", "continues", "models", "query")
GARBAGE = (
    *("not_json", "no_object", "deep", "wrong_types", "unknown_path", "method"),
    *("not_http", "half_head", "half_body"),
)


def _client_passes(kind: str, rng: Random, reference: Reference) -> Parts:
    return {"leg1": Strike("none", how=rng.choice(PASSING))}


def _client_garbage(kind: str, rng: Random, reference: Reference) -> Parts:
    return {"leg1": Strike("none", how=rng.choice(GARBAGE)), "keeps_connection": False}


_PARTS: Mapping[str, Callable[[str, Random, Reference], Parts]] = {
    "none": _no_fault,
    "late": _late,
    **dict.fromkeys(_LEAST_CHARS, _continuation_fault),
    "client_leaves": _client_leaves,
    "client_returns": _client_returns,
    "client_returns_leg2": _client_returns,
    "client_slow": _client_slow,
    "client_opts_out": _client_opts_out,
    "client_passes": _client_passes,
    "client_garbage": _client_garbage,
}
