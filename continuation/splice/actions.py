"""What the machine asks the relay to do, in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from continuation.plan import Guarded
from continuation.shapes.chat.asking import asking_to_continue
from continuation.shapes.encoding import JSON, parse_exact
from strategies.types import CompiledStrategy, Partial


@dataclass(frozen=True, slots=True)
class Send:
    """Bytes for the client: whole events, but in phase UNFRAMED."""

    data: bytes


@dataclass(frozen=True, slots=True)
class OpenLeg:
    """Send `body` to CONTINUATION_URL, then report leg2_opened, leg2_refused or leg2_unreachable.

    spent: tokens of the request's budget.
    """

    plan: Guarded
    partial: Partial
    spent: int

    @property
    def size(self) -> int:
        """Of what the body is built from, in bytes or characters; building it takes time accordingly."""
        return len(self.plan.body) + len(self.partial.reasoning) + len(self.partial.content)

    @property
    def body(self) -> bytes:
        return asking_to_continue(self.plan.body, self.plan.strategy, self.partial, self.spent)


@dataclass(frozen=True, slots=True)
class OpenTokens:
    """Continue on the token route, then report as for OpenLeg, or scale_out_missing.

    carried_ids: all that leg 1 generated after carried_prompt; None where the text is to be tokenized.
    shown_ids: of carried_ids those up to the end of the text; None where that is not between two of them.
    tool_ids: the ids of the tool calls that the client has seen begin, in order.
    """

    plan: Guarded
    strategy: CompiledStrategy
    partial: Partial
    carried_prompt: tuple[int, ...]
    carried_ids: tuple[int, ...] | None
    tool_ids: tuple[str, ...]
    stops: tuple[str, ...]
    stop_shown: bool
    shown_ids: tuple[int, ...] | None = None

    @property
    def request(self) -> JSON:
        """The client's, parsed anew; `size` is that of its bytes."""
        request: JSON = parse_exact(self.plan.body)
        return request

    @property
    def size(self) -> int:
        return len(self.plan.body)


@dataclass(frozen=True, slots=True)
class CloseLeg:
    """Close the connection of the current leg; nothing more of it is wanted."""


Action = Send | OpenLeg | OpenTokens | CloseLeg


def sends(events: Iterable[bytes]) -> list[Action]:
    """One Send of all of them; none where there is nothing to send."""
    data = b"".join(events)
    return [Send(data)] if data else []
