"""manage.py simulate_engine: an engine to try the gateway with, and to break."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from typing import Any

from django.core.management.base import CommandError, CommandParser

from continuation.management.arguments import LongHelpCommand, amount, port
from continuation.testbed.simulator import Config, Simulator
from continuation.testbed.simulator.dialects import DIALECTS
from continuation.testbed.simulator.engine import ENGINES
from continuation.testbed.simulator.faults import help_text

_ABOUT = f"""\
Run an OpenAI-compatible engine without a model, in the manners of vLLM or SGLang.

Its answers are a fixed function of the exact prompt: a continued answer equals the
uninterrupted one exactly when the continuation request rebuilt the prompt exactly.
When it listens it prints one line: READY {{"url": ...}}. SIGTERM and Ctrl-C end it.

templates:
  qwen         trims contents, moves <think> blocks; the prompt opens the thinking
  generic      keeps contents verbatim; the model opens the thinking
  kimi-k3      other control tokens; on vLLM continue_final_message is ignored
  deepseek-v4  opens the thinking in the prompt; on vLLM continue_final_message is ignored

faults, asked for by one request, in its header:
  X-Simulate-Fault: reset; after=12            X-Simulate-Fault: stall; in=content; after=3
  X-Simulate-Fault: disconnect, refuse; leg=2; status=503
or for the next requests of anybody:
  curl -X POST URL/simulator/faults -d '{{"fault": "reset", "after": 12, "times": 2, "leg": "any"}}'
  curl URL/simulator/faults                    curl -X DELETE URL/simulator/faults
leg is 1, 2 or any; a request with continue_final_message is leg 2. after counts events that
were sent (12), with `in` (reasoning, content, tool) only those of that kind; a fault strikes
before the finish at the latest. times is a number or "always". In square brackets: options.

{help_text()}

to look inside:
  curl URL/simulator/requests   the last requests with bodies and headers (DELETE forgets them)
  curl URL/simulator/state      open connections and streams
"""


class Command(LongHelpCommand):
    help = _ABOUT
    requires_system_checks = []  # an engine does not use the gateway's settings

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--port", type=port, default=0, help="TCP port; 0 (the default) takes a free one")
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
        parser.add_argument("--engine", choices=ENGINES, default="vllm", help="whose manners (vllm)")
        parser.add_argument(
            "--template", choices=sorted(DIALECTS), default="qwen", help="chat template (qwen)"
        )
        parser.add_argument("--model", default="simulated-model", help="served model name (simulated-model)")
        parser.add_argument(
            "--token-delay-ms",
            type=amount(0, 60_000, "milliseconds"),
            default=20.0,
            help="time that a token takes (20)",
        )
        parser.add_argument(
            "--scale",
            type=amount(0.1, 1000, "a factor"),
            default=1.0,
            help="multiplies the length of answers (1)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        names = ("engine", "template", "model", "host", "port", "token_delay_ms", "scale")
        level = logging.INFO if options["verbosity"] > 1 else logging.WARNING  # -v 2: a line for each request
        logging.getLogger("continuation.testbed.simulator").setLevel(level)
        config = Config(**{name: options[name] for name in names})
        try:
            asyncio.run(self._serve(config))
        except OSError as error:
            raise CommandError(f"cannot listen on {config.host}:{config.port}: {error}") from error

    async def _serve(self, config: Config) -> None:
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        async with Simulator(config) as simulator:
            about = {"url": simulator.url, "engine": config.engine, "template": config.template}
            ready = json.dumps({**about, "model": config.model, "pid": os.getpid()})
            self.stdout.write(f"READY {ready}")
            self.stdout.flush()
            await stopped.wait()
