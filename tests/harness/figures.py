"""What `/metrics` tells, as Prometheus' own parsers read it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families as _parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as _parse_text

# By name and labels, which are sorted.
Figures = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def figures(text: str, content_type: str = "text/plain") -> Figures:
    """Each sample must be there once."""
    found: Figures = {}
    for one in families(text, content_type):
        for sample in one.samples:
            at = key(sample.name, **sample.labels)
            assert at not in found, f"{at} is told twice"
            found[at] = sample.value
    return found


def families(text: str, content_type: str = "text/plain") -> list[Any]:
    is_open = content_type.startswith("application/openmetrics-text")
    parse: Callable[[str], Any] = _parse_openmetrics if is_open else _parse_text
    return list(parse(text))


def key(name: str, **labels: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return name, tuple(sorted(labels.items()))


def moved(before: Figures, after: Figures) -> Figures:
    """By how much, of the gateway's own figures that are not the same."""
    return {
        at: value - before.get(at, 0)
        for at, value in after.items()
        if at[0].startswith("continuation_") and value != before.get(at, 0)
    }
