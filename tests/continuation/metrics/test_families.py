"""The figures: what is noted is told, in forms that Prometheus reads; and the sum of several processes."""

import ast
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from continuation.metrics import families, noting, processes
from continuation.resume.log import Held
from continuation.splice.record import StreamRecord
from continuation.vocabulary import Failure, Outcome, PassReason, Reason, Route
from tests.harness import pages
from tests.harness.figures import Figures, figures, key, moved
from tests.harness.figures import families as families_in
from tests.harness.gateway import ROOT, environment

PATIENCE = 60.0


def told(accept: str = "") -> Figures:
    body, content_type = processes.told(accept)
    return figures(body.decode(), content_type)


def observed(name: str, seconds: float, before: Figures, after: Figures) -> None:
    """One observation, in each bucket from its own up, and nothing else."""
    change = moved(before, after)
    assert change.pop((f"{name}_sum", ())) == pytest.approx(seconds)
    assert change.pop((f"{name}_count", ())) == 1
    buckets = {float(dict(labels)["le"]) for (part, labels) in after if part == f"{name}_bucket"}
    assert change == {
        (f"{name}_bucket", (("le", dict(labels)["le"]),)): 1
        for (part, labels) in after
        if part == f"{name}_bucket" and float(dict(labels)["le"]) >= seconds
    }
    assert min(buckets) < seconds < max(buckets - {float("inf")}), "a bucket on either side"


def record(**changes: Any) -> StreamRecord:
    return StreamRecord(datetime.now(UTC), "r", "m", **changes)


# -- noting ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "note, name, labels",
    [
        (lambda: noting.planned(families.GUARDED), "chat_requests", {"plan": "guarded"}),
        (lambda: noting.planned(PassReason.NO_STRATEGY), "chat_requests", {"plan": "no_strategy"}),
        (lambda: noting.refused("not_found"), "refused_requests", {"code": "not_found"}),
        (lambda: noting.audit_rows(written=1), "audit_rows", {"state": "written"}),
        (lambda: noting.audit_rows(lost=1), "audit_rows", {"state": "lost"}),
        *[
            (lambda word=word: noting.resumable(word), "resumable_streams", {"outcome": word})
            for word in families.RESUMABLE_OUTCOMES
        ],
        *[
            (lambda word=word: noting.resumed(word), "resumes", {"outcome": word})
            for word in families.RESUME_OUTCOMES
        ],
        *[
            (lambda word=word: noting.token_issued(word), "resume_tokens_issued", {"kind": word})
            for word in families.TOKEN_KINDS
        ],
        *[
            (lambda word=word: noting.token_used(word), "resume_tokens_used", {"kind": word})
            for word in families.TOKEN_KINDS
        ],
        *[
            (lambda word=word: noting.takeover(word), "takeovers", {"outcome": word})
            for word in families.TAKEOVER_OUTCOMES
        ],
        (
            lambda: noting.stream_ended(None),
            "streams",
            {"outcome": "unbroken", "failure": "", "reason": "", "route": ""},
        ),
        (
            lambda: noting.stream_ended(
                record(
                    outcome=str(Outcome.FAILED),
                    failure=str(Failure.EOF),
                    reason=str(Reason.LEG2_REFUSED),
                    route=str(Route.CARRIED_IDS),
                )
            ),
            "streams",
            {"outcome": "failed", "failure": "eof", "reason": "leg2_refused", "route": "carried-ids"},
        ),
    ],
)
def test_what_is_counted_is_told_and_nothing_else_moves(
    note: Callable[[], None], name: str, labels: dict[str, str]
) -> None:
    before = told()
    note()
    assert moved(before, told()) == {key(f"continuation_{name}_total", **labels): 1}


@pytest.mark.parametrize(
    "note, name, seconds",
    [
        (noting.first_event, "first_event", 0.8),
        (noting.leg2_first_byte, "leg2_first_byte", 7.0),
        (noting.resume_first_event, "resume_first_event", 0.004),
        (noting.resume_live, "resume_live", 0.07),
        (noting.appended, "log_append", 0.00008),
        (noting.appended, "log_append", 0.09),
    ],
)
def test_what_takes_time_is_told_in_buckets(note: Callable[[float], None], name: str, seconds: float) -> None:
    before = told()
    note(seconds)
    observed(f"continuation_{name}_seconds", seconds, before, told())


