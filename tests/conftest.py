"""Settings for the tests: set before Django is loaded."""

import os

os.environ["DOWNSTREAM_URL"] = "http://127.0.0.1:9"
os.environ["SECRET_KEY"] = "tests-only"
for _name in ("CONTINUATION_MODEL", "CONTINUATION_ENGINE", "CONTINUATION_URL", "DATABASE_URL", "GATEWAY_ROLE"):
    os.environ.pop(_name, None)
