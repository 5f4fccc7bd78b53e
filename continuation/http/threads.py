"""Work that takes longer the larger its input is, off the event loop where the input is large."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from continuation.plan import INLINE_BYTES

T = TypeVar("T")


async def worked_out(size: int, work: Callable[[], T]) -> T:
    """What `work` returns; in a thread where the input's `size`, in bytes, is above INLINE_BYTES."""
    return await asyncio.to_thread(work) if size > INLINE_BYTES else work()
