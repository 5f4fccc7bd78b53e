"""The client's folder is a package of its own: pip installs it, and it reads a stream without the gateway's code."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.harness.gateway import ROOT
from tests.harness.upstream import Reply, Send, Upstream

FOLDER = ROOT / "continuation" / "clients" / "resumable"
PROGRAM = """
import sys
from resumable import stream_chat

with stream_chat(sys.argv[1], {"messages": []}) as stream:
    print(*(event.data["n"] for event in stream))
print(*(name for name in sys.modules if name.split(".")[0] in ("continuation", "django", "strategies")))
"""


def test_pip_installs_the_folder_and_the_package_reads_a_stream(tmp_path: Path, upstream: Upstream) -> None:
    source, place = tmp_path / "source", tmp_path / "place"
    shutil.copytree(FOLDER, source, ignore=shutil.ignore_patterns("__pycache__"))
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", str(place), str(source)]
    done = subprocess.run(
        [sys.executable, *install], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    upstream.script(Reply([Send(b'data: {"n": 1}\n\ndata: {"n": 2}\n\ndata: [DONE]\n\n')]))
    environment = {**os.environ, "PYTHONPATH": str(place)}
    asked = subprocess.run(
        [sys.executable, "-c", PROGRAM, upstream.url],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (asked.returncode, asked.stderr) == (0, "")
    assert asked.stdout.splitlines() == ["1 2", ""]
