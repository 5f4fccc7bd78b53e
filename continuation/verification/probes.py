"""What an engine and its chat template can be asked before any answer is generated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from continuation.shapes.chat.asking import asking_for_ids
from continuation.shapes.chat.chunks import count, text_of
from continuation.shapes.encoding import JSON, dump
from continuation.token_route.route import DERENDER, GENERATE, RENDER
from continuation.verification.door import CHAT_PATH, EngineDoor, detokenized
from continuation.verification.knowledge import Knowledge, Probe
from continuation.verification.order import Order, Trouble, question
from continuation.verification.variants import GENERIC_TOKENS
from strategies.engines import Engine

MISSING = (403, 404, 405, 501)


class Probing:
    """Probes of one engine, in the order in which they build on each other."""

    def __init__(self, door: EngineDoor, order: Order) -> None:
        self._door = door
        self._order = order
        self._model = order.model
        self._probes: list[Probe] = []

    async def found(self) -> tuple[Knowledge, tuple[Probe, ...]]:
        known = await self._engine()
        if known.engine.traits.token_route is not False:
            known = replace(known, scale_out=await self._scale_out())
        known = replace(known, ids=await self._ids())
        known = await self._continued(known)
        known = await self._thinking(known)
        return known, tuple(self._probes)

    def _note(self, name: str, value: Any, says: str) -> None:
        self._probes.append(Probe(name, value, says))

    async def _engine(self) -> Knowledge:
        models = await self._door.asked("/v1/models")
        if models.status != 200:
            what = models.message.removeprefix("status 0: ")
            raise Trouble(
                f"no engine answers at {self._order.base_url}/v1/models ({what}); --base-url or CONTINUATION_URL "
                "must be the root of an engine, such as http://127.0.0.1:8000"
            )
        served = [row for row in models.json.get("data") or [] if isinstance(row, dict)]
        names = [text_of(row.get("id")) for row in served]
        self._model = self._model or next(iter(names), "")
        if not self._model or (names and self._model not in names):
            raise Trouble(
                f"the engine serves no model {self._model!r}; it serves {', '.join(names) or 'none'}"
            )
        mine: JSON = next((row for row in served if row.get("id") == self._model), {})
        engine, version = await self._engine_and_version(text_of(mine.get("owned_by")))
        length = count(mine, "max_model_len")
        return Knowledge(engine, version, self._model, length)

    async def _engine_and_version(self, owner: str) -> tuple[Engine, str]:
        versions: dict[Engine, str] = {}
        # An engine that answers at several of these is taken for the last one of the table.
        for one in reversed(Engine.real()):
            answer = await self._door.asked(one.traits.version_path)
            versions[one] = text_of(answer.json.get("version")) if answer.status == 200 else ""
        by_owner = (one for one in versions if owner == one)
        by_version = (one for one in versions if versions[one])
        found = next(by_owner, None) or next(by_version, Engine.ANY)
        asked = self._order.engine
        engine = Engine(asked) if asked else found
        where = versions.get(engine, "")
        if engine is Engine.ANY:
            self._note("engine", None, "Which engine this is could not be found out; name it with --engine.")
        elif found is not Engine.ANY and found is not engine:
            self._note("engine", f"{engine}", f"It was said to be {engine}, but it answers like {found}.")
        else:
            self._note("engine", f"{engine} {where}".strip(), f"The engine is {engine} {where}".strip() + ".")
        return engine, where

    async def _scale_out(self) -> bool | None:
        heard = await self._door.asked(RENDER, {"model": self._model, **question("Hello.")})
        others = [await self._door.asked(path, {}) for path in (GENERATE, DERENDER)]
        if any(answer.status in MISSING for answer in (heard, *others)):
            self._note("scale-out", False, "The scale-out endpoints are missing: no token route here.")
            return False
        if heard.status != 200:
            self._note(
                "scale-out", None, f"Whether there are scale-out endpoints is not known: {heard.message}."
            )
            return None
        self._note("scale-out", True, "The scale-out endpoints are there: the token route can be taken.")
        return True

    async def _ids(self) -> bool | None:
        request = {"model": self._model, "max_tokens": 4, "temperature": 0, "stream": True}
        heard = await self._door.asked_raw(CHAT_PATH, asking_for_ids(dump({**request, **question("Hello.")})))
        if heard.status != 200:
            known = False if heard.status in (400, 422) else None
            self._note("token ids", known, f"Token ids are not reported while streaming ({heard.message}).")
            return known
        found = b'"token_ids":[' in heard.data and b'"prompt_token_ids":[' in heard.data
        says = "are" if found else "are not"
        self._note("token ids", found, f"Token ids {says} reported while streaming.")
        return found

    async def _continued(self, known: Knowledge) -> Knowledge:
        if known.engine.traits.appends_raw:
            self._note(
                "continue_final_message",
                True,
                f"{known.engine.traits.label} appends the last message raw to the generation prompt: "
                "no template rewrites or trims it.",
            )
            return replace(known, honours_flag=True, trims=False)
        ids, text = await self._final("ok")
        if ids is None:
            self._note(
                "continue_final_message", None, f"Whether the renderer honours it is not known: {text}."
            )
            return known
        ends = await self._ids_of("ok")
        honours = text.endswith("ok") if text else bool(ends) and ids[-len(ends) :] == ends
        trims = (await self._final("ok\n\n"))[0] == ids if honours else None
        self._note(
            "continue_final_message",
            honours,
            "The renderer honours continue_final_message."
            if honours
            else "The renderer ignores continue_final_message: it closes the turn, whatever the request says.",
        )
        if trims is not None:
            says = "trims white space from the end of" if trims else "keeps"
            self._note("template", trims, f"The chat template {says} the prefix.")
        return replace(known, honours_flag=honours, trims=trims)

    async def _final(self, text: str) -> tuple[list[int] | None, str]:
        """The ids and the text of a prompt that ends with an assistant's `text`; (None, why) without them."""
        messages = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": text}]
        flags = {"add_generation_prompt": False, "continue_final_message": True}
        heard = await self._door.asked("/tokenize", {"model": self._model, "messages": messages, **flags})
        ids = heard.json.get("tokens")
        if heard.status != 200 or not isinstance(ids, list):
            return None, f"/tokenize of messages answered with {heard.message}"
        return ids, await self._text_of(ids)

    async def _thinking(self, known: Knowledge) -> Knowledge:
        plain = await self._generation_prompt({})
        if plain is None:
            self._note("thinking", None, "Whether the generation prompt opens the thinking is not known: "
                       "/tokenize or /detokenize did not answer.")  # fmt: skip
            return known
        switch, on, off = await self._switch(plain)
        thinking = plain if on is None else on
        opening, token = self._opening_of(thinking)
        if opening:
            self._note(
                "generation prompt", opening, f"The generation prompt opens the thinking with {opening!r}."
            )
        else:
            self._note("generation prompt", "", "The generation prompt does not open the thinking.")
        if switch:
            default = "on" if thinking == plain else "off"
            says = f"The key {switch!r} of chat_template_kwargs switches the thinking; it is {default} by default."
            self._note("thinking key", switch, says)
        else:
            self._note(
                "thinking key", "", "No known key of chat_template_kwargs changes the generation prompt."
            )
        known = replace(known, opening=opening, thinking_switch=switch, on_by_default=thinking == plain)
        closing = _closing_in(off, token) if off and token else ""
        if opening and closing:
            known = replace(known, tokens=(opening, closing, self._order.strategy.content_open))
        return known

    async def _switch(self, plain: str) -> tuple[str, str | None, str | None]:
        """The key that changes the generation prompt, and the prompts with the thinking on and off."""
        for key in dict.fromkeys([self._order.strategy.thinking_key, "enable_thinking", "thinking"]):
            if not key:
                continue
            off = await self._generation_prompt({key: False})
            on = await self._generation_prompt({key: True})
            if off is not None and on is not None and off != on:
                return key, on, off
        return "", None, None

    def _opening_of(self, prompt: str) -> tuple[str, str]:
        """(OPEN as the prompt ends with it, its bare token); ("", the token) where it does not."""
        row = self._order.strategy
        known = [row.open.strip(), GENERIC_TOKENS[0], "<|open|>think<|sep|>"]
        for token in filter(None, dict.fromkeys(known)):
            at = prompt.rfind(token)
            if at >= 0 and not prompt[at + len(token) :].strip():
                return prompt[at:], token
        return "", known[0]

    async def _generation_prompt(self, switches: JSON) -> str | None:
        asked = {"model": self._model, **question("Hello."), "add_generation_prompt": True}
        heard = await self._door.asked("/tokenize", {**asked, "chat_template_kwargs": switches})
        ids = heard.json.get("tokens")
        return (await self._text_of(ids) or None) if heard.status == 200 and isinstance(ids, list) else None

    async def _ids_of(self, text: str) -> list[int]:
        asked = {"model": self._model, "prompt": text, "add_special_tokens": False}
        return list((await self._door.asked("/tokenize", asked)).json.get("tokens") or [])

    async def _text_of(self, ids: Sequence[int]) -> str:
        return await detokenized(self._door, self._model, ids)


def _closing_in(off: str, token: str) -> str:
    """CLOSE, from the empty thinking that a prompt without thinking ends with."""
    at = off.rfind(token)
    rest = off[at + len(token) :].strip() if at >= 0 else ""
    return rest if len(rest) <= 64 else ""
