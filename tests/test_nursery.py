"""What the tests start by tests/harness/nursery.py is as if an interpreter of its own had been started."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.nursery import FORBIDDEN, INTERPRETER, Child, Nursery, run_python, start_python

SELF = """
import gc, json, os, random, resource, signal, sys, threading, warnings
print(json.dumps({
    "argv": sys.argv, "path": sys.path, "name": __name__, "file": os.path.abspath(globals().get("__file__", "")),
    "is main": sys.modules["__main__"].__dict__ is globals(), "cwd": os.getcwd(),
    "variables": sorted(os.environ.items()), "input": sys.stdin.read(),
    "descriptors": sorted(os.listdir("/proc/self/fd"))[:-1],
    "signals": {number: repr(signal.getsignal(number)) for number in range(1, 32)},
    "warnings": [one[0] + one[2].__name__ for one in warnings.filters], "options": sys.warnoptions,
    "streams": [(one.encoding, one.errors, one.write_through, one.line_buffering) for one in (sys.stdout, sys.stderr)],
    "threads": threading.active_count(), "limits": resource.getrlimit(resource.RLIMIT_NOFILE),
}))
"""
ENDS: dict[str, tuple[str, int]] = {
    "by itself": ("", 0),
    "with a status": ("import sys; sys.exit(3)", 3),
    "with a message": ("import sys; sys.exit('no')", 1),
    "with an exception": ("1 / 0", 1),
    "by a signal": ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
    "by an interrupt": ("raise KeyboardInterrupt", -signal.SIGINT),
}


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def written(text: str) -> str:
        (tmp_path / "script.py").write_text(text)
        return "script.py"

    return written


@pytest.fixture
def env() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "STRANGE": "ä\n", **_of_the_start(), **INTERPRETER}


def _of_the_start() -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if name.startswith(("PYTHON", "LC_", "LANG", "TZ"))
    }


@pytest.mark.parametrize("form", ["script", "module", "program"])
def test_a_child_is_what_a_fresh_interpreter_is(
    form: str, tmp_path: Path, script: Callable[[str], str], env: dict[str, str]
) -> None:
    written = script(SELF)
    what = {"script": [written], "module": ["-m", written[:-3]], "program": ["-c", SELF]}
    command = [*what[form], "a", "-b"]
    fresh = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    child = run_python(command, cwd=tmp_path, env=env, timeout=30)
    assert (child.returncode, child.stderr) == (fresh.returncode, fresh.stderr) == (0, "")
    assert _comparable(child.stdout) == _comparable(fresh.stdout)


def _comparable(told: str) -> dict[str, Any]:
    """A script's folder is its own path's: absolute of a child, and else as the command line has it."""
    found: dict[str, Any] = json.loads(told)
    found["path"][0] = os.path.join(found["cwd"], found["path"][0]).rstrip("/")
    return found


def test_it_has_only_libraries(tmp_path: Path, script: Callable[[str], str], env: dict[str, str]) -> None:
    told = run_python(
        [script("import sys; print(*sys.modules)")], cwd=tmp_path, env=env, timeout=30
    ).stdout.split()
    assert {"django.db.models", "aiohttp", "twisted.web.http"} <= set(told)
    assert not [name for name in told if name.split(".")[0] in FORBIDDEN]
    assert "twisted.internet.reactor" not in told


def test_another_interpreter_is_asked_for_by_the_environment(
    tmp_path: Path, script: Callable[[str], str], env: dict[str, str]
) -> None:
    command = [script("import sys; print(sys.flags.dev_mode, 'django' in sys.modules)")]
    done = run_python(command, cwd=tmp_path, env=env | {"PYTHONDEVMODE": "1"}, timeout=30)
    assert done.stdout == "True False\n"


@pytest.mark.parametrize("end", ENDS)
def test_its_end_is_told(end: str, tmp_path: Path, script: Callable[[str], str], env: dict[str, str]) -> None:
    text, status = ENDS[end]
    done = run_python([script(text)], cwd=tmp_path, env=env, timeout=30)
    assert done.returncode == status
    assert ("ZeroDivisionError" in done.stderr) == (end == "with an exception")


@pytest.fixture
def waiting(tmp_path: Path, script: Callable[[str], str], env: dict[str, str]) -> Iterator[Child]:
    """It writes to its output at once, and ends at a signal alone."""
    command = [script("import time\nprint('here', end='')\ntime.sleep(600)")]
    with (tmp_path / "output").open("wb") as output:
        child = start_python(command, cwd=tmp_path, env=env, output=output)
    while not (tmp_path / "output").read_text():
        assert child.poll() is None
    assert isinstance(child, Child)
    yield child
    child.kill()
    child.wait(10)


def test_it_can_be_waited_for_and_sent_signals(waiting: Child) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(0.01)
    assert waiting.poll() is None
    waiting.send_signal(signal.SIGTERM)
    assert waiting.wait(10) == waiting.poll() == waiting.returncode == -signal.SIGTERM
    waiting.send_signal(signal.SIGTERM)  # there is nobody, and that is no error


def test_no_process_is_left(tmp_path: Path, script: Callable[[str], str], env: dict[str, str]) -> None:
    nursery = Nursery()
    with open(os.devnull, "r+b") as nothing:
        child = nursery.start(
            [script("import time; time.sleep(600)")], tmp_path, env, *[nothing.fileno()] * 3
        )
    assert child.poll() is None
    nursery.end()
    assert child.wait(10) == -signal.SIGKILL
