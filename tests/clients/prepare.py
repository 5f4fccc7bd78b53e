#!/usr/bin/env python3
"""Install what is missing of the clients that the tests read through the gateway: `prepare.py`.

Everything goes into build/clients in this checkout, or into the directory that CLIENTS_DIR names:

    python/   an environment of its own with what requirements.txt pins, node among it: 320 MB
    node/     what package-lock.json pins: 64 MB

What is there already is left alone; it is built anew when the pins have changed. curl is the machine's own.
Ends with 0 when all is there, else with 75 and one line that says what could not be had and why.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.clients.places import HERE, clients_dir, node, node_dir, npm, python_dir, python_of

NOT_TO_BE_HAD = 75  # EX_TEMPFAIL
MADE_OF = "made-of.sha256"
NPM_PINS = ("package.json", "package-lock.json")
INSTALL_SECONDS = 1200
TELLING = re.compile(r"^ERROR:|Error: |npm error (?!code|syscall|errno)")


class Missing(Exception):
    """What could not be had, and why; one line."""


def main() -> int:
    try:
        if shutil.which("curl") is None:
            raise Missing("curl is not installed")
        install_python()
        install_node()
    except Missing as reason:
        print(f"clients: {reason}", file=sys.stderr)
        return NOT_TO_BE_HAD
    return 0


def install_python() -> None:
    pins = HERE / "requirements.txt"
    mark = _digest(pins.read_bytes(), sysconfig.get_python_version().encode())
    _make(python_dir(), mark, "openai, langchain-openai and node", _fill_python)


def _fill_python(place: Path) -> None:
    """With the pip of the Python that runs this: Debian's python3 can make environments, but none with pip."""
    venv.create(place, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python_of(place))]
    _run(
        [*pip, "install", "--quiet", "--only-binary=:all:", "-r", str(HERE / "requirements.txt")],
        "the Python clients and node cannot be installed",
    )
    _run([str(python_of(place)), "-c", "import langchain_openai, openai"], "the Python clients do not import")
    _run([str(node()), "--version"], "node does not start")


def install_node() -> None:
    mark = _digest(*((HERE / pin).read_bytes() for pin in NPM_PINS))
    _make(node_dir(), mark, "the openai and ai packages of npm", _fill_node)


def _fill_node(place: Path) -> None:
    place.mkdir(parents=True)
    for pin in NPM_PINS:
        shutil.copy(HERE / pin, place)
    command = [*npm(), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    _run(command, "the clients of npm cannot be installed", place)


def _make(place: Path, mark: str, what: str, fill: Callable[[Path], None]) -> None:
    """Whole or not at all, and not again while its mark is the same."""
    made = place / MADE_OF
    if made.is_file() and made.read_text() == mark:
        return
    print(f"clients: installing {what} into {place}, once", flush=True)
    shutil.rmtree(place, ignore_errors=True)
    try:
        fill(place)
    except Missing:
        shutil.rmtree(place, ignore_errors=True)
        raise
    made.write_text(mark)


def _run(command: Sequence[str], what: str, cwd: Path | None = None) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as trouble:
        raise Missing(f"{what}: {trouble}") from None
    if done.returncode:
        raise Missing(f"{what}: {_why(done.stderr) or _why(done.stdout) or f'status {done.returncode}'}")


def _why(output: str) -> str:
    """The line that tells most: one that says what went wrong, else the last. npm begins with codes."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if TELLING.search(line)]
    return next(iter(telling or lines[-1:]), "")


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


if __name__ == "__main__":
    clients_dir().mkdir(parents=True, exist_ok=True)
    sys.exit(main())
