"""The bill: what the answer has cost, and the usage that the client gets."""

from __future__ import annotations

from dataclasses import replace

from continuation.plan import Guarded
from continuation.shapes.chat.chunks import count
from continuation.shapes.chat.usage import Conversation, Delivered, Estimator, delivered, joined_usage
from continuation.shapes.encoding import JSON
from continuation.splice.leg import Leg
from continuation.splice.second_leg import SecondLeg
from strategies.types import Partial


class Bill:
    """before: tokens of the partial, once leg 1 has failed."""

    def __init__(self, plan: Guarded, estimator: Estimator) -> None:
        self._plan = plan
        self._estimator = estimator
        self._conversation: Conversation | None = None
        self.before = Delivered(0, 0)

    @property
    def conversation(self) -> Conversation:
        """What the client's request holds; the body is parsed at the first use."""
        if self._conversation is None:
            self._conversation = self._plan.read_conversation(self._estimator)
        return self._conversation

    @property
    def remaining(self) -> int | None:
        """Tokens that the request's own limit leaves for leg 2; None without a limit."""
        return self._plan.remaining(self.before.completion)

    def weigh(self, leg: Leg, partial: Partial) -> None:
        """Note what the partial, the text of `leg`, has cost."""
        before = self.cost(leg, partial)
        prompt = before.prompt if before.prompt is not None else leg.prompt_tokens
        self.before = replace(before, prompt=prompt)

    def take_count(self, counted: Delivered) -> None:
        """The route of leg 2 has counted the partial's tokens."""
        before = self.before
        if not before.exact:
            self.before = counted
            return
        prompt = counted.prompt if before.prompt is None else before.prompt
        self.before = replace(before, completion=before.completion - counted.left_out, prompt=prompt)

    def cost(self, leg: Leg, partial: Partial) -> Delivered:
        """What `partial`, the text of `leg`, has cost."""
        return delivered(
            leg.last_usage,
            leg.usage_current,
            partial.reasoning,
            partial.content,
            self._estimator,
            least=leg.least_tokens,
            reasoning_events=leg.reasoning_events,
            others=leg.others,
        )

    def total(self, leg1: Leg, second: SecondLeg | None) -> JSON:
        """The usage of the whole answer."""
        return self.joined(leg1, second, self._counts_of(second))

    def joined(self, leg1: Leg, second: SecondLeg | None, counts: JSON | None) -> JSON:
        """The usage of leg 1 and of what leg 2 has written so far. counts: a usage of leg 2."""
        before = self.before
        if second is not None and second.seam.restarted:  # leg 2 wrote, and counted, the partial itself
            before = Delivered(0, 0, prompt=before.prompt)
        reasons = second is not None and second.leg.has_reasoning
        return joined_usage(before, counts, self._prompt_tokens(counts), reasons, leg1.last_usage)

    def _counts_of(self, second: SecondLeg | None) -> JSON | None:
        """What leg 2 reported, or an estimate of what it wrote."""
        if second is None:
            return None
        if second.usage is not None:
            return second.usage
        wrote = self.cost(second.leg, second.leg.partial)
        counts: JSON = {"completion_tokens": wrote.completion}
        thought = {"completion_tokens_details": {"reasoning_tokens": wrote.reasoning}}
        return counts | (thought if wrote.reasoning else {})

    def _prompt_tokens(self, counts: JSON | None) -> int:
        """The client's prompt: that of leg 2, which holds the partial too, less what the partial has cost."""
        counted = count(counts, "prompt_tokens")
        return max(0, counted - self.before.completion) if counted else self.conversation.prompt_tokens
