"""Clients as processes: each reads jobs from its stdin, one JSON a line, and answers with one JSON a line.

    job      way, base_url (with /v1), retries, headers, body (a chat request as OpenAI's API has it)
    result   what the client made of the answer: see Reading

A process lives as long as the session, so that its connections are kept from one request to the next, as those of
programs are. What it is asked to do, it does with its client's own means; nothing of any client is changed.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.clients.places import HERE, node, node_dir, python_dir, python_of
from tests.harness.client import Answer

START_SECONDS = 120.0  # the imports of some take seconds, on a machine that others use
JOB_SECONDS = 90.0
CURL_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Client:
    """One way of one client. reasoning: whether it shows any. usage_always: it asks for usage unasked."""

    name: str
    driver: str
    way: str
    reasoning: bool = True
    usage_always: bool = False
    retries: bool = True

    def __str__(self) -> str:
        return self.name

    @property
    def is_helper(self) -> bool:
        """One that adds the stream up to a completion; what does not stream, it cannot ask for."""
        return "helper" in self.way


CLIENTS = (
    Client("openai-python", "openai_python.py", "create"),
    Client("openai-python-async", "openai_python.py", "async"),
    Client("openai-python-helper", "openai_python.py", "helper"),
    Client("openai-python-async-helper", "openai_python.py", "async-helper"),
    Client("openai-node", "openai_node.mjs", "create"),
    Client("openai-node-helper", "openai_node.mjs", "helper"),
    Client("langchain", "langchain_chat.py", "stream", reasoning=False),
    Client("langchain-async", "langchain_chat.py", "astream", reasoning=False),
    Client("ai-sdk-compatible", "ai_sdk.mjs", "compatible"),
    Client("ai-sdk-openai", "ai_sdk.mjs", "openai", reasoning=False, usage_always=True),
    Client("curl", "curl", "--http1.1", retries=False),
    Client("curl-http1.0", "curl", "--http1.0", retries=False),
)


@dataclass(frozen=True, slots=True)
class Choice:
    """tools: name and arguments of each call; their ids are checked here, and left out."""

    reasoning: str
    content: str
    finish: tuple[str, ...]
    tools: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ClientError:
    """What the client raised. kinds: the class and those that it descends from."""

    kinds: tuple[str, ...]
    status: int | None
    type: str | None
    code: str | None
    message: str
    retryable: bool | None = None

    @property
    def kind(self) -> str:
        return self.kinds[0]


@dataclass(frozen=True, slots=True)
class Reading:
    """What a client made of an answer.

    usages: prompt, completion and total tokens of each usage it was told. watched: the answer's X-Continuation, where
    the client shows headers. extra: what this client alone tells. comments: of curl alone.
    """

    choices: tuple[Choice, ...]
    ids: tuple[str, ...]
    usages: tuple[tuple[int, int, int], ...]
    watched: str | None
    error: ClientError | None
    extra: dict[str, Any] = field(default_factory=dict)
    comments: int = 0

    @property
    def choice(self) -> Choice:
        (one,) = self.choices
        return one

    @property
    def said(self) -> tuple[Any, ...]:
        """All that must be the same however often the stream broke."""
        return (self.choices, len(self.ids), self.error, self.extra)


class Process:
    """A driver that runs. `ask` raises AssertionError where no result comes in time."""

    def __init__(self, driver: str, directory: Path) -> None:
        self._errors = directory / f"{driver}.stderr"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                _command(driver),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
                env=_environment(),
            )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name=f"reader of {driver}", daemon=True)
        self._reader.start()
        assert self._answer(START_SECONDS) == {"ready": True}

    def ask(self, job: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return self._answer(JOB_SECONDS)

    @property
    def complaints(self) -> str:
        """What it wrote to stderr."""
        return self._errors.read_text(encoding="utf-8", errors="replace")

    def stop(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(10)
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _answer(self, seconds: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            self._process.kill()
            raise AssertionError(f"no result in {seconds:.0f} s; {self.complaints}") from None
        assert line, f"the client's process has ended: {self.complaints}"
        return json.loads(line)  # type: ignore[no-any-return]


def _command(driver: str) -> list[str]:
    source = HERE / "drivers" / driver
    if driver.endswith(".py"):
        return [str(python_of(python_dir())), str(source)]
    # Where it stands decides which packages a module of node finds.
    return [str(node()), str(shutil.copy(source, node_dir() / driver))]


def _environment() -> dict[str, str]:
    """Nothing of a developer's shell decides a test: no proxies, no keys, no tracing."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return {**kept, "LANG": "C.UTF-8", "NO_PROXY": "*", "no_proxy": "*"}


def reading_of(result: Mapping[str, Any]) -> Reading:
    error = result["error"]
    return Reading(
        choices=tuple(_choice(choice) for choice in result["choices"]),
        ids=tuple(result["ids"]),
        usages=tuple((prompt, completion, total) for prompt, completion, total in result["usages"]),
        watched=result["watched"],
        error=None if error is None else _error(error),
        extra=result["extra"],
    )