def test_a_rescued_stream_tells_its_seam_gap() -> None:
    ended = record(outcome=str(Outcome.RESCUED), failure=str(Failure.DISCONNECT), seam_gap_seconds=1.5)
    before = told()
    noting.stream_ended(ended)
    after = told()
    assert (
        moved(before, after).pop(
            (
                "continuation_streams_total",
                (("failure", "disconnect"), ("outcome", "rescued"), ("reason", ""), ("route", "")),
            )
        )
        == 1
    )
    assert (
        after[("continuation_seam_gap_seconds_count", ())]
        == 1 + before[("continuation_seam_gap_seconds_count", ())]
    )


def test_generations_are_those_of_now() -> None:
    for running, detached in ((3, 1), (2, 2), (0, 0)):
        noting.generations(running, detached)
        now = told()
        assert now[("continuation_generations", ())] == running
        assert now[("continuation_generations_without_reader", ())] == detached


def test_the_log_is_told_as_it_is_now_and_its_growth_goes_on_over_a_new_log() -> None:
    before = told()
    watch, held = noting.Watch(), Held(streams=2, events=7, bytes=700, events_appended=9, bytes_appended=900)
    watch.look_at(lambda: held)
    watch.note()
    now = told()
    assert [now[(f"continuation_log_{what}", ())] for what in ("streams", "events", "bytes")] == [2, 7, 700]
    held.events_appended, held.bytes, held.bytes_appended = 11, 0, 1000
    watch.note()
    assert told()[("continuation_log_bytes", ())] == 0
    watch.look_at(lambda: Held(events_appended=1, bytes_appended=50))
    watch.note()
    change = moved(before, told())
    assert change == {
        ("continuation_log_events_appended_total", ()): 12,
        ("continuation_log_bytes_appended_total", ()): 1050,
    }


def test_nothing_that_is_noted_raises_and_the_first_trouble_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(noting, "_complained", False)

    def away() -> Held:
        raise OSError("no log")

    watch = noting.Watch()
    watch.look_at(away)
    watch.note()
    wrong: Any = "soon"
    noting.appended(wrong)
    noting.stream_ended(wrong)
    noting.generations(wrong, wrong)
    noting.audit_rows(written=-1)
    assert told()
    assert [entry.message for entry in caplog.records] == ["the metrics are not whole any more"]


