"""What the drivers of Python packages have in common: a job a line in, a result a line out (see ../driving.py)."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

Job = dict[str, Any]
Result = dict[str, Any]
Way = Callable[[Job, Result], "Coroutine[Any, Any, None] | None"]


def serve(ways: Mapping[str, Way]) -> None:
    """Until stdin ends. A way does a job, and fills in its result."""
    tell({"ready": True})
    with asyncio.Runner() as loop:
        for line in sys.stdin:
            job: Job = json.loads(line)
            tell(done(job, ways[job["way"]], loop))


def done(job: Job, way: Way, loop: asyncio.Runner) -> Result:
    result: Result = {"choices": [], "ids": [], "usages": [], "watched": None, "error": None, "extra": {}}
    try:
        begun = way(job, result)
        if begun is not None:
            loop.run(begun)
    except Exception as trouble:
        result["error"] = error_of(trouble)
    return result


def tell(what: Result) -> None:
    print(json.dumps(what), flush=True)


def choice(result: Result, index: int) -> dict[str, Any]:
    while len(result["choices"]) <= index:
        result["choices"].append({"reasoning": "", "content": "", "finish": [], "tools": []})
    return result["choices"][index]  # type: ignore[no-any-return]


def error_of(trouble: Exception) -> dict[str, Any]:
    return {
        "kinds": [kind.__name__ for kind in type(trouble).__mro__],
        "status": getattr(trouble, "status_code", None),
        "type": getattr(trouble, "type", None),
        "code": getattr(trouble, "code", None),
        "message": str(trouble),
    }
