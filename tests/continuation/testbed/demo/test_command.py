"""The demo as a user runs it, and the parts that say what is true."""

import contextlib
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from django.conf import settings

from continuation.management.commands.demo import INTERRUPTED
from continuation.testbed.demo.answers import SeamMark, WatchedAnswer, _leg, seam_of
from continuation.testbed.demo.play import BROKEN
from continuation.testbed.demo.screen import CYAN, GREEN, Screen, width
from continuation.testbed.processes import CannotGoOn, Child, environment, run
from tests.harness.nursery import INTERPRETER, run_python

COMMAND = ["manage.py", "demo", "--token-delay-ms", "1"]
DEMO = [sys.executable, *COMMAND]
PATIENCE = 120
PORT = re.compile(r"http://127\.0\.0\.1:(\d+)")


def played(*options: str, **changes: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, **INTERPRETER, **changes}
    return run_python([*COMMAND, *options], cwd=settings.BASE_DIR, env=env, timeout=PATIENCE)


def listens(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


def read_until(file: int, wanted: str) -> str:
    """What a terminal shows until `wanted` is there, or until nothing comes any more."""
    seen, until = b"", time.monotonic() + PATIENCE
    while wanted not in seen.decode("utf-8", "replace"):
        ready, _, _ = select.select([file], [], [], max(0, until - time.monotonic()))
        try:
            more = os.read(file, 65536) if ready else b""
        except OSError:  # the other side is closed
            more = b""
        if not more:
            break
        seen += more
    return seen.decode("utf-8", "replace")


# -- as a whole ------------------------------------------------------------------------------------


# Of an operator's shell: none of it may reach the demo.
HOSTILE = {
    "CONTINUATION_ENABLED": "false",
    "STALL_IDLE_TIMEOUT_SECONDS": "300",
    "CONTINUATION_URL": "http://127.0.0.1:9",
    "GATEWAY_ROLE": "admin",
}


@pytest.mark.parametrize(("engine", "shell"), [("vllm", {}), ("sglang", HOSTILE)])
def test_once_it_ends_by_itself_with_every_broken_answer_equal_to_the_uninterrupted_one(
    engine: str, shell: dict[str, str]
) -> None:
    done = played("--once", "--engine", engine, **shell)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("equals the uninterrupted answer") == len(BROKEN)
    assert done.stdout.count("leg 1 ended here; leg 2 goes on") == len(BROKEN)
    assert "NOT" not in done.stdout
    assert re.search(r"demo-stall +idle_timeout +content-done +rescued", done.stdout)
    assert re.search(r"demo-thinking +disconnect +thinking-partial +rescued", done.stdout)
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


def test_a_wrong_strategy_shows_and_ends_with_status_1() -> None:
    done = played("--once", "--model", "generic")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "NOT equal: The stream was interrupted" in done.stdout
    assert "Not all broken answers equal" in done.stdout


def test_in_a_terminal_it_is_coloured_stays_until_ctrl_c_and_leaves_nothing_running(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "TMPDIR": str(tmp_path)}
    env.pop("NO_COLOR", None)
    demo = subprocess.Popen(DEMO, cwd=settings.BASE_DIR, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        shown = read_until(ours, "Ctrl-C stops both.")
        assert f"\x1b[{CYAN}m" in shown
        assert f"\x1b[{GREEN}m" in shown
        login = re.search(r"(http\S+/admin/)\s+user (\w+), password (\w+)", shown)
        assert login is not None, shown
        assert logs_in(*login.groups())
        ports = {int(port) for port in PORT.findall(shown)}
        assert len(ports) == 2
        assert all(listens(port) for port in ports)
        demo.send_signal(signal.SIGINT)
        assert "Stopped." in read_until(ours, "Stopped.")
        assert demo.wait(PATIENCE) == 0
        assert not any(listens(port) for port in ports)
        assert our_directories(tmp_path) == []
    finally:
        demo.kill()
        demo.wait()
        os.close(ours)


def logs_in(admin: str, user: str, password: str) -> bool:
    with httpx.Client(trust_env=False, follow_redirects=True) as browser:
        form = browser.get(admin)
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', form.text)
        assert token is not None
        sent = {"username": user, "password": password, "csrfmiddlewaretoken": token[1]}
        page = browser.post(str(form.url), data=sent, headers={"Referer": str(form.url)})
        return "Site administration" in page.text and "Continuation events" in page.text


def test_sigterm_in_the_middle_ends_it_and_leaves_nothing_running(tmp_path: Path) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [*DEMO, "--token-delay-ms", "1000"]
    demo = subprocess.Popen(command, cwd=settings.BASE_DIR, env=env, stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    try:
        while "An uninterrupted answer" not in (line := demo.stdout.readline()):
            assert line
        assert our_directories(tmp_path)
        demo.terminate()
        assert demo.wait(PATIENCE) == INTERRUPTED
        assert our_directories(tmp_path) == []
        assert processes_that_name(tmp_path) == []
    finally:
        demo.kill()
        demo.wait()
        demo.stdout.close()


def our_directories(temporary: Path) -> list[Path]:
    return list(temporary.glob("continuation-demo-*"))


def processes_that_name(directory: Path) -> list[int]:
    """Pids of those whose environment names the directory: the gateway, by its database."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if str(directory).encode() in environ.read_bytes():
                found.append(int(environ.parent.name))
    return found


def test_no_color_is_respected_in_a_terminal() -> None:
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "NO_COLOR": "1"}
    demo = subprocess.Popen([*DEMO, "--once"], cwd=settings.BASE_DIR, env=env, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        shown = read_until(ours, "equals the uninterrupted answer")
        assert "leg 2 goes on" in shown
        assert "\x1b" not in shown
    finally:
        demo.terminate()
        demo.wait(PATIENCE)
        os.close(ours)


# -- its children ----------------------------------------------------------------------------------


def test_a_child_that_does_not_start_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    code = "print('\\n'.join(f'line {n}' for n in range(40))); raise SystemExit('the port is cursed')"
    child = Child("gateway", [sys.executable, "-c", code], environment({}), tmp_path)
    with pytest.raises(CannotGoOn) as told:
        child.wait_until(lambda: False)
    assert "the gateway ended with status 1" in str(told.value)
    assert str(told.value).endswith("the port is cursed")
    assert "line 39" in str(told.value)
    assert "line 0\n" not in str(told.value)


def test_a_child_that_is_never_ready_is_given_up(tmp_path: Path) -> None:
    child = Child("gateway", [sys.executable, "-c", "import time; time.sleep(60)"], environment({}), tmp_path)
    try:
        with pytest.raises(CannotGoOn, match=r"was not ready within 0\.1 s"):
            child.wait_until(lambda: False, seconds=0.1)
    finally:
        child.stop()
    assert not child.is_running


def test_a_command_that_fails_is_told_with_its_output() -> None:
    with pytest.raises(CannotGoOn, match=r"migrate ended with status 3.*\n  no room"):
        run("migrate", [sys.executable, "-c", "print('no room'); raise SystemExit(3)"], environment({}))


def test_a_child_gets_no_setting_but_those_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTINUATION_ENABLED", "false")
    monkeypatch.setenv("SECRET_KEY_FILE", "/nowhere")
    monkeypatch.setenv("DATABASE_URL", "postgres://elsewhere/db")
    monkeypatch.setenv("UNRELATED", "kept")
    env = environment({"DOWNSTREAM_URL": "http://here"})
    assert (env["CONTINUATION_ENABLED"], env["SECRET_KEY_FILE"], env["DATABASE_URL"]) == ("", "", "")
    assert (env["UNRELATED"], env["DOWNSTREAM_URL"]) == ("kept", "http://here")


# -- where the seam is -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "seam"),
    [
        ({"reasoning": "Hm.\n", "content": "\n\nYes"}, SeamMark(4, 5)),
        ({"reasoning_content": "Hm.", "content": ""}, SeamMark(3, 0)),
        ({"content": "<think>Hm.</think>Yes"}, SeamMark(3, 3)),
        ({"content": "Hm.\n</think>\n\nYes"}, SeamMark(4, 5)),
        ({"content": "<think>Hm"}, SeamMark(2, 0)),
    ],
)
def test_the_seam_is_read_from_the_continuation_request(message: dict[str, str], seam: SeamMark) -> None:
    assert seam_of(message) == seam


def test_characters_up_to_the_seam_are_leg_1s_and_the_others_leg_2s() -> None:
    answer = WatchedAnswer("r", reasoning="Hm.", content="Y", seam=SeamMark(3, 2))
    assert _leg(answer, "content") == 1
    answer.content = "Ye"
    assert _leg(answer, "content") == 2
    assert _leg(answer, "reasoning") == 2
    answer.seam = None
    assert _leg(answer, "content") == 1


def test_an_answer_is_whole_only_with_one_ending_a_finish_and_no_error() -> None:
    assert WatchedAnswer("r", finish="stop", endings=1).whole
    assert not WatchedAnswer("r", finish="stop", endings=2).whole
    assert not WatchedAnswer("r", finish="", endings=1).whole
    assert not WatchedAnswer("r", finish="stop", endings=1, error="no").whole
    assert not WatchedAnswer("r", content="a", finish="stop").equals(
        WatchedAnswer("q", content="b", finish="stop")
    )


# -- the screen ------------------------------------------------------------------------------------


def drawn(pieces: list[str], columns: int) -> list[str]:
    out: list[str] = []
    screen = Screen(out.append, columns, colour=False)
    for piece in pieces:
        screen.stream(piece)
    screen.end_text()
    return "".join(out).split("\n")


@pytest.mark.parametrize("columns", [40, 80, 120, 300])
def test_no_line_is_wider_than_the_terminal_and_nothing_but_a_break_is_changed(columns: int) -> None:
    text = (
        "A stream is a row of small pieces. 数据流由片段组成，每个片段都和river有关。🌊🚀 " * 12 + "x" * 300
    )
    lines = drawn([text[start : start + 7] for start in range(0, len(text), 7)], columns)
    assert max(map(width, lines)) < columns
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_the_same_text_is_drawn_alike_however_it_is_cut() -> None:
    text = "One two three.\n\n\tfour, 五六七 eight.\n" * 9
    assert drawn([text], 60) == drawn(list(text), 60)


def test_styles_end_with_each_line() -> None:
    out: list[str] = []
    screen = Screen(out.append, 80, colour=True)
    screen.stream("one\ntwo", CYAN)
    assert "".join(out) == f"\x1b[{CYAN}m    one\x1b[0m\n\x1b[{CYAN}m    two\x1b[0m"
