"""Settings for the tests: the site's own, with nothing of the developer's environment in them."""

import atexit
import os
import shutil
import tempfile

from tests.harness.postgres import SERVER_VARIABLE, TEMPLATE_VARIABLE

# What decides the database is tests/postgresql.py; the run on SQLite says that this had no effect.
DATABASE_URL_GIVEN = bool(os.environ.get("DATABASE_URL"))

os.environ["DOWNSTREAM_URL"] = "http://127.0.0.1:9"
os.environ["SECRET_KEY"] = "tests-only"
for _name in (
    "CONTINUATION_MODEL",
    "CONTINUATION_ENGINE",
    "CONTINUATION_URL",
    "DATABASE_URL",
    "GATEWAY_ROLE",
):
    # Nothing, rather than not there: a .env file would fill that.
    os.environ[_name] = os.environ[f"{_name}_FILE"] = ""
os.environ["DATABASE_URL"] = os.environ.get(SERVER_VARIABLE, "")

from gatewaysite.settings import *  # noqa: E402, F403
from gatewaysite.settings import DATABASES  # noqa: E402

if _template := os.environ.get(TEMPLATE_VARIABLE):
    DATABASES["default"]["TEST"] = {"NAME": f"{_template}_django", "TEMPLATE": _template}
else:
    # Threads share it: an in-memory SQLite would lock whole tables.
    _directory = tempfile.mkdtemp(prefix="gateway-tests-")
    atexit.register(shutil.rmtree, _directory, ignore_errors=True)
    DATABASES["default"]["TEST"] = {"NAME": f"{_directory}/test.sqlite3"}

# The usual one takes half a second for each password, and many tests make a user.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
