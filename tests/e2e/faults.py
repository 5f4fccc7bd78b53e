"""The ways in which a leg dies before its finish, each as the steps that end a reply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.harness.shapes import Sglang, Vllm
from tests.harness.upstream import (
    DONE,
    Cut,
    Gate,
    HalfClose,
    HoldOpen,
    Pause,
    Reply,
    Reset,
    Send,
    Step,
    event,
)

ENGINE_DIED = {
    "message": "EngineCore encountered an issue. See stack trace (above) for the root cause.",
    "type": "InternalServerError",
    "param": None,
    "code": 500,
}
RUNNING_TIMEOUT = {
    "object": "error",
    "message": "Request running timeout reached.",
    "type": "SERVICE_UNAVAILABLE",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """`end` makes the steps; `failures` are the names that the audit may give it."""

    name: str
    failures: frozenset[str]
    end: Callable[[Vllm | Sglang], list[Step]]
    framing: str = "chunked"
    stalls: bool = False

    def __str__(self) -> str:
        return self.name

    def leg(self, engine: Vllm | Sglang, steps: list[Send], gate: Gate | None = None) -> Reply:
        """A leg that says `steps`, waits for the gate, and dies. A break must not overtake what was said."""
        waits: list[Step] = [Pause(gate)] if gate else []
        return Reply([*steps, *waits, *self.end(engine)], framing=self.framing, length=10**6)  # type: ignore[arg-type]


def _fault(
    name: str, failure: str, end: Callable[[Vllm | Sglang], list[Step]], framing: str = "chunked"
) -> Fault:
    return Fault(name, frozenset(failure.split("|")), end, framing)


STALL = Fault("stall", frozenset({"idle_timeout"}), lambda e: [HoldOpen()], stalls=True)
CUT = _fault("cut", "disconnect", lambda e: [Cut()])
EOF = _fault("eof", "eof", lambda e: [])
ERROR_EVENT = _fault("error-object", "error_event", lambda e: [event({"error": ENGINE_DIED}), DONE])
ABORT = _fault("abort", "aborted", lambda e: [e.finish("abort"), e.usage(21, 41, 20), DONE])

FAULTS = [
    STALL,
    CUT,
    EOF,
    ERROR_EVENT,
    ABORT,
    Fault(
        "stall-with-pings",
        frozenset({"idle_timeout"}),
        lambda e: [step for _ in range(200) for step in (Send(b": ping\n\n"), Pause(0.05))],
        stalls=True,
    ),
    Fault(
        "stall-with-empty-deltas",
        frozenset({"idle_timeout"}),
        lambda e: [step for _ in range(200) for step in (e.delta({"content": ""}), e.delta({}), Pause(0.05))],
        stalls=True,
    ),
    _fault("cut-inside-an-event", "disconnect", lambda e: [Send(e.content("never seen").data[:-40]), Cut()]),
    _fault("cut-inside-a-character", "disconnect", lambda e: [Send(b'data: {"x": "\xf0\x9f'), Cut()]),
    _fault("reset", "disconnect", lambda e: [Reset()]),
    _fault("half-close", "disconnect", lambda e: [HalfClose(), HoldOpen()]),
    _fault("short-of-its-length", "disconnect", lambda e: [Cut()], "length"),
    _fault("end-of-connection", "eof|disconnect", lambda e: [], "close"),
    _fault(
        "eof-inside-an-event", "eof|disconnect|malformed", lambda e: [Send(e.content("unseen").data[:-40])]
    ),
    _fault("done-without-finish", "eof", lambda e: [DONE]),
    _fault("finish-of-empty-text", "eof", lambda e: [e.finish(""), DONE]),
    _fault("finish-of-null-text", "eof", lambda e: [e.finish("null"), DONE]),
    _fault("event-error", "error_event", lambda e: [Send(b'event: error\ndata: {"message": "x"}\n\n')]),
    _fault(
        "object-error",
        "error_event",
        lambda e: [event({"object": "error", "message": "x", "code": 500}), DONE],
    ),
    _fault(
        "running-timeout",
        "error_event",
        lambda e: [
            event({"error": {**RUNNING_TIMEOUT, "param": None, "code": 503}}),
            e.usage(21, 384, 21),
            DONE,
        ],
    ),
    _fault(
        "retryable-4xx", "error_event", lambda e: [event({"error": {"message": "slow", "code": 429}}), DONE]
    ),
    _fault("finish-error", "aborted", lambda e: [e.finish("error"), DONE]),
    _fault("finish-network", "aborted", lambda e: [e.finish("network_error"), e.usage(21, 41, 20), DONE]),
    _fault("finish-no-resource", "aborted", lambda e: [e.finish("insufficient_system_resource"), DONE]),
    _fault("malformed", "malformed", lambda e: [Send(b'data: {"choices":[{"delta":{"content":"he\n\n')]),
    _fault(
        "malformed-html", "malformed", lambda e: [Send(b"data: <html>502 Bad Gateway</html>\n\n"), HoldOpen()]
    ),
]
