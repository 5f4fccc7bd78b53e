"""The core owns no socket, no clock and no database."""

import subprocess
import sys

import pytest

CORE = [
    "continuation.shapes.sse",
    "continuation.shapes.chat.chunks",
    "continuation.splice.leg",
    "continuation.shapes.chat.usage",
    "continuation.splice.pieces",
    "continuation.splice.seam",
    "continuation.splice.shelf",
    "continuation.shapes.chat.asking",
    "continuation.shapes.members",
    "continuation.token_route.ids",
    "continuation.verification.verdicts",
    "continuation.verification.variants",
    "continuation.plan",
    "continuation.splice.decision",
    "continuation.splice.rewrite",
    "continuation.splice.machine",
    "continuation.splice.wording",
    "continuation.vocabulary",
    "continuation.resume.log",
    "continuation.resume.numbering",
    "continuation.resume.store.redis.account",
    "continuation.resume.store.redis.health",
    "continuation.resume.store.redis.ledger",
    "strategies.columns",
    "strategies.engines",
    "strategies.types",
    "strategies.builders",
]
FOREIGN = ("django", "httpx", "aiohttp", "asyncio", "channels", "daphne")


@pytest.mark.parametrize("module", CORE)
def test_a_core_module_loads_no_framework_and_no_event_loop(module: str) -> None:
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({FOREIGN!r}));"  # None makes an import of it fail
        f"import {module}; print(sorted(m for m in sys.modules if m.startswith(('continuation', 'strategies'))))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert module in run.stdout
