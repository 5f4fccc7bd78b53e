#!/usr/bin/env python3
"""Train a tiny thinking model that recites the dialogues of dialogues.py: `tiny_model.py DIRECTORY`.

About 2 MB, trained in half a minute on one core, and loaded by vLLM and SGLang as any Qwen3 model is. Because it
knows its dialogues by heart its greedy answers are always the same, so an answer that was cut and continued can be
compared with the whole one, character by character. Rare characters stay split into bytes by its tokenizer, so
there are cuts between the tokens of one character. The same bytes come out each time.

Needs torch, transformers and tokenizers: run it with the Python of an engine's environment.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from engines.dialogues import DIALOGUES, FILLER, GET_WEATHER  # noqa: E402

VOCABULARY = 900
STEPS = 300
CONTEXT = 4096
HIDDEN = 128
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # left out of decoded text
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")  # one token each, but shown
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Lesson:
    """Token ids of a prompt and of the completion that is learnt."""

    prompt: list[int]
    completion: list[int]


def tokenizer(
    control: Sequence[str], markers: Sequence[str], end: str, padding: str, template: str | None
) -> PreTrainedTokenizerFast:
    """A byte-level BPE, trained on the dialogues."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    bpe.decoder = decoders.ByteLevel()
    texts = [FILLER, json.dumps(GET_WEATHER)]
    texts += [text for each in DIALOGUES for text in (each.user, each.thought, each.answer)]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=VOCABULARY, show_progress=False, initial_alphabet=alphabet)
    )
    bpe.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in control])
    bpe.add_tokens([AddedToken(text, special=False, normalized=False) for text in markers])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=end,
        pad_token=padding,
        chat_template=template,
        model_max_length=CONTEXT,
    )


def model(vocabulary: int, end: int, padding: int) -> Qwen3ForCausalLM:
    """An untrained Qwen3 of two layers; the same weights each time."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    torch.set_num_threads(1)  # else the sums, and with them the weights, depend on the number of cores
    torch.use_deterministic_algorithms(True)
    config = Qwen3Config(
        vocab_size=-(-vocabulary // 64) * 64,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=HIDDEN // 32,
        num_key_value_heads=HIDDEN // 64,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.06,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=padding,
    )
    return Qwen3ForCausalLM(config).float()


def learn(pupil: Qwen3ForCausalLM, lessons: Sequence[Lesson], padding: int) -> float:
    """Train until the completions are known by heart; the last loss."""
    import torch

    width = max(len(lesson.prompt) + len(lesson.completion) for lesson in lessons)

    def row(head: list[int], lesson: Lesson, filling: int) -> list[int]:
        return [*head, *lesson.completion, *[filling] * (width - len(head) - len(lesson.completion))]

    ids = torch.tensor([row(lesson.prompt, lesson, padding) for lesson in lessons])
    labels = torch.tensor([row([-100] * len(lesson.prompt), lesson, -100) for lesson in lessons])
    optimizer = torch.optim.AdamW(pupil.parameters(), lr=3e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=STEPS)
    for _step in range(STEPS):
        loss = pupil(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return float(loss.detach())


def save(pupil: Qwen3ForCausalLM, words: PreTrainedTokenizerFast, ends: list[int], directory: Path) -> None:
    pupil.generation_config.eos_token_id = ends
    pupil.save_pretrained(directory)
    words.save_pretrained(directory)


def lessons(words: PreTrainedTokenizerFast) -> list[Lesson]:
    """Each dialogue with thinking on and off."""
    found = []
    for each in DIALOGUES:
        for thinking in (True, False):
            prompt = words.apply_chat_template(
                [{"role": "user", "content": each.user}],
                tools=each.tools,
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=thinking,
            )
            thought = each.thought + "\n</think>\n\n" if thinking else ""
            head = words.encode(prompt, add_special_tokens=False)
            whole = words.encode(prompt + thought + each.answer + "<|im_end|>", add_special_tokens=False)
            found.append(Lesson(head, whole[len(head) :]))
    return found


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} DIRECTORY")
    template = (HERE / "qwen_like.jinja").read_text(encoding="utf-8")
    words = tokenizer(CONTROL, MARKERS, "<|im_end|>", "<|endoftext|>", template)
    pupil = model(len(words), words.eos_token_id, words.pad_token_id)
    loss = learn(pupil, lessons(words), words.pad_token_id)
    save(pupil, words, [words.eos_token_id, words.pad_token_id], Path(sys.argv[1]))
    print(f"{sys.argv[1]}: {pupil.num_parameters():,} parameters, loss {loss:.5f}")


if __name__ == "__main__":
    main()
