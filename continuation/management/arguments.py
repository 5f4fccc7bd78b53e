"""Arguments of commands, read strictly: an error names the wrong value and what is allowed."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from django.core.management.base import BaseCommand, CommandParser, DjangoHelpFormatter

# Digits. A longer number is a mistake, and slow to parse.
_MOST_DIGITS = 19


class LongHelpCommand(BaseCommand):
    """A command whose `help` keeps its line breaks."""

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(prog_name, subcommand, **(kwargs | {"formatter_class": _Formatter}))


class _Formatter(DjangoHelpFormatter, argparse.RawDescriptionHelpFormatter):
    pass


def port(text: str) -> int:
    if not _is_whole(text) or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; allowed: 0 to 65535")
    return int(text)


def descriptor(text: str) -> int:
    if not _is_whole(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no file descriptor")
    return int(text)


def whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (_is_whole(text) and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(
                f"{text!r} is not allowed; a whole number from {least} to {most}"
            )
        return int(text)

    return read


def amount(least: float, most: float, what: str) -> Callable[[str], float]:
    """what: the unit, named in the message."""

    def read(text: str) -> float:
        with suppress(ValueError):
            if least <= float(text) <= most:
                return float(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; {what}, from {least:g} to {most:g}")

    return read


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
