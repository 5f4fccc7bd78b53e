"""The engines that the gateway knows: one entry each, with the traits that decide how an answer is continued there.

A new engine is a new member here. Choices in forms, settings and commands, and the order in which rows of several
engines are preferred, all follow from this table. What was measured stands in the documentation.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Self


@dataclass(frozen=True, slots=True)
class Traits:
    """Traits that one engine has for every model. None: not known, or different from case to case.

    label         the name that people read
    version_path  the endpoint whose JSON holds "version"; "" for none
    token_route   it can offer the endpoints of the token route, and reports token ids while it streams
    appends_raw   it appends the last assistant message raw to the generation prompt, so that no chat template
                  rewrites, trims or closes the prefix; False: the chat template renders that message
    """

    label: str
    version_path: str = ""
    token_route: bool | None = None
    appends_raw: bool | None = None


class Engine(StrEnum):
    """The engine that a strategy is for; ANY fits all. Listed in the order in which a guess does the least harm.

    vLLM stands before SGLang: SGLang ignores unknown fields of a message in vLLM's form, while vLLM may
    refuse a message in SGLang's form.
    """

    traits: Traits

    def __new__(cls, value: str, traits: Traits = Traits("")) -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.traits = traits
        return member

    ANY = "any", Traits("any")
    VLLM = "vllm", Traits("vLLM", version_path="/version", token_route=True, appends_raw=False)
    SGLANG = "sglang", Traits("SGLang", version_path="/server_info", token_route=False, appends_raw=True)

    @classmethod
    def real(cls) -> tuple[Engine, ...]:
        """The engines that a server can be: all but ANY."""
        return tuple(engine for engine in cls if engine is not cls.ANY)


def engine_choices() -> list[tuple[str, str]]:
    """(value, label) of every engine, for a form. A callable, so that a new engine needs no migration."""
    return [(engine.value, engine.traits.label) for engine in Engine]


def engines_with_token_route() -> tuple[Engine, ...]:
    """The engines that a row of the token route may be for."""
    return tuple(engine for engine in Engine if engine.traits.token_route is not False)
