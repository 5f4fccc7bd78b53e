"""Events and a fault become what the server does with its socket, step by step. No socket in here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from continuation.testbed.simulator.engine import Answer, Changes, SimulatedEvent
from continuation.testbed.simulator.faults import Fault
from continuation.testbed.simulator.shapes import DONE


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """Status 200 and headers; length is the Content-Length, None for chunked."""

    length: int | None = None


@dataclass(frozen=True, slots=True)
class SendEvent:
    """One event. paced: it took the model a token's time."""

    data: bytes
    paced: bool = False


@dataclass(frozen=True, slots=True)
class SendPart:
    """The first `count` bytes of an event whose whole size is announced."""

    data: bytes
    count: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Silence; None: until the client leaves. With a comment each `every` seconds, where given."""

    seconds: float | None
    every: float | None = None


@dataclass(frozen=True, slots=True)
class EndBody:
    """The clean end: the closing chunk; the connection can be used again."""


@dataclass(frozen=True, slots=True)
class Disconnect:
    """FIN, nothing more is read."""


@dataclass(frozen=True, slots=True)
class HalfClose:
    """FIN, then wait for the client to leave."""


@dataclass(frozen=True, slots=True)
class Reset:
    """RST."""


Action = AnswerHead | SendEvent | SendPart | Wait | EndBody | Disconnect | HalfClose | Reset
_ENDING = ("finish", "usage", "done")
_PACED = ("reasoning", "content", "tool", "idle", "finish")


def changes_for(fault: Fault | None) -> Changes:
    """What a fault changes about the answer itself, before it is sent."""
    match fault:
        case Fault(name="no_usage"):
            return Changes(without_usage=True)
        case Fault(name="restart", depart=depart):
            return Changes(start_over=True, depart_after=depart)
        case _:
            return Changes()


def script(answer: Answer, fault: Fault | None) -> Iterator[Action]:
    match fault:
        case Fault(name="truncated", form="length"):
            yield from _truncated(answer, fault)
        case Fault(name="empty"):
            yield from (AnswerHead(), EndBody())
        case Fault(name="slow_first_token", before="headers"):
            yield Wait(fault.delay)
            yield from _told(answer.events())
        case Fault(name="slow_first_token"):
            yield from (AnswerHead(), Wait(fault.delay))
            yield from _rest(answer.events())
        case Fault(name="truncated"):
            yield from _told(event for event in answer.events() if event.kind != "done")
        case Fault(name="ending_lost"):
            kept = (event for event in answer.events() if event.kind not in ("usage", "done"))
            yield from _told(chain(kept, [SimulatedEvent("cut")]))
        case Fault(name="hold_open"):
            yield from _told(answer.events(), last=Wait(None))
        case Fault() if fault.kind.mid_stream:
            yield AnswerHead()
            yield from _broken(answer, fault)
        case _:
            yield from _told(answer.events())


def _told(events: Iterator[SimulatedEvent], last: Action | None = None) -> Iterator[Action]:
    yield AnswerHead()
    yield from _rest(events, last)


def _rest(events: Iterator[SimulatedEvent], last: Action | None = None) -> Iterator[Action]:
    for event in events:
        if event.kind == "cut":
            yield Disconnect()
            return
        yield _send(event)
    yield last or EndBody()


def _send(event: SimulatedEvent) -> SendEvent:
    return SendEvent(event.data.encode("utf-8", "replace"), event.kind in _PACED)


def _struck(fault: Fault, sent: Counter[str], coming: SimulatedEvent) -> bool:
    """Whether the fault's moment is now, before `coming`."""
    count = sent[fault.channel] if fault.channel else sent.total()
    return count >= fault.after or coming.kind in _ENDING


def _broken(answer: Answer, fault: Fault) -> Iterator[Action]:
    events, sent = answer.events(), Counter[str]()
    for event in events:
        if event.kind == "cut":
            yield Disconnect()
            return
        if _struck(fault, sent, event):
            yield from _strike(answer, fault, event)
            if fault.name not in ("stall", "stall_with_pings", "malformed"):
                return
            yield from _rest(chain([event], events))
            return
        yield _send(event)
        sent[event.kind] += 1


def _strike(answer: Answer, fault: Fault, coming: SimulatedEvent) -> Iterator[Action]:
    data = coming.data.encode("utf-8", "replace")
    match fault.name:
        case "reset":
            yield Reset()
        case "disconnect":
            yield Disconnect()
        case "half_closed":
            yield HalfClose()
        case "eof":
            yield EndBody()
        case "cut_inside_event":
            yield from (SendPart(data, len(data) // 2), Disconnect())
        case "cut_inside_character":
            yield from (_inside_character(data), Disconnect())
        case "stall":
            yield Wait(fault.lasts)
        case "stall_with_pings":
            yield Wait(fault.lasts, every=max(fault.every, 0.01))
        case "malformed":
            broken = (
                coming.data.partition('"finish_reason"')[0] if coming.kind in _PACED else 'data: {"choices":['
            )
            yield SendEvent(broken.encode("utf-8", "replace") + b"\n\n")
        case _:
            yield from _in_band(answer, fault)


def _in_band(answer: Answer, fault: Fault) -> Iterator[Action]:
    """Failures that the engine reports in the stream, which then ends cleanly."""
    usage = answer.request.include_usage
    match fault.name:
        case "error_event" | "client_error_event":
            yield _block(answer.shapes.error(fault.code))
            usage = usage and answer.shapes.usage_after_error
        case "error_event_named":
            yield _block(
                'event: error\ndata: {"message": "The engine has failed.", "type": "InternalServerError"}\n\n'
            )
            usage = False
        case "aborted":
            yield _block(answer.shapes.aborted(answer.counts))
        case "done_without_finish":
            usage = False
        case name:
            raise AssertionError(f"fault {name} has no script")
    if usage:
        yield _block(answer.shapes.usage(answer.counts))
    yield from (_block(DONE), EndBody())


def _block(text: str) -> SendEvent:
    return SendEvent(text.encode("utf-8", "replace"))


def _inside_character(data: bytes) -> SendPart:
    """Up to one byte of the first multi-byte character; where there is none, one is begun at the text's start."""
    for position, byte in enumerate(data):
        if byte >= 0xC0:
            return SendPart(data, position + 1)
    at = data.find(b'":"', data.find(b'"delta"'))
    at = at + 3 if at >= 0 else len(data) // 2
    return SendPart(data[:at] + "渐".encode() + data[at:], at + 1)


def _truncated(answer: Answer, fault: Fault) -> Iterator[Action]:
    """Content-Length of the whole answer, and not all of it."""
    events = list(answer.events())
    yield AnswerHead(sum(len(event.data.encode("utf-8", "replace")) for event in events))
    sent = Counter[str]()
    for event in events:
        if event.kind == "cut" or _struck(fault, sent, event):
            break
        yield _send(event)
        sent[event.kind] += 1
    yield Disconnect()