def test_threads_that_note_and_tell_at_once_lose_nothing() -> None:
    before = told()
    watch, held = noting.Watch(), Held()
    watch.look_at(lambda: held)

    def note() -> None:
        for _ in range(500):
            noting.resumed("ok")
            held.bytes_appended += 1 if threading.current_thread() is threads[0] else 0
            if not _ % 50:
                watch.note()
                told()

    threads = [threading.Thread(target=note) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    watch.note()
    change = moved(before, told())
    assert change[("continuation_resumes_total", (("outcome", "ok"),))] == 2000
    assert change[("continuation_log_bytes_appended_total", ())] == 500


# -- telling ---------------------------------------------------------------------------------------

PLAIN = "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
OPENMETRICS = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5," + PLAIN


def test_both_forms_are_what_prometheus_reads_and_tell_the_same() -> None:
    noting.stream_ended(record(outcome="rescued", failure="eof", route="chat-continue", seam_gap_seconds=2.0))
    plain, plain_type = processes.told(PLAIN)
    open_, open_type = processes.told(OPENMETRICS)
    assert plain_type.startswith("text/plain; version=0.0.4; charset=utf-8")
    assert open_type.startswith("application/openmetrics-text; version=1.0.0; charset=utf-8")
    assert open_.endswith(b"# EOF\n")
    own = [
        moved({}, figures(plain.decode(), plain_type)),
        moved({}, figures(open_.decode(), open_type)),
    ]
    assert own[0] == own[1]
    assert own[0]


@pytest.mark.parametrize(
    "accept",
    [
        "",
        "*/*",
        ",;,",
        "text/html",
        "text/plain; version=x",
        "text/plain; version=1.0.0; escaping=what",
        "application/openmetrics-text; version=x.y",
        "application/openmetrics-text; version=",
        "application/openmetrics-text; version",
        "text/plain; version=9.9.9",
        "\N{LATIN SMALL LETTER U WITH DIAERESIS}/*",
    ],
)
def test_an_accept_header_that_makes_no_sense_is_answered_all_the_same(accept: str) -> None:
    body, content_type = processes.told(accept)
    assert key("continuation_generations") in figures(body.decode(), content_type)


def test_every_word_that_is_known_beforehand_is_told_from_the_start() -> None:
    names = told()
    for reason in (families.GUARDED, *PassReason):
        assert ("continuation_chat_requests_total", (("plan", str(reason)),)) in names
    for word in families.RESUME_OUTCOMES:
        assert ("continuation_resumes_total", (("outcome", word),)) in names


def test_the_table_of_the_documentation_names_each_family_with_its_labels() -> None:
    section = pages.section("docs/metrics.md", "Metrics")
    rows = re.findall(r"^\| (`continuation_.*?) \| (.*?) ?\| ", section, re.MULTILINE)
    named = {
        name: set(re.findall(r"`(\w+)`", labels))
        for names, labels in rows
        for name in re.findall(r"`(\w+)`", names)
    }
    noting.refused("not_found")
    found: dict[str, set[str]] = {}
    for family in families_in(processes.told("")[0].decode()):
        if family.name.startswith("continuation_"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            found[name] = {label for sample in family.samples for label in sample.labels} - {"le"}
    assert named == found


def test_nothing_else_knows_the_package() -> None:
    importing = {
        path.relative_to(ROOT).parent.as_posix()
        for package in ("continuation", "gatewaysite", "strategies")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("prometheus_client"))
        or (isinstance(node, ast.Import) and any(a.name.startswith("prometheus_client") for a in node.names))
    }
    assert importing == {"continuation/metrics"}


# -- several processes -----------------------------------------------------------------------------

PROGRAM = """
import sys
from pathlib import Path
import django
django.setup()
from continuation import lifecycle
from continuation.metrics import noting as metrics, processes
from continuation.resume.log import Held
print(flush=True)
for line in sys.stdin:
    exec(line)
    print(flush=True)
"""


@dataclass
class Process:
    """Does one line of Python after the other, and ends when nothing more comes."""

    child: subprocess.Popen[str]
    directory: Path

    @classmethod
    def start(cls, directory: Path, first: str = "") -> "Process":
        """first: what a shell does before it becomes this process."""
        env = environment(
            {"DOWNSTREAM_URL": "http://127.0.0.1:9", "PROMETHEUS_MULTIPROC_DIR": str(directory)}, directory
        )
        child = subprocess.Popen(
            ["sh", "-c", f'{first}\nexec "$0" -W error -c "$1"', sys.executable, PROGRAM],
            cwd=ROOT,
            env={**env, "DJANGO_SETTINGS_MODULE": "gatewaysite.settings"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return cls(child, directory)

    def do(self, line: str) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(line + "\n")
        self.child.stdin.flush()
        self.wait()

    def wait(self) -> None:
        assert self.child.stdout is not None
        assert self.child.stdout.readline() == "\n", self.child.communicate(timeout=PATIENCE)[1]

    def told(self, accept: str = "") -> Figures:
        file = self.directory / "told.txt"
        self.do(f"Path({str(file)!r}).write_bytes(processes.told({accept!r})[0])")
        return figures(file.read_text("utf-8"), accept or "text/plain")

    def files(self) -> list[str]:
        return sorted(path.name for path in self.directory.glob(f"*_{self.child.pid}.db"))

    def end(self) -> None:
        _, trouble = self.child.communicate(timeout=PATIENCE)
        assert (self.child.returncode, trouble) == (0, "")

    def kill(self) -> None:
        self.child.send_signal(signal.SIGKILL)
        self.child.communicate(timeout=PATIENCE)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def start(first: str = "") -> Process:
        started.append(Process.start(tmp_path, first))
        started[-1].wait()
        return started[-1]

    yield start
    for one in started:
        if one.child.poll() is None:
            one.end()
        for stream in (one.child.stdin, one.child.stdout, one.child.stderr):
            assert stream is not None
            stream.close()


OK = ("continuation_resumes_total", (("outcome", "ok"),))
RUNNING = ("continuation_generations", ())
APPENDED = ("continuation_log_bytes_appended_total", ())
HELD = ("continuation_log_bytes", ())


def test_each_process_tells_the_sum_of_all(process: Callable[..., Process]) -> None:
    one, two = process(), process()
    one.do("metrics.resumed('ok'); metrics.generations(2, 1); metrics.appended(0.0003)")
    two.do(
        "metrics.resumed('ok'); metrics.resumed('ok'); metrics.generations(3, 0); metrics.appended(0.0003)"
    )
    for teller in (one, two):
        for accept in (PLAIN, OPENMETRICS):
            now = teller.told(accept)
            assert (now[OK], now[RUNNING]) == (3, 5)
            assert now[("continuation_log_append_seconds_count", ())] == 2
            assert now[("continuation_log_append_seconds_bucket", (("le", "0.0002"),))] == 0
            assert now[("continuation_log_append_seconds_bucket", (("le", "0.0005"),))] == 2
            assert all(name.startswith("continuation_") for name, _ in now)


def test_the_log_of_another_process_is_told_within_seconds(process: Callable[..., Process]) -> None:
    one, two = process(), process()
    one.do("held = Held(bytes=5, bytes_appended=8); lifecycle.current().watch.look_at(lambda: held)")
    two.do("held = Held(bytes=10, bytes_appended=20); lifecycle.current().watch.look_at(lambda: held)")
    _until(lambda: (one.told()[HELD], one.told()[APPENDED]) == (15, 28))
    two.do("held.bytes = 0; held.bytes_appended = 21")
    _until(lambda: (one.told()[HELD], one.told()[APPENDED]) == (5, 29))


def test_of_a_process_that_ended_well_the_counts_stay_and_what_was_open_goes(
    process: Callable[..., Process],
) -> None:
    one, two = process(), process()
    two.do("held = Held(bytes=7, bytes_appended=9); lifecycle.current().watch.look_at(lambda: held)")
    two.do("metrics.resumed('ok'); metrics.generations(4, 0)")
    two.end()
    assert two.files() == [f"counter_{two.child.pid}.db"]
    now = one.told()
    assert (now[OK], now[RUNNING], now[HELD], now[APPENDED]) == (1, 0, 0, 9)


def test_of_a_process_that_was_killed_too(process: Callable[..., Process]) -> None:
    one, two = process(), process()
    two.do("metrics.resumed('ok'); metrics.generations(4, 4)")
    two.kill()
    assert any(name.startswith("gauge_livesum") for name in two.files())
    now = one.told()
    assert (now[OK], now[RUNNING]) == (1, 0)
    assert not any(name.startswith("gauge") for name in two.files())


def test_a_process_with_the_number_of_one_that_was_killed_counts_on_and_has_nothing_open(
    process: Callable[..., Process],
) -> None:
    """As in a container, where it is the same each time."""
    one = process()
    one.do("metrics.resumed('ok'); metrics.generations(4, 4)")
    one.kill()
    moving = 'for name in counter gauge_livesum; do mv "{0}/${{name}}_{1}.db" "{0}/${{name}}_$$.db"; done'
    two = process(moving.format(one.directory, one.child.pid))
    assert two.told()[RUNNING] == 0
    two.do("metrics.resumed('ok')")
    assert two.told()[OK] == 2


def test_a_process_that_counted_nothing_leaves_no_file(process: Callable[..., Process]) -> None:
    one = process()
    assert len(one.files()) == 3
    one.do("processes.told('')")
    one.end()
    assert one.files() == []


def test_a_file_that_is_not_what_it_should_be_yet_does_not_keep_the_others_from_being_told(
    process: Callable[..., Process], tmp_path: Path
) -> None:
    """Another process has made it, and has not come to write into it."""
    one = process()
    one.do("metrics.resumed('ok')")
    (tmp_path / f"counter_{os.getpid()}.db").touch()
    assert one.told()[OK] == 1


def test_a_name_of_the_directory_that_is_empty_means_none(tmp_path: Path) -> None:
    env = environment({"DOWNSTREAM_URL": "http://127.0.0.1:9", "PROMETHEUS_MULTIPROC_DIR": ""}, tmp_path)
    program = (
        "import django; django.setup(); from continuation.metrics import processes;"
        "print(processes.told('')[0].decode())"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        env={**env, "DJANGO_SETTINGS_MODULE": "gatewaysite.settings", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert ("process_resident_memory_bytes", ()) in figures(done.stdout)
    assert list(tmp_path.iterdir()) == []


def _until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)
