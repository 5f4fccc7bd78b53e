"""manage.py demo: see answers break and go on."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from continuation.management.arguments import amount
from continuation.testbed.demo.play import play, show_where
from continuation.testbed.demo.screen import BOLD, CYAN, DIM, GREEN, Screen
from continuation.testbed.demo.stage import DemoChoices, DemoStage, stage
from continuation.testbed.processes import CannotGoOn

PLAIN_COLUMNS = 80
INTERRUPTED = 128 + signal.SIGINT
_WATCH_SECONDS = 0.5


class Command(BaseCommand):
    help = (
        "Start a simulated engine and the gateway, break a few streamed answers and show how they are continued. "
        "Both keep running until Ctrl-C. Nothing is left behind."
    )
    requires_system_checks = []  # the gateway that is started has settings of its own

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--once", action="store_true", help="end by itself: 0 if all answers came out equal, else 1"
        )
        parser.add_argument(
            "--engine", choices=("vllm", "sglang"), default="vllm", help="whose manners (vllm)"
        )
        parser.add_argument(
            "--model",
            default="qwen3.6",
            help="CONTINUATION_MODEL of the gateway (qwen3.6); the engine stays Qwen-like, so another one "
            "shows what a wrong strategy does",
        )
        parser.add_argument(
            "--token-delay-ms",
            type=amount(0, 1000, "milliseconds"),
            default=25.0,
            help="time that a token takes (25)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        choices = DemoChoices(options["engine"], options["model"], options["token_delay_ms"])
        with _ended_by_signals():
            try:
                equal = self._run(choices, self._screen(options), once=options["once"])
            except CannotGoOn as trouble:
                raise CommandError(str(trouble)) from None
            except KeyboardInterrupt:
                raise SystemExit(INTERRUPTED) from None
        if options["once"] and not equal:
            raise SystemExit(1)

    def _run(self, choices: DemoChoices, screen: Screen, *, once: bool) -> bool:
        screen.line(f"Starting a simulated engine ({choices.engine}, Qwen-like) and the gateway ...")
        with stage(choices) as on:
            screen.line(
                f"What came from {screen.styled('leg 1', CYAN)}, and what from {screen.styled('leg 2', GREEN)}:"
                if screen.colour
                else "A rule shows where leg 1 ended and leg 2 goes on."
            )
            equal = play(on, screen)
            if not once:
                show_where(on, screen)
                self._wait(on, screen)
        return equal

    def _wait(self, on: DemoStage, screen: Screen) -> None:
        try:
            screen.line()
            screen.line("Ctrl-C stops both.", BOLD)
            while all(child.is_running for child in on.children):
                time.sleep(_WATCH_SECONDS)
        except KeyboardInterrupt:
            screen.line()
            screen.line("Stopped.", DIM)
            return
        raise next(child.failure("has ended") for child in on.children if not child.is_running)

    def _screen(self, options: dict[str, Any]) -> Screen:
        terminal = self.stdout.isatty()
        wanted = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        colour = options["force_color"] or (wanted and not options["no_color"])
        columns = shutil.get_terminal_size((PLAIN_COLUMNS, 24)).columns if terminal else PLAIN_COLUMNS
        return Screen(self._write, columns, colour)

    def _write(self, text: str) -> None:
        encoding = getattr(self.stdout, "encoding", None) or "utf-8"
        self.stdout.write(text.encode(encoding, "replace").decode(encoding), ending="")
        self.stdout.flush()


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and a closed terminal end the demo as Ctrl-C does, so that its children are stopped."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
