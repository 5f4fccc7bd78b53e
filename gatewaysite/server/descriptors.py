"""Descriptors of the process: how many it may have open, and for how many clients they are enough."""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress

# A client's own, the one to downstream, and one more: for the file of a large body while it arrives, or for the second
# connection of the token route.
PER_CLIENT = 3
# What no client has a share in: the database's files in each thread, Redis, the log, name servers, modules.
RESERVED = 48


def raise_limit() -> int:
    """Raise the soft limit to the hard one; the number of descriptors that may then be open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems set a limit of their own below the hard one
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def clients_for(limit: int) -> int:
    """How many clients at a time have their share of the descriptors; at least 1."""
    return max(1, (limit - _open_now() - RESERVED) // PER_CLIENT)


def _open_now() -> int:
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:
        return RESERVED
