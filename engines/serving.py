"""What the two serve scripts share: start a server, wait until it answers, say so, and take all of it down again."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def engines_dir() -> Path:
    """Where environments and models are: ENGINES_DIR, else .engines in this checkout."""
    return Path(os.environ.get("ENGINES_DIR") or HERE.parent / ".engines").resolve()


def arguments(
    engine: str, title: str, description: str | None, defaults: Mapping[str, str]
) -> argparse.ArgumentParser:
    """What both serve scripts take. engine: its directory; title: how people call it; defaults: of its parsers."""
    parser = argparse.ArgumentParser(
        description=(description or "").splitlines()[0], epilog=f"What follows -- is handed on to {title}."
    )
    parser.add_argument("model", type=Path, help="a directory, such as tiny_model.py makes")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--name", help="the model's name for clients (the directory's)")
    parser.add_argument("--python", default=str(engines_dir() / engine / "bin" / "python"))
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", default=default, help="empty for none")
    parser.add_argument("--log", type=Path, help="where the server's output goes (standard error)")
    parser.add_argument("--patience", type=float, default=300, help="seconds until it must answer")
    parser.add_argument(
        "--with-parent", action="store_true", help="end when the process that started this ends"
    )
    return parser


def serve(
    parser: argparse.ArgumentParser,
    command: Callable[[argparse.Namespace], list[str]],
    environment: Mapping[str, str],
    titles: Mapping[str, bytes],
) -> int:
    """Run the command for what the command line says; the rest is as for `run`."""
    own, more = split_at_dashes(sys.argv[1:])
    args = parser.parse_args(own)
    args.name = args.name or args.model.resolve().name
    words = [*command(args), *more]
    return run(words, environment, args.port, args.name, titles, args.log, args.patience, args.with_parent)


def split_at_dashes(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """What comes before the first --, and what after it."""
    at = list(words).index("--") if "--" in words else len(words)
    return list(words[:at]), list(words[at + 1 :])


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    port: int,
    model: str,
    titles: Mapping[str, bytes],
    log: Path | None,
    patience: float,
    with_parent: bool = False,
) -> int:
    """Serve until SIGTERM or SIGINT, or until the server ends by itself; the exit status.

    One line is written to standard output when the server answers:
        READY {"url": ..., "model": ..., "seconds": ..., "pids": {"main": ..., one for each of `titles`}}
    titles: what a process of the server is called here, and a part of its command line.
    with_parent: end too when the process that started this one has ended.
    """
    parent = os.getppid()
    if _healthy(port):
        sys.exit(f"something answers on port {port} already")
    started = time.monotonic()
    output = log.open("wb") if log else sys.stderr
    server = subprocess.Popen(
        command,
        env={**environment, **os.environ},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
    asked: list[int] = []

    def pass_on(number: int, _frame: Any) -> None:
        asked.append(number)
        if server.poll() is None:
            server.send_signal(signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    try:
        while server.poll() is None and not asked and not _healthy(port):
            if time.monotonic() - started > patience:
                print(f"no answer on port {port} within {patience:.0f} s", file=sys.stderr)
                return 1
            time.sleep(0.2)
        if server.poll() is None and not asked:
            ready = {
                "url": f"http://127.0.0.1:{port}",
                "model": model,
                "seconds": round(time.monotonic() - started, 1),
                "pids": {"main": server.pid, **_named(server.pid, titles)},
            }
            print("READY", json.dumps(ready), flush=True)
        while (status := _waited(server)) is None:
            if with_parent and os.getppid() != parent:
                return 1
        return 0 if asked else status if status >= 0 else 128 - status
    finally:
        _end(server)


def _waited(server: subprocess.Popen[bytes]) -> int | None:
    try:
        return server.wait(1)
    except subprocess.TimeoutExpired:
        return None


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _named(main: int, titles: Mapping[str, bytes]) -> dict[str, int]:
    """Pids of the processes below `main`, by what is in their command lines."""
    found: dict[str, int] = {}
    for pid in _descendants(main):
        try:
            title = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        found |= {name: pid for name, part in titles.items() if part in title}
    return found


def _descendants(pid: int) -> list[int]:
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(word) for each in threads for word in (each / "children").read_text().split()]
    except OSError:
        return []
    return children + [below for child in children for below in _descendants(child)]


def _end(server: subprocess.Popen[bytes]) -> None:
    """Also what a killed server has left behind: its other processes outlive it. The group is our own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()
