"""The JavaScript client's folder is a package of its own: npm installs it, and it is imported by its name."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.clients.places import ROOT, node, npm

pytestmark = pytest.mark.clients

FOLDER = ROOT / "continuation" / "static" / "continuation"
PROGRAM = """
import * as all from "resumable-stream";
console.log(JSON.stringify(Object.keys(all).sort()));
"""


def run(command: list[str], place: Path) -> str:
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_npm_installs_the_folder_with_its_types_and_node_imports_it_by_name(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text(json.dumps({"name": "page", "private": True, "type": "module"}))
    run([*npm(), "install", "--offline", "--no-audit", "--no-fund", "--install-links", str(FOLDER)], tmp_path)
    (tmp_path / "page.mjs").write_text(PROGRAM)
    names = json.loads(run([str(node()), "page.mjs"], tmp_path))
    assert names == ["EventParser", "ResumableStream", "StreamError", "backoff", "inStorage", "retryAfter"]
    installed = tmp_path / "node_modules" / "resumable-stream"
    types = (installed / "resumable.d.ts").read_text()
    assert all(f" {name}" in types for name in names)
    assert not (installed / "playground.js").exists()