def _choice(told: Mapping[str, Any]) -> Choice:
    ids = [tool["id"] for tool in told["tools"]]
    assert all(ids), told
    assert len(set(ids)) == len(ids), told
    tools = tuple((tool["name"], tool["arguments"]) for tool in told["tools"])
    return Choice(told["reasoning"], told["content"], tuple(told["finish"]), tools)


def _error(told: Mapping[str, Any]) -> ClientError:
    code = told["code"]
    return ClientError(
        kinds=tuple(told["kinds"]),
        status=told["status"],
        type=told["type"],
        code=None if code is None else str(code),
        message=told["message"],
        retryable=told.get("retryable"),
    )


# -- curl -----------------------------------------------------------------------------------------


def ask_curl(job: Mapping[str, Any], directory: Path) -> Reading:
    """`curl -N`, its output read as a strict reader of events would."""
    head, body, request = (directory / name for name in ("head", "body", "request"))
    request.write_text(json.dumps(job["body"]), encoding="utf-8")
    headers = {"Content-Type": "application/json", **job["headers"]}
    command = ["curl", "-q", "-sS", "-N", job["way"], "--max-time", str(CURL_SECONDS), "-D", str(head)]
    command += ["-o", str(body), "--data-binary", f"@{request}"]
    command += [word for name, value in headers.items() for word in ("-H", f"{name}: {value}")]
    body.write_bytes(b"")
    done = subprocess.run(
        [*command, f"{job['base_url']}/chat/completions"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=_environment(),
    )
    assert done.returncode != 28, "curl waited in vain"
    lines = head.read_bytes().decode("latin-1").strip().split("\r\n\r\n")[-1].split("\r\n")
    told = {
        name.lower(): value.strip() for name, _colon, value in (line.partition(":") for line in lines[1:])
    }
    status = int(lines[0].split(" ")[1])
    said = body.read_bytes()
    if done.returncode:
        broken = ClientError(("curl",), None, None, str(done.returncode), done.stderr.strip())
        return _curl_stream(_whole_events(said), told, broken)
    if status != 200:
        error = _curl_error(json.loads(said), status) if said[:1] == b"{" else _page(said, status)
        return Reading((), (), (), told.get("x-continuation"), error)
    if told["content-type"].startswith("text/event-stream"):
        return _curl_stream(said, told, None)
    return _curl_whole(json.loads(said), told)


def _whole_events(body: bytes) -> bytes:
    return body[: body.rfind(b"\n\n") + 2]


def _curl_stream(body: bytes, headers: Mapping[str, str], broken: ClientError | None) -> Reading:
    answer = Answer.of(body)
    error = broken
    if answer.errors:
        (one,) = answer.errors
        error = _curl_error(one, None)
    elif not answer.done and error is None:  # over HTTP/1.0 a broken connection looks like any other end
        error = ClientError(("curl",), None, None, None, "no [DONE]")
    assert answer.done == (error is None), answer
    return Reading(
        choices=tuple(_choices(answer.chunks)),
        ids=tuple(answer.ids),
        usages=tuple(_counts(usage) for usage in answer.usages),
        watched=headers.get("x-continuation"),
        error=error,
        extra={"fields": sorted(answer.reasoning_fields)},
        comments=len(answer.comments),
    )


def _curl_error(told: Mapping[str, Any], status: int | None) -> ClientError:
    error = told.get("error", told)
    code = error.get("code")
    return ClientError(
        ("curl",), status, error.get("type"), None if code is None else str(code), error["message"]
    )


def _page(body: bytes, status: int) -> ClientError:
    return ClientError(("curl",), status, None, None, body.decode())


def _counts(usage: Mapping[str, int]) -> tuple[int, int, int]:
    return usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]


def _choices(chunks: Sequence[Mapping[str, Any]]) -> list[Choice]:
    found: dict[int, dict[str, Any]] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        into = found.setdefault(choice["index"], {"reasoning": "", "content": "", "finish": [], "tools": []})
        delta = choice.get("delta") or {}
        into["reasoning"] += delta.get("reasoning") or delta.get("reasoning_content") or ""
        into["content"] += delta.get("content") or ""
        into["finish"] += [choice["finish_reason"]] if choice.get("finish_reason") else []
        for call in delta.get("tool_calls") or []:
            _add_call(into["tools"], call)
    return [_choice(found[index]) for index in sorted(found)]


def _add_call(tools: list[dict[str, str]], call: Mapping[str, Any]) -> None:
    if call["index"] == len(tools):
        tools.append({"id": call["id"], "name": "", "arguments": ""})
    function = call.get("function") or {}
    tools[call["index"]]["name"] += function.get("name") or ""
    tools[call["index"]]["arguments"] += function.get("arguments") or ""


def _curl_whole(told: Mapping[str, Any], headers: Mapping[str, str]) -> Reading:
    choices = []
    for choice in told["choices"]:
        message = choice["message"]
        tools = [{"id": call["id"], **call["function"]} for call in message["tool_calls"] or []]
        reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
        told_of = {"reasoning": reasoning, "content": message["content"] or "", "tools": tools}
        choices.append(_choice({**told_of, "finish": [choice["finish_reason"]]}))
    return Reading(
        choices=tuple(choices),
        ids=(told["id"],),
        usages=(_counts(told["usage"]),),
        watched=headers.get("x-continuation"),
        error=None,
    )
