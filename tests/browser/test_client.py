"""The JavaScript client's own tests, under node."""

import os
import re
import subprocess

from tests.browser.conftest import program
from tests.harness.gateway import ROOT

OLDEST = 20
SECONDS = 300


def test_the_client_passes_its_tests_under_node() -> None:
    node = program("node")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    assert int(version.removeprefix("v").partition(".")[0]) >= OLDEST, version
    env = {name: value for name, value in os.environ.items() if not name.startswith("NODE_")}
    command = [node, "--test", "--test-reporter=tap", "tests/browser/resumable.test.mjs"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = dict(re.findall(r"^# (pass|fail|skipped|todo) (\d+)$", done.stdout, re.MULTILINE))
    assert int(counts.pop("pass")) > 40
    assert counts == {"fail": "0", "skipped": "0", "todo": "0"}
