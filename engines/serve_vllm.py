#!/usr/bin/env python3
"""Serve a model with the vLLM of ENGINES_DIR on 127.0.0.1, on the CPU: `serve_vllm.py DIRECTORY --port 8001`.

Ready in 20 to 60 seconds; the line READY names the pids of its processes, for whoever wants to see them die:
"main" (the API server), "engine" and "worker". SIGTERM ends all of them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from engines.serving import engines_dir, run, split_at_dashes

ENVIRONMENT = {
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
    return words


def main() -> int:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0], epilog="What follows -- is handed on to vLLM."
    )
    parser.add_argument("model", type=Path, help="a directory, such as tiny_model.py makes")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--name", help="the model's name for clients (the directory's)")
    parser.add_argument("--python", default=str(engines_dir() / "vllm" / "bin" / "python"))
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--reasoning-parser", default="qwen3", help="empty for none")
    parser.add_argument("--tool-call-parser", default="hermes", help="empty for none")
    parser.add_argument("--no-scale-out", dest="scale_out", action="store_false")
    parser.add_argument("--log", type=Path, help="where the server's output goes (standard error)")
    parser.add_argument("--patience", type=float, default=300, help="seconds until it must answer")
    parser.add_argument(
        "--with-parent", action="store_true", help="end when the process that started this ends"
    )
    own, more = split_at_dashes(sys.argv[1:])
    args = parser.parse_args(own)
    args.name = args.name or args.model.resolve().name
    titles = {"engine": b"EngineCore", "worker": b"Worker"}
    return run(
        [*command(args), *more],
        ENVIRONMENT,
        args.port,
        args.name,
        titles,
        args.log,
        args.patience,
        args.with_parent,
    )


if __name__ == "__main__":
    sys.exit(main())
