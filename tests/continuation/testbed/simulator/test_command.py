import asyncio
import contextlib
import io
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from continuation.testbed.simulator.faults import KINDS
from tests.continuation.testbed.simulator.helpers import (
    ask,
    call,
    chat,
    connected,
    engine,
    events,
    read_to_the_end,
    request_bytes,
    told,
)
from tests.harness.gateway import ROOT


@contextlib.asynccontextmanager
async def started(*options: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, Any]]]:
    environment = {key: value for key, value in os.environ.items() if key != "DOWNSTREAM_URL"}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "manage.py",
        "simulate_engine",
        *options,
        cwd=ROOT,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout
    try:
        async with asyncio.timeout(60):
            line = (await process.stdout.readline()).decode()
        word, _, about = line.partition(" ")
        assert word == "READY", line
        yield process, json.loads(about)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_serves_and_ends_at_a_signal_even_with_a_stream_open(number: signal.Signals) -> None:
    options = ("--engine", "sglang", "--template", "kimi-k3", "--model", "mine", "--token-delay-ms", "0")
    async with started(*options) as (process, about):
        assert about["url"].startswith("http://127.0.0.1:")
        assert (about["engine"], about["template"], about["model"], about["pid"]) == (
            "sglang",
            "kimi-k3",
            "mine",
            process.pid,
        )
        raw = await chat(about["url"])
        assert told(raw.blocks[:-1]) == told(events(engine("sglang", "kimi-k3", model="mine")))
        async with connected(about["url"]) as (reader, writer):
            writer.write(request_bytes("/v1/chat/completions", ask(), X_Simulate_Fault="stall; after=1"))
            await read_to_the_end(reader, 5, until=b"\n\n\r\n")
            process.send_signal(number)
            async with asyncio.timeout(5):
                assert await process.wait() == 0
        assert process.stderr
        assert await process.stderr.read() == b""


async def test_faults_can_be_armed_from_outside() -> None:
    async with started("--token-delay-ms", "0") as (_, about):
        await call(about["url"], "/simulator/faults", {"fault": "reset", "after": 3}, "POST")
        raw = await chat(about["url"])
        assert (raw.end, len(raw.blocks)) == ("reset", 3)
        assert (await chat(about["url"])).closed_cleanly


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--port", "70000"], "'70000' is no port; allowed: 0 to 65535"),
        (["--port", "x"], "'x' is no port"),
        (["--engine", "llama"], "invalid choice: 'llama'"),
        (["--template", "llama"], "invalid choice: 'llama'"),
        (["--token-delay-ms", "-1"], "'-1' is not allowed; milliseconds, from 0"),
        (["--scale", "nan"], "'nan' is not allowed; a factor"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_bad_arguments_are_named(options: list[str], message: str) -> None:
    with pytest.raises(CommandError) as error:
        call_command("simulate_engine", *options)
    assert message in str(error.value)


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CommandError, match=f"cannot listen on 127.0.0.1:{port}"):
            call_command("simulate_engine", "--port", str(port))


def test_help_tells_how_to_break_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        call_command("simulate_engine", "--help", stdout=io.StringIO())
    shown = capsys.readouterr().out
    for expected in (
        *KINDS,
        "X-Simulate-Fault: reset; after=12",
        "/simulator/faults",
        "READY",
        "--token-delay-ms",
    ):
        assert expected in shown
