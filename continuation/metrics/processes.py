"""The figures as `/metrics` shows them: of this process, or with PROMETHEUS_MULTIPROC_DIR the sums of all.

Each process keeps its figures in files there, and any of them tells the sums. Files of processes that are gone stay,
for sums must not fall; but what such a process had open is not counted.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from contextlib import suppress

from prometheus_client import REGISTRY, CollectorRegistry, Metric, exposition, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from continuation.metrics import DIRECTORY

# A process may take its file away while all are being read.
ATTEMPTS = 3


def told(accept: str) -> tuple[bytes, str]:
    """All figures, in a form that this Accept header allows, and their content type. Reads files: for a thread."""
    try:
        encode, content_type = exposition.choose_encoder(accept)
    except (ValueError, TypeError):  # a version that is none
        encode, content_type = generate_latest, exposition.CONTENT_TYPE_PLAIN_0_0_4
    if not DIRECTORY:
        return encode(REGISTRY), content_type
    for _ in range(ATTEMPTS - 1):
        with suppress(FileNotFoundError):
            return encode(OfAllProcesses()), content_type
    return encode(OfAllProcesses()), content_type


class OfAllProcesses(CollectorRegistry):
    """The sums, read anew for each who asks."""

    def collect(self) -> Iterator[Metric]:
        _leave_out_the_dead()
        files = _files("*.db")
        begun = [path for path in files if os.path.getsize(path)]
        yield from MultiProcessCollector.merge(begun)  # type: ignore[no-untyped-call]


def _files(pattern: str) -> list[str]:
    return glob.glob(os.path.join(glob.escape(DIRECTORY), pattern))


def _leave_out_the_dead() -> None:
    """What those had open who could not clean up."""
    for path in _files("gauge_live*_*.db"):
        pid = path.removesuffix(".db").rpartition("_")[2]
        if pid.isdecimal() and not _lives(int(pid)):
            with suppress(FileNotFoundError):  # somebody else was quicker
                mark_process_dead(pid, DIRECTORY)  # type: ignore[no-untyped-call]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
