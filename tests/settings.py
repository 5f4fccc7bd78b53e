"""Settings for the tests: the site's own, with nothing of the developer's environment in them."""

import os
import tempfile
from pathlib import Path

from tests.harness.postgres import url_in_use

os.environ["DOWNSTREAM_URL"] = "http://127.0.0.1:9"
os.environ["SECRET_KEY"] = "tests-only"
for _name in (
    "CONTINUATION_MODEL",
    "CONTINUATION_ENGINE",
    "CONTINUATION_URL",
    "DATABASE_URL",
    "GATEWAY_ROLE",
):
    os.environ.pop(_name, None)
    os.environ.pop(f"{_name}_FILE", None)

# A developer's own DATABASE_URL is taken away above: only the run on PostgreSQL has one, which it names itself.
if _server := url_in_use():
    os.environ["DATABASE_URL"] = _server

from gatewaysite.settings import *  # noqa: E402, F403
from gatewaysite.settings import DATABASES  # noqa: E402

if _server:
    DATABASES["default"]["TEST"] = {"NAME": f"test_gateway_{os.getppid()}"}
else:
    # Threads share it: an in-memory SQLite would lock whole tables.
    DATABASES["default"]["TEST"] = {
        "NAME": str(Path(tempfile.mkdtemp(prefix="gateway-tests-")) / "test.sqlite3")
    }
