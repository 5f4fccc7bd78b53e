"""Python processes that do not import the libraries anew: most of the CPU of a start is that of their imports.

One process for each test process, begun with the first order, has imported libraries and nothing else: no setting has
been read, no thread, event loop or reactor is there, and no module of the gateway. For each order it forks a child,
which does what `python -m NAME`, `python -c PROGRAM` or `python FILE` does, and ends as an interpreter ends. The
nursery ends with its test process, and its children with it.

How an interpreter itself starts, and that a program imports what it needs, is not tested this way: a test that is about
that starts a process of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import random
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
# They and what they import; not what reads settings or the environment, nor what installs a reactor.
LIBRARIES = (
    "aiohttp",
    "autobahn.twisted.websocket",
    "channels.routing",
    "corsheaders.middleware",
    "cryptography.fernet",
    "csp.middleware",
    "django.contrib.admin.sites",
    "django.contrib.auth",
    "django.contrib.messages.middleware",
    "django.contrib.sessions.middleware",
    "django.contrib.staticfiles.finders",
    "django.core.asgi",
    "django.core.cache",
    "django.core.checks",
    "django.core.management",
    "django.core.serializers",
    "django.db.backends.sqlite3.base",
    "django.db.migrations.executor",
    "django.db.models",
    "django.middleware.csrf",
    "django.template.backends.django",
    "django.urls",
    "django.views.generic",
    "environ",
    "httpx",
    "jinja2",
    "orjson",
    "psycopg",
    "pythonjsonlogger.json",
    "redis.asyncio",
    "service_identity",
    "sqlparse",
    "twisted.internet.asyncioreactor",
    "twisted.internet.endpoints",
    "twisted.web.http",
)
FORBIDDEN = ("continuation", "daphne", "gatewaysite", "prometheus_client", "strategies", "tests", "uvicorn")
# What an interpreter, or a library of C, reads of its environment as it starts.
READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "OPENSSL_", "TZ")
# Of those, what each process of the tests is started with.
INTERPRETER = {"PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "default::ResourceWarning"}
LARGEST_ORDER = 2**17


# -- in the test process ---------------------------------------------------------------------------------------------


class Child:
    """As subprocess.Popen has it. Its end is told by the nursery, through a pipe of its own."""

    def __init__(self, args: Sequence[str], told: int) -> None:
        self.args = args
        self.returncode: int | None = None
        self._told = told
        self._lock = threading.Lock()
        self._said = b""
        while b"\n" not in self._said:
            self._hear()
        self.pid = int(self._said.split(b"\n")[0])

    def _hear(self) -> None:
        more = os.read(self._told, 100)
        if not more:
            raise RuntimeError("the nursery has ended")
        self._said += more

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        status = self._ended(None if timeout is None else max(0, round(timeout * 1000)))
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return status

    def _ended(self, milliseconds: int | None) -> int | None:
        with self._lock:
            if self.returncode is None:
                look = select.poll()
                look.register(self._told, select.POLLIN)
                if look.poll(milliseconds):
                    self._hear()
                    self.returncode = int(self._said.split(b"\n")[1])
                    os.close(self._told)
            return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process that forks, as the test process sees it."""

    def __init__(self) -> None:
        env = {
            name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "PYTEST_"))
        }
        env |= INTERPRETER
        self.read_at_start = read_at_start(env)
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._orders.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * LARGEST_ORDER)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                cwd=ROOT,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(
        self, command: Sequence[str], cwd: Path, env: Mapping[str, str], stdin: int, stdout: int, stderr: int
    ) -> Child:
        """command: "-m" and a module, "-c" and a program, or a script; and arguments."""
        told, tell = os.pipe()
        try:
            order = json.dumps({"command": list(command), "cwd": str(cwd), "env": dict(env)}).encode()
            socket.send_fds(self._orders, [order], [stdin, stdout, stderr, tell])
        finally:
            os.close(tell)
        return Child(command, told)

    def end(self) -> None:
        self._orders.close()
        self._process.wait()


Started = Child | subprocess.Popen[bytes]
_nursery: Nursery | None = None
_beginning = threading.Lock()


def read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(READ_AT_START)}


def start_python(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    output: IO[bytes],
    errors: IO[bytes] | None = None,
) -> Started:
    """As Popen([sys.executable, *command]) does, without an input; of the nursery, if `env` allows. errors: go to the
    output unless given."""
    global _nursery
    with _beginning:
        if _nursery is None:
            _nursery = Nursery()
            atexit.register(_nursery.end)
    errors = output if errors is None else errors
    if read_at_start(env) != _nursery.read_at_start:
        return subprocess.Popen(
            [sys.executable, *command],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
        )
    with open(os.devnull, "rb") as nothing:
        return _nursery.start(command, cwd, env, nothing.fileno(), output.fileno(), errors.fileno())


def run_python(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """As subprocess.run([sys.executable, *command], capture_output=True, text=True) does."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        child = start_python(command, cwd=cwd, env=env, output=output, errors=errors)
        try:
            status = child.wait(timeout)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            raise
        told = []
        for file in (output, errors):
            file.seek(0)
            told.append(file.read().decode())
    return subprocess.CompletedProcess([sys.executable, *command], status, *told)


# -- the nursery itself ----------------------------------------------------------------------------------------------


def import_libraries() -> None:
    with warnings.catch_warnings():  # the filters that a library adds are not there in a fresh interpreter
        for name in LIBRARIES:
            with contextlib.suppress(ModuleNotFoundError):  # some are extras
                importlib.import_module(name)
    found = [name for name in sys.modules if name.split(".")[0] in FORBIDDEN]
    assert not found, found
    assert "twisted.internet.reactor" not in sys.modules
    assert threading.active_count() == 1
    gc.collect()
    gc.freeze()  # what is here is garbage in no child


def serve(orders: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """In a child: its order, and its standard descriptors. In the nursery: None, when all is over."""
    tell: dict[int, int] = {}  # where the end of each child is told, by its pid
    with selectors.PollSelector() as waiting:
        waiting.register(orders, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                if key.data is not None:
                    waiting.unregister(key.fd)
                    os.close(key.fd)
                    _tell_end(key.data, tell.pop(key.data))
                    continue
                order, descriptors, _, _ = socket.recv_fds(orders, LARGEST_ORDER, 4)
                if not order:
                    for left, told in tell.items():
                        os.kill(left, signal.SIGKILL)
                        _tell_end(left, told)
                    return None
                *standard, told = descriptors
                pid = os.fork()
                if not pid:
                    return json.loads(order), standard
                tell[pid] = told
                os.write(told, b"%d\n" % pid)
                for descriptor in standard:
                    os.close(descriptor)
                waiting.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)


def _tell_end(pid: int, told: int) -> None:
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(BrokenPipeError):  # nobody wants to know
        os.write(told, b"%d\n" % status)
    os.close(told)


def run(order: dict[str, Any], standard: list[int]) -> None:
    """In a child: what an interpreter does with its command line."""
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    random.seed()
    sys.path[0] = order["cwd"]
    first, *rest = order["command"]
    if first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.modules["__main__"] = program = ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), program.__dict__)
    else:
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")


def main() -> None:
    sys.path[0] = str(ROOT)  # not this folder, in which `redis` is another module
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the nursery ends when the tests have
    import_libraries()
    with socket.socket(fileno=int(sys.argv[1])) as orders:
        ordered = serve(orders)
    if ordered is not None:
        run(*ordered)


if __name__ == "__main__":
    main()
