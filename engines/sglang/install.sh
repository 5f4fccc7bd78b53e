#!/usr/bin/env bash
# install.sh VENV - a real SGLang for a machine without a GPU, in an environment of its own: about 3 minutes, 2.8 GB.
# Its kernel libraries are left out (shim/ stands in for them), so its dependencies are named here one by one.
# PYTHON names the interpreter; it must be 3.11, and pip must find torch 2.13 for the CPU.
set -euo pipefail
venv=${1:?usage: install.sh VENV}
python=${PYTHON:-$(command -v python3.11 || command -v python3)}
export PIP_DISABLE_PIP_VERSION_CHECK=1

"$python" -m venv "$venv"
models=(torch==2.13.0 transformers==5.19.0 tokenizers==0.23.2 sentencepiece==0.2.1 tiktoken compressed-tensors==0.18.0
        gguf einops numpy scipy pillow soundfile)
server=(fastapi 'uvicorn>=0.51' uvloop aiohttp requests orjson msgspec pyzmq python-multipart pydantic pybase64
        prometheus-client openai==2.8.0 openai-harmony==0.0.4 anthropic partial_json_parser)
rest=(llguidance interegular regex jsonschema dill tqdm packaging psutil setproctitle xxhash zstandard watchfiles IPython)
"$venv/bin/pip" install --quiet "${models[@]}" "${server[@]}" "${rest[@]}"
"$venv/bin/pip" install --quiet --no-deps sglang==0.5.23 torchvision==0.28.0 triton xgrammar==0.2.7 \
    apache-tvm-ffi==0.1.11 torch_memory_saver
