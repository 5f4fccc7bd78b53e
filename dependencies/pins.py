"""Prints versions for pip's `--constraint`, one name==version a line.

    python dependencies/pins.py floors    the lowest versions that pyproject.toml allows of what the gateway needs
    python dependencies/pins.py tested    the versions in this environment, with all that they need in their turn

What only developers use is in neither. Exit status 1 where a version is not known.
"""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXTRAS = ("postgres", "redis")
REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[([\w,-]+)\])?\s*([^;]*)(?:;(.*))?")
FLOOR = re.compile(r">=\s*([0-9][0-9a-z.]*)")


def needed() -> list[str]:
    """Requirements as pyproject.toml writes them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *(one for extra in EXTRAS for one in extras[extra])]


def floors() -> dict[str, str]:
    """The lowest version allowed, by name. Raises ValueError for a requirement without one."""
    found = {}
    for requirement in needed():
        name, _, versions, _ = _parts(requirement)
        floor = FLOOR.search(versions)
        if floor is None:
            raise ValueError(f"{requirement!r} names no lowest version")
        found[name] = floor[1]
    return found


def tested() -> dict[str, str]:
    """The version installed, by name. Raises ValueError where a requirement of pyproject.toml is not installed."""
    found: dict[str, str] = {}
    waiting = [(*_parts(requirement)[:2], True) for requirement in needed()]
    while waiting:
        name, extras, is_direct = waiting.pop()
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            if is_direct:
                raise ValueError(f"{name} is not installed") from None
            continue  # for another system or another Python
        is_known = name in found
        found[name] = installed.version
        for requirement in installed.requires or []:
            needs, more, _, marker = _parts(requirement)
            wanted = [
                extra for extra in extras if marker and re.search(rf"extra == ['\"]{extra}['\"]", marker)
            ]
            if wanted or (not is_known and "extra ==" not in marker):
                waiting.append((needs, more, False))
    return found


def _parts(requirement: str) -> tuple[str, tuple[str, ...], str, str]:
    """Name in its normal form, extras, versions, marker."""
    match = REQUIREMENT.fullmatch(requirement.strip())
    if match is None:
        raise ValueError(f"{requirement!r} is no requirement")
    name = re.sub(r"[-_.]+", "-", match[1]).lower()
    return name, tuple((match[2] or "").split(",")) if match[2] else (), match[3] or "", match[4] or ""


def main(which: str) -> int:
    try:
        pins = {"floors": floors, "tested": tested}[which]()
    except ValueError as trouble:
        print(f"pins: {trouble}", file=sys.stderr)
        return 1
    print("\n".join(f"{name}=={version}" for name, version in sorted(pins.items())))
    return 0


if __name__ == "__main__":
    if sys.argv[1:] not in (["floors"], ["tested"]):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
