"""The figures of `/metrics`. Only this room imports prometheus_client."""

import os

from django.conf import settings

# prometheus_client looks there when it is imported, and takes an empty name for the current directory.
DIRECTORY: str = settings.PROMETHEUS_MULTIPROC_DIR


if DIRECTORY:
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = DIRECTORY
else:
    os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
