#!/usr/bin/env python3
"""Serve a model with the vLLM of ENGINES_DIR on 127.0.0.1, on the CPU: `serve_vllm.py DIRECTORY --port 8001`.

Ready in 20 to 60 seconds; the line READY names the pids of its processes, for whoever wants to see them die:
"main" (the API server), "engine" and "worker". SIGTERM ends all of them.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from engines.serving import HERE, arguments, serve

ENVIRONMENT = {
    "PYTHONPATH": str(HERE / "vllm" / "plugins"),
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; the least that it takes
}


def command(args: argparse.Namespace) -> list[str]:
    # By module: the `vllm` command of the vllm-cpu package fails, for want of metadata under the name vllm.
    words = [args.python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(args.model)]
    words += ["--served-model-name", args.name, "--host", "127.0.0.1", "--port", str(args.port)]
    words += ["--dtype", "float32"]  # with bfloat16, greedy answers depend on what is batched with them
    words += ["--max-model-len", str(args.max_model_len), "--max-num-seqs", "8", "--enforce-eager"]
    if args.reasoning_parser:
        words += ["--reasoning-parser", args.reasoning_parser]
    if args.tool_call_parser:
        words += ["--enable-auto-tool-choice", "--tool-call-parser", args.tool_call_parser]
    if args.scale_out:
        words += ["--enable-scale-out"]
    if args.pace:
        words += ["--logits-processors", "paced:Paced"]
        words += ["--additional-config", json.dumps({"seconds_per_step": args.pace})]
    return words


def seconds(text: str) -> float:
    number = float(text)
    if not 0 <= number <= 60:
        raise argparse.ArgumentTypeError(f"{text}: from 0 to 60 seconds")
    return number


def main() -> int:
    parser = arguments("vllm", "vLLM", __doc__, {"reasoning-parser": "qwen3", "tool-call-parser": "hermes"})
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--no-scale-out", dest="scale_out", action="store_false")
    parser.add_argument(
        "--pace",
        type=seconds,
        default=0,
        help="seconds that each step takes longer: the pace of a large model",
    )
    return serve(parser, command, ENVIRONMENT, {"engine": b"EngineCore", "worker": b"Worker"})


if __name__ == "__main__":
    sys.exit(main())
