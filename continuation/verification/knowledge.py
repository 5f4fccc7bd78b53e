"""What probes have found out about an engine and its chat template."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from strategies.engines import Engine


@dataclass(frozen=True, slots=True)
class Probe:
    """One question to the engine. value is None if the answer is not known."""

    name: str
    value: Any
    says: str


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What the probes found out about an engine and a model. None: not known.

    opening          what the generation prompt ends with when it opens the thinking; "" if it does not
    thinking_switch  the key of chat_template_kwargs that changes the prompt; "" if none does
    on_by_default    whether the model thinks unless a request switches it off
    tokens           OPEN, CLOSE and CONTENT_OPEN as the engine itself writes them
    reasoning_end    the white space that every reasoning ends with; "" if they differ
    """

    engine: Engine = Engine.ANY
    version: str = ""
    model: str = ""
    max_model_len: int | None = None
    scale_out: bool | None = None
    ids: bool | None = None
    honours_flag: bool | None = None
    trims: bool | None = None
    opening: str | None = None
    thinking_switch: str | None = None
    on_by_default: bool = True
    tokens: tuple[str, str, str] | None = None
    reasoning_end: str | None = None
    repeats: bool | None = None
