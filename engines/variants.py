#!/usr/bin/env python3
"""Tiny models whose chat renderer never reads `continue_final_message`: `variants.py k3|ds4 DIRECTORY`.

    k3   in the manner of Kimi-K3: a message's text cannot hold control tokens (tokenization_xtml.py)
    ds4  behind the renderer that vLLM has for DeepSeek-V4, which closes every turn

Both recite the dialogues without tools. Needs the Python of the vLLM environment.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from engines.dialogues import DIALOGUES
from engines.tiny_model import HERE, Lesson, learn, model, save, tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

XTML = ("[BOS]", "[EOS]", "[PAD]", "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")
DEEPSEEK = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜▁pad▁｜>",
)
SPOKEN = [each for each in DIALOGUES if not each.tools]


def k3(directory: Path) -> None:
    words = tokenizer(XTML, (), "<|end_of_msg|>", "[PAD]", None)
    words.save_pretrained(directory)
    words = _with_xtml(directory)
    taught = []
    for each in SPOKEN:
        for thinking in (True, False):
            user = [{"role": "user", "content": each.user}]
            prompt = words.apply_chat_template(user, tokenize=True, thinking=thinking)
            thought = f"{each.thought}<|close|>think<|sep|><|open|>response<|sep|>" if thinking else ""
            ending = "<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>"
            completion = words.encode(thought + each.answer + ending, add_special_tokens=False)
            taught.append(Lesson(prompt, completion))
    pupil = model(len(words), words.eos_token_id, words.pad_token_id)
    learn(pupil, taught, words.pad_token_id)
    pupil.generation_config.eos_token_id = [words.eos_token_id]
    pupil.save_pretrained(directory)


def _with_xtml(directory: Path) -> PreTrainedTokenizerFast:
    """The tokenizer saved in `directory` as one that renders messages itself."""
    code = shutil.copy(HERE / "tokenization_xtml.py", directory)
    settings = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings.pop("backend", None)
    settings |= {
        "tokenizer_class": "XtmlTokenizer",
        "auto_map": {"AutoTokenizer": [None, "tokenization_xtml.XtmlTokenizer"]},
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("tokenization_xtml", code)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: PreTrainedTokenizerFast = module.XtmlTokenizer(
        tokenizer_file=str(directory / "tokenizer.json"), eos_token="<|end_of_msg|>", pad_token="[PAD]"
    )
    return found


def ds4(directory: Path) -> None:
    from vllm.tokenizers.deepseek_v4_encoding import encode_messages

    end = DEEPSEEK[1]
    words = tokenizer(DEEPSEEK, ("<think>", "</think>"), end, DEEPSEEK[4], None)
    words.bos_token = DEEPSEEK[0]
    taught = []
    for each in SPOKEN:
        for thinking in (True, False):
            mode, effort = ("thinking", "high") if thinking else ("chat", None)
            user = [{"role": "user", "content": each.user}]
            prompt = encode_messages(user, thinking_mode=mode, reasoning_effort=effort)
            thought = each.thought + "</think>" if thinking else ""
            head = words.encode(prompt, add_special_tokens=False)
            whole = words.encode(prompt + thought + each.answer + end, add_special_tokens=False)
            taught.append(Lesson(head, whole[len(head) :]))
    pupil = model(len(words), words.eos_token_id, words.pad_token_id)
    learn(pupil, taught, words.pad_token_id)
    save(pupil, words, [words.eos_token_id], directory)


def main() -> None:
    kinds = {"k3": k3, "ds4": ds4}
    if len(sys.argv) != 3 or sys.argv[1] not in kinds:
        sys.exit(f"usage: {sys.argv[0]} {'|'.join(kinds)} DIRECTORY")
    directory = Path(sys.argv[2])
    directory.mkdir(parents=True, exist_ok=True)
    kinds[sys.argv[1]](directory)
    print(f"{directory}: ready")


if __name__ == "__main__":
    main()
