"""A logits processor that changes nothing and takes its time: a tiny model that writes at the pace of a large one."""

from __future__ import annotations

import time
from typing import Any

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor


class Paced(LogitsProcessor):
    """Each step of the worker, so each token of an answer, takes `seconds_per_step` of --additional-config longer."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._seconds = float(vllm_config.additional_config["seconds_per_step"])

    def is_argmax_invariant(self) -> bool:
        return False  # those that are do not run where sampling is greedy

    def update_state(self, batch_update: Any) -> None:
        pass

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        time.sleep(self._seconds)
        return logits
