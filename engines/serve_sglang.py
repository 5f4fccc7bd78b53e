#!/usr/bin/env python3
"""Serve a model with the SGLang of ENGINES_DIR on 127.0.0.1, on the CPU: `serve_sglang.py DIRECTORY --port 8001`.

Ready in 20 to 60 seconds; the line READY names the pids of its processes, for whoever wants to see them die:
"main" (the API server), "scheduler" and "detokenizer". SIGTERM ends all of them, answers under way included.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from engines.serving import HERE, arguments, serve

ENVIRONMENT = {
    "PYTHONPATH": str(HERE / "sglang" / "shim"),
    "SGLANG_USE_CPU_ENGINE": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
CPU = (
    "--device cpu --attention-backend torch_native --sampling-backend pytorch --grammar-backend none "
    "--disable-cuda-graph --disable-radix-cache --disable-overlap-schedule --dtype float32 "
    "--mem-fraction-static 0.3 --max-total-tokens 16384 --max-running-requests 8 --skip-server-warmup"
)


def command(args: argparse.Namespace) -> list[str]:
    words = [args.python, "-m", "sglang.launch_server", "--model-path", str(args.model)]
    words += ["--served-model-name", args.name, "--host", "127.0.0.1", "--port", str(args.port)]
    for parser in ("reasoning", "tool_call"):
        if chosen := getattr(args, f"{parser}_parser"):
            words += [f"--{parser.replace('_', '-')}-parser", chosen]
    return [*words, *CPU.split()]


def main() -> int:
    parser = arguments(
        "sglang", "SGLang", __doc__, {"reasoning-parser": "qwen3", "tool-call-parser": "qwen25"}
    )
    return serve(parser, command, ENVIRONMENT, {"scheduler": b"scheduler", "detokenizer": b"detokenizer"})


if __name__ == "__main__":
    sys.exit(main())
