"""manage.py drill: faults at random places of many streams, every answer compared exactly."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from continuation.management.arguments import LongHelpCommand, amount, whole
from continuation.testbed.demo.screen import Screen
from continuation.testbed.drill import plot
from continuation.testbed.drill.campaign import Choices, Result, drill
from continuation.testbed.drill.kinds import ALL, UnknownKind, chosen, help_text
from continuation.testbed.drill.report import Bar, as_json, show, unsteady
from continuation.testbed.drill.stage import SIMULATED
from continuation.testbed.drill.wire import Address
from continuation.testbed.processes import CannotGoOn

INTERRUPTED = 128 + signal.SIGINT
PLAIN_COLUMNS = 100
MOST_STREAMS = 5000

_ABOUT = f"""\
Break many streamed answers at random places, in every way that is known, and compare each
with the uninterrupted one: its text, its form, its ending, and the gateway's audit row.

It starts a simulated engine and a gateway with a database of its own, stands between the
two, and breaks what passes. Status 0: every answer was as it had to be; 1: at least one
was wrong; the table says for which faults. The same seed has the same faults at the same
places; --only N runs one stream of a drill again.

Another engine:    --engine http://host:8000   (answers must be greedy and repeatable)
Another gateway:   --gateway http://host:9000 --listen 8100, with its DOWNSTREAM_URL set to
                   port 8100 of this machine, and its STALL_IDLE_TIMEOUT_SECONDS told here

faults:
{help_text()}
"""


class Command(LongHelpCommand):
    help = _ABOUT
    requires_system_checks = []  # the gateway that is started has settings of its own

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("--streams", type=whole(1, MOST_STREAMS), default=200, help="streams at a time (200)")
        add("--minutes", type=amount(0.01, 100_000, "minutes"), help="how long (3, or no limit with --total)")
        add("--total", type=whole(1, 10**9), help="how many streams at most")
        add("--faults", default=ALL, help="all (the default), or names separated by commas")
        add("--seed", type=whole(0, 2**63), help="any number; a random one, which is shown, by default")
        add("--only", type=_numbers, default=(), help="numbers of streams, separated by commas: no others")
        add("--engine", default="vllm", type=_engine, help="vllm or sglang to simulate one (vllm), or a URL")
        add("--continuation-engine", type=_url, help="URL of another engine for continuations")
        add("--continuation-model", default="", help="CONTINUATION_MODEL, where --engine is a URL")
        add("--gateway", type=_url, help="URL of a gateway that runs already")
        add("--listen", type=whole(1, 65535), default=0, help="port of the fault injector, for --gateway")
        add(
            "--redis",
            default="",
            metavar="URL",
            help="resume log of the gateway that is started (in its memory)",
        )
        idle = amount(0.2, 3600, "seconds")
        add("--idle-timeout", type=idle, default=4.0, help="the gateway's limit of silence, in seconds (4)")
        delay = amount(0, 1000, "milliseconds")
        add("--token-delay-ms", type=delay, default=50.0, help="time that a simulated token takes (50)")
        add("--plot", type=Path, metavar="FILE.png", help="draw memory, descriptors, tasks and latency")
        add("--require-flat", action="store_true", help="status 1 also if one of these grew by more than 5%%")
        add("--json", action="store_true", help="the result as JSON on stdout; progress stays on stderr")

    def handle(self, *args: Any, **options: Any) -> None:
        choices = self._choices(options)
        self._check(options)
        bar = Bar(self._write_error, _columns(self.stderr), terminal=self.stderr.isatty())
        try:
            result = asyncio.run(_until_stopped(choices, bar))
        except CannotGoOn as trouble:
            raise CommandError(str(trouble)) from None
        finally:
            bar.end()
        self._print_result(result, options)

    def _choices(self, options: dict[str, Any]) -> Choices:
        try:
            kinds = chosen(options["faults"])
        except UnknownKind as error:
            raise CommandError(f"--faults: {error}") from None
        limited = options["total"] or options["only"]
        seed = random.SystemRandom().randrange(10**6) if options["seed"] is None else options["seed"]
        streams = min(options["streams"], len(options["only"]) or MOST_STREAMS)
        return Choices(
            streams=streams,
            minutes=options["minutes"] or (None if limited else 3.0),
            total=options["total"],
            kinds=kinds,
            seed=seed,
            engine=options["engine"],
            continuation_engine=options["continuation_engine"] or "",
            continuation_model=options["continuation_model"],
            gateway=options["gateway"] or "",
            listen=options["listen"],
            idle_seconds=options["idle_timeout"],
            delay_ms=options["token_delay_ms"],
            only=options["only"],
            redis=options["redis"],
        )

    def _check(self, options: dict[str, Any]) -> None:
        if options["gateway"] and not options["listen"]:
            raise CommandError("--gateway needs --listen PORT: where that gateway has its DOWNSTREAM_URL")
        if options["gateway"] and options["redis"]:
            raise CommandError(
                "--redis is for a gateway that the drill starts: --gateway has a REDIS_URL of its own"
            )
        if options["continuation_model"] and options["engine"] in SIMULATED:
            raise CommandError("--continuation-model is for an --engine that is a URL")
        if options["plot"] is not None and not plot.is_available():
            raise CommandError(plot.MISSING)
        if options["plot"] is not None and not options["plot"].absolute().parent.is_dir():
            raise CommandError(f"--plot: there is no directory {options['plot'].absolute().parent}")

    def _print_result(self, result: Result, options: dict[str, Any]) -> None:
        if options["plot"] is not None:
            plot.draw(result, options["plot"])
        if options["json"]:
            self.stdout.write(json.dumps(as_json(result)))
        else:
            colour = self.stdout.isatty() and not options["no_color"] and not os.environ.get("NO_COLOR")
            show(result, Screen(self._write, _columns(self.stdout), bool(colour or options["force_color"])))
        grown = unsteady(result) if options["require_flat"] else []
        for line in grown:
            self.stderr.write(f"not flat: {line}")
        if result.wrong_count or grown:
            raise SystemExit(1)
        if result.stopped:
            raise SystemExit(INTERRUPTED)

    def _write(self, text: str) -> None:
        encoding = getattr(self.stdout, "encoding", None) or "utf-8"
        self.stdout.write(text.encode(encoding, "replace").decode(encoding), ending="")

    def _write_error(self, text: str) -> None:
        self.stderr.write(text, style_func=str, ending="")
        self.stderr.flush()


async def _until_stopped(choices: Choices, bar: Bar) -> Result:
    """SIGTERM and Ctrl-C end a drill as if its time were over; its children are stopped in any case."""
    running = asyncio.current_task()
    assert running
    with suppress(NotImplementedError):
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    try:
        return await drill(choices, bar.show)
    except asyncio.CancelledError:
        raise CannotGoOn("stopped before it had begun") from None


def _columns(stream: Any) -> int:
    return shutil.get_terminal_size((PLAIN_COLUMNS, 24)).columns if stream.isatty() else PLAIN_COLUMNS


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(whole(0, 2**62)(part.strip()) for part in text.split(","))


def _url(text: str) -> str:
    try:
        Address.of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text.rstrip("/")


def _engine(text: str) -> str:
    if text in SIMULATED:
        return text
    try:
        return _url(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}; or one of {', '.join(SIMULATED)}") from None
