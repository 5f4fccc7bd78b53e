"""The chat formats that the simulator speaks: which strings open and close what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dialect:
    """One family of chat templates; `templates/<name>.jinja` renders it.

    header          opens the assistant's turn
    user_header     opens a user's turn; turn_headers are those of all other roles
    opening         what stands before the reasoning, white space included; `think` is its control token
    off             how a turn starts when thinking is switched off
    prompt_opens    the generation prompt itself ends with `opening` (else the model writes it)
    reasoning_tail  last characters of every reasoning; content_head the first of every content after it
    end             control tokens that close the turn, the last one being the end of the stream
    reads_flag      the renderer on vLLM honours continue_final_message
    """

    name: str
    header: str
    user_header: str
    turn_headers: tuple[str, ...]
    opening: str
    think: str
    close: str
    content_open: str
    off: str
    prompt_opens: bool
    reasoning_tail: str
    content_head: str
    call_open: str
    call_close: str
    end: tuple[str, ...]
    thinking_keys: tuple[str, ...]
    reads_flag: bool

    @property
    def eos(self) -> str:
        return self.end[-1]

    @property
    def markers(self) -> tuple[str, ...]:
        """Control tokens that a parser acts on and never shows."""
        inner = (self.think, self.close, self.content_open, self.call_open, self.call_close)
        return tuple(marker for marker in (*inner, *self.end) if marker)


QWEN = Dialect(
    name="qwen",
    header="<|im_start|>assistant\n",
    user_header="<|im_start|>user\n",
    turn_headers=("<|im_start|>",),
    opening="<think>\n",
    think="<think>",
    close="</think>",
    content_open="",
    off="<think>\n\n</think>\n\n",
    prompt_opens=True,
    reasoning_tail="\n",
    content_head="\n\n",
    call_open="<tool_call>",
    call_close="</tool_call>",
    end=("<|im_end|>",),
    thinking_keys=("enable_thinking",),
    reads_flag=True,
)

GENERIC = Dialect(
    name="generic",
    header="<|assistant|>\n",
    user_header="<|user|>\n",
    turn_headers=("<|system|>\n", "<|user|>\n", "<|tool|>\n"),
    opening="<think>",
    think="<think>",
    close="</think>",
    content_open="",
    off="<think></think>",
    prompt_opens=False,
    reasoning_tail="",
    content_head="\n\n",
    call_open="<tool_call>",
    call_close="</tool_call>",
    end=("<|end|>",),
    thinking_keys=("thinking", "enable_thinking"),
    reads_flag=True,
)

KIMI_K3 = Dialect(
    name="kimi-k3",
    header='<|open|>message role="assistant"<|sep|>',
    user_header='<|open|>message role="user"<|sep|>',
    turn_headers=('<|open|>message role="',),
    opening="<|open|>think<|sep|>",
    think="<|open|>think<|sep|>",
    close="<|close|>think<|sep|>",
    content_open="<|open|>response<|sep|>",
    off="<|open|>response<|sep|>",
    prompt_opens=False,
    reasoning_tail="",
    content_head="",
    call_open="<|open|>call<|sep|>",
    call_close="<|close|>call<|sep|>",
    end=("<|close|>response<|sep|>", "<|close|>message<|sep|>", "<|end_of_msg|>"),
    thinking_keys=("thinking",),
    reads_flag=False,
)

DEEPSEEK_V4 = Dialect(
    name="deepseek-v4",
    header="<｜Assistant｜>",
    user_header="<｜User｜>",
    turn_headers=("<｜User｜>", "<｜Tool｜>"),
    opening="<think>",
    think="<think>",
    close="</think>",
    content_open="",
    off="</think>",
    prompt_opens=True,
    reasoning_tail="",
    content_head="",
    call_open="<｜tool▁call▁begin｜>",
    call_close="<｜tool▁call▁end｜>",
    end=("<｜end▁of▁sentence｜>",),
    thinking_keys=("thinking",),
    reads_flag=False,
)

DIALECTS = {dialect.name: dialect for dialect in (QWEN, GENERIC, KIMI_K3, DEEPSEEK_V4)}
