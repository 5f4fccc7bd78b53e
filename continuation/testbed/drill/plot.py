"""Memory, descriptors, tasks and latency over time, as a picture. Needs matplotlib, which nothing else does."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from continuation.testbed.drill.campaign import Result
from continuation.testbed.drill.sampling import Sample

MISSING = "--plot needs matplotlib: pip install 'continuation-gateway[soak]', or pip install matplotlib"
_PANELS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("memory of the gateway, MB", (("memory_mb", "resident"),)),
    ("descriptors and tasks", (("descriptors", "descriptors"), ("tasks", "tasks"), ("threads", "threads"))),
    ("streams", (("open", "open at the clients"), ("streams", "open in the gateway"))),
    ("latency, ms", (
        ("first_p50_ms", "to the first event, median"), ("gap_p50_ms", "between events, median"),
        ("gap_p99_ms", "between events, 99th percentile"), ("seam_p50_ms", "over a seam, median"),
    )),
)  # fmt: skip


def is_available() -> bool:
    return find_spec("matplotlib") is not None


def draw(result: Result, file: Path) -> None:
    """A PNG. Raises OSError where it cannot be written."""
    figure = import_module("matplotlib.figure").Figure(figsize=(11, 3 * len(_PANELS)), layout="constrained")
    panels = figure.subplots(len(_PANELS), 1, sharex=True)
    for panel, (title, lines) in zip(panels, _PANELS, strict=True):
        _draw_panel(panel, title, lines, result.samples)
    panels[-1].set_xlabel("minutes")
    panels[-1].set_yscale("log")
    choices = result.choices
    figure.suptitle(
        f"{result.done:,} streams, {choices.streams} at a time, seed {choices.seed}: {result.wrong_count} wrong"
    )
    figure.savefig(file, format="png", dpi=110)


def _draw_panel(panel: Any, title: str, lines: tuple[tuple[str, str], ...], samples: list[Sample]) -> None:
    shown = [sample.shown() for sample in samples]
    for name, label in lines:
        points = [(one["at"] / 60, one[name]) for one in shown if one[name] is not None]
        if points:
            panel.plot(*zip(*points, strict=True), label=label, linewidth=1)
    panel.set_title(title, loc="left", fontsize=10)
    panel.grid(alpha=0.3)
    if panel.lines:
        panel.legend(fontsize=8, loc="best")
    if not title.startswith("latency"):
        panel.set_ylim(bottom=0)
