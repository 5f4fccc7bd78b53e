"""Scenes that several files of these tests use."""

import codecs
import contextlib
import socket
from typing import Any

from tests.harness.gateway import Gateway
from tests.harness.shapes import VLLM, VLLM_LEG2, ended, started
from tests.harness.upstream import DONE, Cut, Reply, Request, Step, event, json_reply

WHOLE_LEG2 = Reply([*started(VLLM_LEG2, [], ["b"]), *ended(VLLM_LEG2)])


LEG1 = Reply([*started(VLLM, [], ["some "]), Cut()])


LEG2 = Reply([*started(VLLM_LEG2, [], ["text"]), *ended(VLLM_LEG2)])


SMALL = {"MAX_CONTINUATION_BODY_MB": "0.01"}


def raw(one: Gateway, request: bytes) -> bytes:
    """All that comes back until the gateway closes the connection."""
    received = b""
    with socket.create_connection(("127.0.0.1", one.port), timeout=30) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(request)
        while data := connection.recv(65536):
            received += data
    return received


OPENING, CLOSING, END, BYTE = 1, 2, 0, 1000


PROMPT = [900, OPENING]


THOUGHT, SAID = "Süß: 樱桃 🍌.", "\n\n渐😀 done"


WORDS = {"<think>": OPENING, "</think>": CLOSING}


def ids_of(text: str) -> list[int]:
    ids: list[int] = []
    while text:
        word = next((word for word in WORDS if text.startswith(word)), "")
        ids += [WORDS[word]] if word else [BYTE + byte for byte in text[0].encode()]
        text = text[len(word) or 1 :]
    return ids


EVERYTHING = [*ids_of(f"{THOUGHT}</think>{SAID}"), END]


def shown_of(ids: list[int]) -> tuple[str, str]:
    """Reasoning and content as an engine shows them: the bytes of a character that is not whole yet are withheld."""
    parts = [bytearray(), bytearray()]
    closed = False
    for one in ids:
        closed = closed or one == CLOSING
        if one >= BYTE:
            parts[closed].append(one - BYTE)
    reasoning, content = (codecs.getincrementaldecoder("utf-8")().decode(bytes(part)) for part in parts)
    return reasoning, content


def raw_of(ids: list[int]) -> str:
    """Both as one text, with the closing token between them."""
    reasoning, content = shown_of(ids)
    return reasoning + ("</think>" if CLOSING in ids else "") + content


class ByteServer:
    """The endpoints of the token route. `missing` are paths that are answered with `status`."""

    def __init__(self, leg1: list[Step]) -> None:
        self.leg1 = leg1
        self.missing: dict[str, int] = {}
        self.broken: dict[str, Reply] = {}
        self.batches: list[list[int]] = []
        self.leg2_by_chat: Reply | None = None

    def __call__(self, request: Request) -> Reply:
        path, asked = request.target, request.json()
        if path in self.missing:
            return json_reply({"detail": "Not Found"}, f"{self.missing[path]} No")
        if path in self.broken:
            return self.broken[path]
        match path:
            case "/v1/chat/completions":
                continued = asked.get("continue_final_message") and self.leg2_by_chat
                return continued or Reply(self.leg1)
            case "/v1/chat/completions/render":
                return json_reply({"token_ids": PROMPT, "sampling_params": {}, "reasoning_ended": False})
            case "/tokenize" if "messages" in asked:
                return json_reply({"tokens": PROMPT, "max_model_len": 4096})
            case "/tokenize":
                return json_reply({"tokens": ids_of(asked["prompt"])})
            case "/v1/completions":
                return Reply(self._completed(asked["prompt"][len(PROMPT) :]))
            case "/inference/v1/generate":
                return Reply(self._generated(asked["token_ids"][len(PROMPT) :]))
            case "/v1/chat/completions/derender":
                return json_reply(self._derendered(asked))
        raise AssertionError(path)

    def _generated(self, prefix: list[int]) -> list[Step]:
        assert EVERYTHING[: len(prefix)] == prefix, "the prefix is not what was delivered"
        steps: list[Step] = []
        for one in EVERYTHING[len(prefix) :]:
            finish = "stop" if one == END else None
            choice = {"index": 0, "finish_reason": finish, "stop_reason": None, "token_ids": [one]}
            steps.append(event({"request_id": "g", "usage": None, "choices": [choice]}))
        counts = {"prompt_tokens": len(PROMPT) + len(prefix), "completion_tokens": len(steps)}
        return [*steps, event({"request_id": "g", "usage": counts, "choices": []}), DONE]

    def _completed(self, prefix: list[int]) -> list[Step]:
        """As vLLM does: ids that end inside a character bring the text of the whole prompt with the rest of it."""
        assert EVERYTHING[: len(prefix)] == prefix, "the prefix is not what was delivered"
        told = raw_of(prefix)
        shown = told if ids_of(told) == prefix else ""
        steps: list[Step] = []
        for size in range(len(prefix) + 1, len(EVERYTHING)):
            now = raw_of(EVERYTHING[:size])
            steps.append(event({"choices": [{"index": 0, "text": now[len(shown) :], "finish_reason": None}]}))
            shown = now
        steps.append(event({"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}))
        counts = {"prompt_tokens": len(PROMPT) + len(prefix), "completion_tokens": len(steps)}
        return [*steps, event({"choices": [], "usage": counts}), DONE]

    def _derendered(self, asked: dict[str, Any]) -> dict[str, Any]:
        (choice,) = asked["generate_chunk"]["choices"]
        self.batches.append(choice["token_ids"])
        state = asked["stream_state"] or {"output_token_ids": []}
        before = asked["prompt_token_ids"][len(PROMPT) :] + state["output_token_ids"]
        told, all_told = shown_of(before), shown_of(before + choice["token_ids"])
        delta = {
            "reasoning": all_told[0][len(told[0]) :] or None,
            "content": all_told[1][len(told[1]) :] or None,
        }
        shown = {"index": 0, "delta": delta, "finish_reason": choice["finish_reason"]}
        state = {"output_token_ids": state["output_token_ids"] + choice["token_ids"]}
        return {"chunk": {"id": "x", "choices": [shown]}, "stream_state": state}
