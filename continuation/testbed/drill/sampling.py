"""Memory, descriptors, tasks and latency over time, and whether they stay flat."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
# What may not grow from the first quarter of a drill to the last, and by how much it may differ.
WATCHED = ("memory_mb", "descriptors", "tasks")
TOLERANCE = 0.05
# With fewer samples a quarter says nothing.
LEAST_SAMPLES = 12
_LATENCIES = 20_000  # kept between two samples, of each kind


@dataclass(frozen=True, slots=True)
class SampledProcess:
    """What Linux shows of a process; None where there is no /proc, or the process is another one's."""

    memory_mb: float | None = None
    descriptors: int | None = None
    threads: int | None = None


def process(pid: int | None) -> SampledProcess:
    if pid is None:
        return SampledProcess()
    home = Path(f"/proc/{pid}")
    try:
        pages = int((home / "statm").read_text().split()[1])
        status = (home / "status").read_text().split("\n")
        threads = next((int(line.split()[1]) for line in status if line.startswith("Threads:")), None)
        return SampledProcess(pages * PAGE / 2**20, len(os.listdir(home / "fd")), threads)
    except OSError:
        return SampledProcess()


@dataclass(slots=True)
class Latencies:
    """Seconds, gathered since the last sample: to the first event, between events, over a seam."""

    first: list[float] = field(default_factory=list)
    gap: list[float] = field(default_factory=list)
    seam: list[float] = field(default_factory=list)

    def add(self, first: float | None, gaps: Sequence[float], seam: float | None) -> None:
        if first is not None and len(self.first) < _LATENCIES:
            self.first.append(first)
        if seam is not None and len(self.seam) < _LATENCIES:
            self.seam.append(seam)
        self.gap.extend(gaps[: max(0, _LATENCIES - len(self.gap))])

    def taken(self) -> dict[str, float | None]:
        """Medians and 99th percentiles in milliseconds, under names such as gap_p50_ms; starts anew."""
        told: dict[str, float | None] = {}
        for name in ("first", "gap", "seam"):
            values = sorted(getattr(self, name))
            told[f"{name}_p50_ms"] = _share(values, 0.5)
            told[f"{name}_p99_ms"] = _share(values, 0.99)
            getattr(self, name).clear()
        return told


def _share(values: Sequence[float], share: float) -> float | None:
    return round(values[int(share * (len(values) - 1))] * 1000, 3) if values else None


@dataclass(frozen=True, slots=True)
class Sample:
    """at: seconds since the drill began. steady: warm, all streams are open, and new ones follow.

    tasks and streams are those that the gateway itself tells at /health, None where it does not.
    """

    at: float
    steady: bool
    memory_mb: float | None
    descriptors: int | None
    threads: int | None
    tasks: int | None
    streams: int | None
    open: int
    done: int
    wrong: int
    latency: dict[str, float | None]

    def shown(self) -> dict[str, Any]:
        names = [name for name in self.__slots__ if name != "latency"]
        return {name: getattr(self, name) for name in names} | self.latency


@dataclass(frozen=True, slots=True)
class Trend:
    """Medians of the first and the last quarter of the steady time; None where there were too few samples."""

    name: str
    first: float | None
    last: float | None

    @property
    def change(self) -> float | None:
        """0.05 is five per cent more."""
        if self.first is None or self.last is None:
            return None
        return (self.last - self.first) / self.first if self.first else float(self.last > 0)

    @property
    def grows(self) -> bool:
        return self.change is not None and self.change > TOLERANCE

    @property
    def verdict(self) -> str:
        if self.change is None:
            return "not measured"
        return "GROWS" if self.grows else "flat" if self.change >= -TOLERANCE else "falls"


def trends(samples: Sequence[Sample]) -> list[Trend]:
    steady = [sample for sample in samples if sample.steady]
    return [_trend(name, [getattr(one, name) for one in steady]) for name in WATCHED]


def _trend(name: str, values: Sequence[float | None]) -> Trend:
    known = [value for value in values if value is not None]
    if len(known) < LEAST_SAMPLES:
        return Trend(name, None, None)
    quarter = len(known) // 4
    return Trend(name, statistics.median(known[:quarter]), statistics.median(known[-quarter:]))


@dataclass(slots=True)
class Rates:
    """How fast streams end, for the progress bar; over the last few seconds."""

    clock: Callable[[], float] = time.monotonic
    _seen: list[tuple[float, int]] = field(default_factory=list)

    def per_second(self, done: int) -> float:
        now = self.clock()
        self._seen = [(at, count) for at, count in self._seen if at > now - 20] + [(now, done)]
        (first_at, first), (last_at, last) = self._seen[0], self._seen[-1]
        return (last - first) / (last_at - first_at) if last_at > first_at else 0.0
