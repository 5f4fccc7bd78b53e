"""What cannot be installed is told in one line, and nothing half made is left. Runs with all other tests."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.clients.places import HERE

NOT_TO_BE_HAD = 75
SECONDS = 120


def prepared(directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Nothing can be had: pip is not to look anywhere."""
    env = {**os.environ, "CLIENTS_DIR": str(directory), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(directory)}
    return subprocess.run(
        [sys.executable, str(HERE / "prepare.py")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**env, **environment},
    )


def test_what_pip_cannot_have_is_told_in_one_line(tmp_path: Path) -> None:
    done = prepared(tmp_path, PATH=path_with_curl(tmp_path))
    assert done.returncode == NOT_TO_BE_HAD
    (line,) = done.stderr.splitlines()
    assert line.startswith("clients: the Python clients and node cannot be installed: ERROR: ")
    assert not (tmp_path / "python").exists()


def test_a_machine_without_curl_is_told_in_one_line(tmp_path: Path) -> None:
    done = prepared(tmp_path, PATH=str(tmp_path))
    assert done.returncode == NOT_TO_BE_HAD
    assert done.stderr == "clients: curl is not installed\n"


def path_with_curl(directory: Path) -> str:
    """Whether there is one here must not decide."""
    curl = directory / "bin" / "curl"
    curl.parent.mkdir()
    curl.write_text("#!/bin/sh\n")
    curl.chmod(0o755)
    return f"{curl.parent}{os.pathsep}{os.environ['PATH']}"


def test_every_client_is_pinned_exactly() -> None:
    lines = (HERE / "requirements.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9a-z.]+", pin)] == []
    wanted = json.loads((HERE / "package.json").read_text())["dependencies"]
    locked = json.loads((HERE / "package-lock.json").read_text())["packages"]
    assert {name: locked[f"node_modules/{name}"]["version"] for name in wanted} == wanted
    assert all("integrity" in package for name, package in locked.items() if name)
