"""One fuzzer of bytes under atheris: `python -m tests.fuzz.coverage NAME CORPUS [libFuzzer options]`."""

import logging
import random
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["continuation", "strategies"]):
    from tests.fuzz.given import EVENTS, LINES
    from tests.fuzz.targets import CUT, TARGETS

SEEDS = 200


def planted(name: str, corpus: Path) -> None:
    """Inputs to begin with, made of what streams are made of."""
    chosen = random.Random(name)
    for number in range(SEEDS):
        pieces = LINES if name == "decoder" else EVENTS
        body = b"".join(chosen.choices([*pieces, CUT, b"\n\n"], k=chosen.randrange(12)))
        head = b"" if name in ("chunks", "seam") else chosen.randbytes(4 if name == "splice" else 1)
        body = body.removeprefix(b"data: ").partition(b"\n")[0] if name == "chunks" else body
        (corpus / f"seed-{number}").write_bytes(head + body)


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    name, corpus, *options = sys.argv[1:]
    planted(name, Path(corpus))
    atheris.Setup([sys.argv[0], corpus, *options], TARGETS[name])
    atheris.Fuzz()
