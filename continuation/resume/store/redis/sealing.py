"""What the log keeps outside of this process, encrypted where keys are set.

A sealed value begins with a byte that says whether it is encrypted, so that values from before the keys were set, or
from after they were taken away, are still told apart.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet

logger = logging.getLogger(__name__)

PLAIN, ENCRYPTED = b"0", b"1"


class Unreadable(Exception):
    """No key here opens the value, or it is not one."""


class Seal:
    """keys: Fernet keys, of which the first one writes and all read; none: nothing is encrypted. Raises ValueError
    for what is not a key."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self._fernet = _fernet(keys) if keys else None
        self._has_warned = False

    @property
    def encrypts(self) -> bool:
        return self._fernet is not None

    def close(self, data: bytes) -> bytes:
        return PLAIN + data if self._fernet is None else ENCRYPTED + self._fernet.encrypt(data)

    def open(self, sealed: bytes) -> bytes:
        """Raises Unreadable."""
        kind, data = sealed[:1], sealed[1:]
        if kind == PLAIN:
            return data
        try:
            if kind == ENCRYPTED and self._fernet is not None:
                return self._fernet.decrypt(data)
        except Exception as error:  # InvalidToken, of a package that may not be installed
            raise self._unreadable() from error
        raise self._unreadable()

    def _unreadable(self) -> Unreadable:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("the resume log holds entries that none of RESUME_ENCRYPTION_KEYS opens")
        return Unreadable()


def _fernet(keys: Sequence[str]) -> MultiFernet:
    from cryptography.fernet import Fernet, MultiFernet

    return MultiFernet([Fernet(key) for key in keys])
