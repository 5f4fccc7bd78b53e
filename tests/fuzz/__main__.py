"""Runs the fuzzers for minutes: `python -m tests.fuzz --minutes 10 [NAME ...]`.

Each runs under hypothesis; those that take bytes also under atheris, guided by coverage, where that is installed
(`pip install atheris`; it has wheels for some Pythons only). The status is 1 if there was a finding.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import random
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from hypothesis import HealthCheck, Phase, seed, settings

from tests.fuzz.given import FUZZERS
from tests.fuzz.targets import TARGETS

ROUND = 500  # examples between two looks at the clock
LARGEST_INPUT = 4096


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(FUZZERS)}; all by default")
    parser.add_argument("--minutes", type=float, default=10, help="for each (10)")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(FUZZERS):
        parser.error(f"no such fuzzer: {', '.join(sorted(unknown))}")
    logging.disable(logging.ERROR)
    names = asked.names or list(FUZZERS)
    found = [name for name in names if not _by_hypothesis(name, asked.minutes)]
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed: nothing is guided by coverage (pip install atheris)")
    else:
        found += [name for name in names if name in TARGETS and not _by_atheris(name, asked.minutes)]
    return 1 if found else 0


def _by_hypothesis(name: str, minutes: float) -> bool:
    """With another seed each round."""
    until, rounds, clean = time.monotonic() + 60 * minutes, 0, True
    while time.monotonic() < until and clean:
        chosen = settings(
            max_examples=ROUND,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
        )
        number, rounds = random.getrandbits(64), rounds + 1
        try:
            FUZZERS[name](chosen, seed(number))
        except Exception as finding:
            clean = False
            traceback.print_exception(finding)
            print(f"hypothesis: {name}: a finding, with seed {number}")
    print(f"hypothesis: {name}: {rounds} rounds of {ROUND} examples, {'nothing found' if clean else 'FOUND'}")
    return clean


def _by_atheris(name: str, minutes: float) -> bool:
    with tempfile.TemporaryDirectory() as made:
        corpus, crashes = Path(made, "corpus"), Path(made, "crashes")
        corpus.mkdir()
        crashes.mkdir()
        command = [sys.executable, "-m", "tests.fuzz.coverage", name, str(corpus)]
        limits = [
            f"-max_total_time={round(60 * minutes)}",
            f"-max_len={LARGEST_INPUT}",
            "-print_final_stats=1",
        ]
        limits += [f"-artifact_prefix={crashes}/"]
        run = subprocess.run([*command, *limits], capture_output=True, text=True, check=False)
        inputs = [crash.read_bytes() for crash in crashes.iterdir()]
    executed = [line for line in run.stderr.splitlines() if "number_of_executed_units" in line]
    if run.returncode:
        print(run.stdout, *run.stderr.splitlines()[-20:], *inputs, sep="\n")
    said = "nothing found" if run.returncode == 0 else "FOUND"
    print(f"atheris: {name}: {' '.join(executed).rpartition(' ')[2] or '?'} inputs, {said}")
    return run.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
