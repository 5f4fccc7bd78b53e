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

from engines.serving import HERE, engines_dir, run, split_at_dashes

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
    words += ["--reasoning-parser", args.reasoning_parser, "--tool-call-parser", args.tool_call_parser]
    return [*words, *CPU.split()]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0], epilog="What follows -- is handed on to SGLang."
    )
    parser.add_argument("model", type=Path, help="a directory, such as tiny_model.py makes")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--name", help="the model's name for clients (the directory's)")
    parser.add_argument("--python", default=str(engines_dir() / "sglang" / "bin" / "python"))
    parser.add_argument("--reasoning-parser", default="qwen3")
    parser.add_argument("--tool-call-parser", default="qwen25")
    parser.add_argument("--log", type=Path, help="where the server's output goes (standard error)")
    parser.add_argument("--patience", type=float, default=300, help="seconds until it must answer")
    parser.add_argument(
        "--with-parent", action="store_true", help="end when the process that started this ends"
    )
    own, more = split_at_dashes(sys.argv[1:])
    args = parser.parse_args(own)
    args.name = args.name or args.model.resolve().name
    titles = {"scheduler": b"scheduler", "detokenizer": b"detokenizer"}
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
