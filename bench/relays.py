"""CPU time per forwarded chunk: the gateway under both servers, a minimal aiohttp relay, and plain byte copying.

They take turns in one run, so that the state of the machine is the same for all.

usage: relays.py [--streams 20] [--chunks 200] [--gap 0.02] [--rounds 3]
needs uvloop: pip install -e '.[bench]'
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
START_SECONDS = 60.0
RELAYS = ("copying", "minimal", "daphne", "serve")
GATEWAYS = ("daphne", "serve")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextmanager
def process(
    command: Sequence[str | Path], port: int, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs until the block ends; listens when the block begins."""
    with tempfile.TemporaryFile() as log:
        running = subprocess.Popen(command, cwd=HERE.parent, env=env, stdout=log, stderr=log)
        try:
            until = time.monotonic() + START_SECONDS
            while not listens(port):
                if running.poll() is not None or time.monotonic() > until:
                    log.seek(0)
                    sys.exit(f"{command} does not listen:\n{log.read().decode()}")
                time.sleep(0.1)
            yield running
        finally:
            running.terminate()
            running.wait()


def listens(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


def gateway_environment(engine: str, directory: str) -> dict[str, str]:
    """With a strategy, so that streams are guarded. Daphne's log of requests goes to a file, as it would in service."""
    database = f"sqlite:///{directory}/bench.sqlite3"
    env = {
        **os.environ,
        "DOWNSTREAM_URL": engine,
        "CONTINUATION_MODEL": "qwen3.6",
        "CONTINUATION_ENGINE": "vllm",
        "DATABASE_URL": database,
        "SECRET_KEY": "only-for-the-benchmark",
    }
    subprocess.run([sys.executable, "manage.py", "migrate", "-v", "0"], cwd=HERE.parent, env=env, check=True)
    return env


def measured(name: str, engine_port: int, env: Mapping[str, str], streams: int) -> float:
    port = free_port()
    engine = f"http://127.0.0.1:{engine_port}"
    command: list[str | Path] = {
        "copying": [sys.executable, HERE / "copying.py", str(port), str(engine_port)],
        "minimal": [sys.executable, HERE / "minimal.py", str(port), engine],
        "daphne": [
            *(sys.executable, "-m", "daphne", "-b", "127.0.0.1", "-p", str(port)),
            "gatewaysite.asgi:application",
        ],
        "serve": [sys.executable, "manage.py", "serve", "-p", str(port)],
    }[name]
    with process(command, port, env if name in GATEWAYS else None) as relay:
        load(port, 2, relay.pid)  # to warm up
        figures = load(port, streams, relay.pid)
    if figures["broken"]:
        sys.exit(f"{name}: {figures['broken']} streams did not come to their end")
    return figures["cpu_us_per_chunk"]


def load(port: int, streams: int, pid: int) -> dict[str, float]:
    command = [sys.executable, HERE / "load.py", str(port), str(streams), str(pid)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=20, help="at the same time (20)")
    parser.add_argument("--chunks", type=int, default=200, help="per stream (200)")
    parser.add_argument(
        "--gap", type=float, default=0.02, help="seconds between the chunks of a stream (0.02)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="the median counts (3)")
    options = parser.parse_args()
    port = free_port()
    engine = [sys.executable, HERE / "engine.py", str(port), str(options.chunks), str(options.gap)]
    print(f"{options.streams} streams of {options.chunks} chunks, one each {options.gap * 1000:g} ms")
    with tempfile.TemporaryDirectory() as directory, process(engine, port):
        env = gateway_environment(f"http://127.0.0.1:{port}", directory)
        rounds = [
            {name: measured(name, port, env, options.streams) for name in RELAYS}
            for _ in range(options.rounds)
        ]
    for name in RELAYS:
        values = [figures[name] for figures in rounds]
        print(f"{name:8}  {median(values):6.1f} us of CPU per chunk   ({', '.join(map(str, values))})")
    for name in GATEWAYS:
        ratio = median(figures[name] / figures["minimal"] for figures in rounds)
        print(f"the gateway under {name} takes {ratio:.2f} times what the minimal relay takes")


if __name__ == "__main__":
    main()
