"""The pure rooms own no socket, clock or database at run time either; import-linter reads `import` statements only."""

import subprocess
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

from tests.harness.gateway import ROOT

CONTRACTS = ROOT / ".importlinter"


def contract(name: str, field: str) -> list[str]:
    contracts = ConfigParser()
    contracts.read(CONTRACTS, "utf-8")
    return contracts[f"importlinter:contract:{name}"][field].split()


def modules_of(name: str) -> Iterator[str]:
    """The module, or all that a room holds."""
    room = ROOT / name.replace(".", "/")
    if room.is_dir():
        paths: list[Path] = sorted(room.rglob("*.py"))
        yield from (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths)
    else:
        yield name


def test_a_pure_room_loads_no_framework_and_no_event_loop() -> None:
    pure = [module for name in contract("pure", "source_modules") for module in modules_of(name)]
    foreign = contract("pure", "forbidden_modules")
    assert {"django", "httpx", "asyncio"} <= set(foreign)
    assert len(pure) > 20
    program = (
        "import sys, importlib\n"
        f"sys.modules.update(dict.fromkeys({foreign!r}))\n"  # None makes an import of it fail
        f"for name in {pure!r}: importlib.import_module(name.removesuffix('.__init__'))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
