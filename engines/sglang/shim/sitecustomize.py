"""Lets SGLang import the torchvision of PyPI, whose operators are built for CUDA and missing beside a CPU torch."""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    """Declares, just before torchvision is first imported, the operators that its import refers to."""

    library: object = None  # operators last as long as the library object does

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _BeforeTorchvision.library = library
        return None


sys.meta_path.insert(0, _BeforeTorchvision())
