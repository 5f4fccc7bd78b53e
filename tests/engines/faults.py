"""Strike a process of an engine while it is in the middle of an answer, and see what the client gets."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.engines.cutting import gateway_between
from tests.engines.openai_reader import Reading, read
from tests.engines.processes import EngineProcess, post
from tests.engines.reading import Answer, ask, chat, verdict
from tests.harness.gateway import Gateway, free_port
from tests.harness.upstream import PATIENCE

SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGSTOP": signal.SIGSTOP}
# Where in the answer to dialogue 0 the engine is struck.
MOMENTS: dict[str, Callable[[Answer | Reading], bool]] = {
    "in the reasoning": lambda answer: len(answer.reasoning) > 60,
    "in the content": lambda answer: len(answer.content) > 8,
}
# Seconds for each token of the engine that is struck. A model of this size has written its answer before a client has
# read the beginning; at this pace the last 40 tokens come seconds after the moment, however busy the machine is.
PACE = 0.1
# Only where the client itself was held up for longer than that is the fault too late, and another one tried.
TRIES = 3
# Long beside the pace, short beside a test's patience.
STALL_SECONDS = "3"
# Rows are written a fifth of a second after the end of their stream; one that is not there by then will not come.
ABSENT_SECONDS = 5.0


@dataclass
class Victim:
    """The engine that is struck, and started again, on the same port, when it is needed again."""

    engine: str
    log: Path
    port: int = field(default_factory=free_port)
    running: EngineProcess | None = None
    spoilt: bool = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        more = ("--pace", str(PACE)) if self.engine == "vllm" else ()
        self.running = EngineProcess(self.engine, "tiny", self.log, *more, port=self.port)

    def ready(self) -> EngineProcess:
        """One that runs whole."""
        if self.spoilt or self.running is None:
            self.stop()
            self.start()
            self.spoilt = False
        assert self.running
        if not self.running.pids:
            self.running.ready()
            ask(self.port, chat(1))  # the first answer of an engine is a slow one
            if self.engine == "sglang":
                post(self.url, "/slow_down", {"forward_sleep_time": PACE})
        return self.running

    def stop(self) -> None:
        if self.running:
            self.running.stop()
            self.running = None


@dataclass
class Scene:
    """A gateway that asks `victim`, and continues at the engine on `survivor_port`."""

    gateway: Gateway
    victim: Victim
    survivor_port: int

    def strike(self, process: str, signal_name: str, moment: str, *, rescued: bool = True) -> Answer:
        """The client's answer, in the middle of which the process got the signal; the same as an uninterrupted one.

        rescued: the engine's own answer must have been lost; else it must have been finished by the engine.
        """
        tries = []
        for _try in range(TRIES):
            answer, at, finish = self._struck(process, SIGNALS[signal_name], moment)
            row = self.row(answer, PATIENCE if rescued else ABSENT_SECONDS)
            tries.append(
                f"at event {at} of {len(answer.events)}, the finish was {finish}, audited: {bool(row)}"
            )
            if at is not None and at < finish and (row or not rescued):
                break
        else:
            raise AssertionError(f"{process} was struck too late: {tries}")
        self._is_whole(answer)
        assert (row or {}).get("outcome") == ("rescued" if rescued else None)
        return answer

    def _struck(self, process: str, number: int, moment: str) -> tuple[Answer, int | None, int]:
        """The answer, how many of its events had come when it was struck, and which of them finished it."""
        engine = self.victim.ready()
        at: list[int] = []

        def on_event(answer: Answer) -> None:
            if not at and MOMENTS[moment](answer):
                engine.signal(process, number)
                self.victim.spoilt = number != signal.SIGSTOP
                at.append(len(answer.events))

        answer = ask(self.gateway.port, chat(0), on_event=on_event)
        _wake(engine)
        finish = next((i for i, event in enumerate(answer.events) if b'"finish_reason":"' in event), 0)
        return answer, at[0] if at else None, finish

    def _is_whole(self, got: Answer) -> None:
        want = ask(self.survivor_port, chat(0))
        assert verdict(got, want) == "identical", (got.said, want.said, got.errors)
        assert got.faults() == []

    def row(self, answer: Answer | Reading, seconds: float = PATIENCE) -> dict[str, Any] | None:
        """The audit row; None if the gateway had nothing to do, which shows when none has come for so long."""
        try:
            return self.gateway.events(answer.request_id, timeout=seconds)[0]
        except AssertionError:
            return None


@contextmanager
def scene_of(
    engine: str,
    survivor: Callable[[], EngineProcess],
    template: Path,
    directory: Path,
    row: Mapping[str, Any] | None = None,
) -> Iterator[Scene]:
    """survivor: starts the second engine. row: as for gateway_between."""
    victim = Victim(engine, directory / "victim.log")
    try:
        victim.start()
        other = survivor().ready()
        stall = {"STALL_IDLE_TIMEOUT_SECONDS": STALL_SECONDS}
        with gateway_between(
            victim.url, other.url, template, directory, engine, "qwen3.6", row, **stall
        ) as gateway:
            yield Scene(gateway, victim, other.port)
    finally:
        victim.stop()


def read_through_a_kill(scene: Scene, process: str) -> tuple[Reading, Reading]:
    """What openai's client gets while the process is killed, and what it gets of the second engine alone."""
    whole = read(scene.survivor_port, 0)
    for _try in range(TRIES):
        got, killed = _read_and_kill(scene, process)
        if scene.row(got):
            return got, whole
    raise AssertionError(f"{process} was killed too late {TRIES} times, at last after {killed} characters")


def _read_and_kill(scene: Scene, process: str) -> tuple[Reading, int]:
    engine = scene.victim.ready()
    killed: list[int] = []

    def kill(so_far: Reading) -> None:
        if not killed and MOMENTS["in the content"](so_far):
            engine.signal(process, signal.SIGKILL)
            killed.append(len(so_far.content))

    got = read(scene.gateway.port, 0, kill)
    scene.victim.spoilt = True
    assert killed
    return got, killed[0]


def _wake(engine: EngineProcess) -> None:
    for process in engine.pids:
        if engine.state(process) == "T":
            engine.signal(process, signal.SIGCONT)
