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
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.clients.places import HERE, clients_dir, node_dir, npm, python_dir, python_of

NOT_TO_BE_HAD = 75  # EX_TEMPFAIL
MADE_OF = "made-of.sha256"
INSTALL_SECONDS = 1200


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
    """With the pip of the Python that runs this: Debian's python3 can make environments, but none with pip."""
    pins = HERE / "requirements.txt"
    version = sysconfig.get_python_version()
    mark = _digest(pins.read_bytes(), version.encode())
    place = python_dir()
    if _is_made(place, mark):
        return
    _say(f"installing openai, langchain-openai and node into {place}, once; about a minute")
    shutil.rmtree(place, ignore_errors=True)
    venv.create(place, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(python_of(place))]
    _run(
        [*pip, "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:", "-r", str(pins)],
        "the Python clients and node cannot be installed",
    )
    _run([str(python_of(place)), "-c", "import langchain_openai, openai"], "the Python clients do not import")
    (place / MADE_OF).write_text(mark)


def install_node() -> None:
    pins = [HERE / "package.json", HERE / "package-lock.json"]
    mark = _digest(*(pin.read_bytes() for pin in pins))
    place = node_dir()
    if _is_made(place, mark):
        return
    _say(f"installing the openai and ai packages of npm into {place}, once")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    for pin in pins:
        shutil.copy(pin, place)
    command = [*npm(), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    _run(command, "the clients of npm cannot be installed", place)
    (place / MADE_OF).write_text(mark)


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
    """The line that tells most: the first that names an error, else the last."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower() and "npm error code" not in line]
    return next(iter(errors or lines[-1:]), "")


def _is_made(place: Path, mark: str) -> bool:
    made = place / MADE_OF
    return made.is_file() and made.read_text() == mark


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def _say(text: str) -> None:
    print(f"clients: {text}", flush=True)


if __name__ == "__main__":
    clients_dir().mkdir(parents=True, exist_ok=True)
    sys.exit(main())
