#!/usr/bin/env python
"""Run Django's management commands with the gateway's settings."""

import os
import sys

from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gatewaysite.settings")
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as trouble:
        sys.exit(str(trouble))
