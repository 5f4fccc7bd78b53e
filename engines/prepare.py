#!/usr/bin/env python3
"""Install what is missing of the engines, and train what is missing of the tiny models: `prepare.py [vllm] [sglang]`.

With --try each engine is also started once, for a machine may have all the packages and still not run them.

Everything goes into .engines in this checkout, or into the directory that ENGINES_DIR names:

    vllm/, sglang/              environments: 3.5 and 2.8 GB, some minutes each
    tiny/, tiny-k3/, tiny-ds4/  models: trained anew when the scripts that make them have changed

Ends with 0 when all is there, else with 75 and one line that says what could not be had and why.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from engines.serving import HERE, engines_dir

# GiB: what two engines at a time and the tests need beside each other, and what the environments take.
MEMORY, DISK = 7, {"vllm": 4.5, "sglang": 3.5}
TRIAL_SECONDS = 300
NOT_TO_BE_HAD = 75  # EX_TEMPFAIL
ENGINES = ("vllm", "sglang")
MADE_BY = "made-by.sha256"
MODELS = {
    "tiny": (["tiny_model.py"], ["dialogues.py", "tiny_model.py", "qwen_like.jinja"]),
    "tiny-k3": (
        ["variants.py", "k3"],
        ["dialogues.py", "tiny_model.py", "variants.py", "tokenization_xtml.py"],
    ),
    "tiny-ds4": (["variants.py", "ds4"], ["dialogues.py", "tiny_model.py", "variants.py"]),
}


class Missing(Exception):
    """Something that could not be installed or made."""


def main() -> int:
    tried = "--try" in sys.argv
    wanted = [word for word in sys.argv[1:] if word != "--try"] or list(ENGINES)
    if unknown := [name for name in wanted if name not in ENGINES]:
        sys.exit(f"unknown: {', '.join(unknown)}; known are {', '.join(ENGINES)}")
    directory = engines_dir()
    directory.mkdir(parents=True, exist_ok=True)
    try:
        look_at_memory()
        for name in wanted:
            install(name, directory)
        models = MODELS if "vllm" in wanted else ["tiny"]  # DeepSeek-V4's renderer is vLLM's
        for name in models:
            make(name, directory, directory / wanted[0] / "bin" / "python")
        for name in wanted if tried else ():
            try_out(name, directory)
    except Missing as reason:
        print(f"engines: {reason}", file=sys.stderr)
        return NOT_TO_BE_HAD
    return 0


def look_at_memory() -> None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        raise Missing("real engines are run on Linux only") from None
    free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) / 2**20
    if free < MEMORY:
        raise Missing(f"two engines at a time need {MEMORY} GiB of memory, and {free:.1f} are available")


def install(name: str, directory: Path) -> None:
    """Once; afterwards it is only looked whether it is there."""
    python = directory / name / "bin" / "python"
    if _runs(python, f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is None)"):
        return
    free = shutil.disk_usage(directory).free / 2**30
    if free < DISK[name]:
        raise Missing(f"{name} takes {DISK[name]} GiB, and {free:.1f} are free in {directory}")
    print(f"engines: installing {name} into {directory / name}, once; this takes some minutes", flush=True)
    shutil.rmtree(directory / name, ignore_errors=True)
    script = HERE / name / "install.sh"
    done = subprocess.run(
        [script, directory / name], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    shim = {"PYTHONPATH": str(HERE / name / "shim"), "SGLANG_USE_CPU_ENGINE": "1"}
    if done.returncode or not _runs(python, f"import torch, {name}", shim):
        shutil.rmtree(directory / name, ignore_errors=True)
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise Missing(f"{name} cannot be installed here: {lines[-1] if lines else 'it does not import'}")


def _runs(python: Path, code: str, more: dict[str, str] | None = None) -> bool:
    if not python.exists():
        return False
    environment = {**os.environ, **(more or {})}
    done = subprocess.run(
        [python, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, env=environment
    )
    return done.returncode == 0


def make(name: str, directory: Path, python: Path) -> None:
    """Made beside its place and put there in one step, so that whoever has the old files open keeps them."""
    script, sources = MODELS[name]
    digest = hashlib.sha256()
    for source in sources:
        digest.update((HERE / source).read_bytes())
    place, mark = directory / name, digest.hexdigest()
    if (place / MADE_BY).is_file() and (place / MADE_BY).read_text() == mark:
        return
    print(f"engines: training {name}, once; about half a minute", flush=True)
    new, old = directory / f"{name}.new", directory / f"{name}.old"
    for each in (new, old):
        shutil.rmtree(each, ignore_errors=True)
    done = subprocess.run(
        [python, HERE / script[0], *script[1:], new],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    if done.returncode:
        raise Missing(f"{name} could not be made: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    (new / MADE_BY).write_text(mark)
    if place.exists():
        place.rename(old)
    new.rename(place)
    shutil.rmtree(old, ignore_errors=True)


def try_out(name: str, directory: Path) -> None:
    """Raises Missing if it does not answer in time."""
    print(f"engines: trying whether {name} runs here", flush=True)
    with tempfile.TemporaryDirectory() as place, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
        free.close()
        log = Path(place) / "log"
        command = [sys.executable, HERE / f"serve_{name}.py", directory / "tiny", "--port", port]
        server = subprocess.Popen(
            [*command, "--log", log, "--patience", str(TRIAL_SECONDS), "--with-parent"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert server.stdout
        ready = server.stdout.readline().startswith("READY ")
        server.terminate()
        server.communicate()
        said = log.read_text(errors="replace").strip().splitlines() if log.is_file() else []
    if not ready:
        raise Missing(
            f"{name} is installed, but does not start here: {said[-1] if said else 'it says nothing'}"
        )


if __name__ == "__main__":
    sys.exit(main())
