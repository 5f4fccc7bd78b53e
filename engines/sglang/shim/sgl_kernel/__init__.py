"""Stands in for SGLang's GPU kernels: every name can be imported, and calling one says that it is not here.

A small dense model on the CPU calls none of them.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

__version__ = "99.0.0"  # SGLang asks for a least version


class _Kernel:
    """A name, and every name below it."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> "_Kernel":
        if name.startswith("__"):
            raise AttributeError(name)
        return _Kernel(f"{self.__name__}.{name}")

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        raise NotImplementedError(f"{self.__name__} needs a GPU")


def __getattr__(name: str) -> _Kernel:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Kernel(f"sgl_kernel.{name}")


class _AnyModule(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds sgl_kernel.anything as a package of such names."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith("sgl_kernel."):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = __getattr__  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to execute."""


sys.meta_path.append(_AnyModule())
