"""What pyproject.toml says of other libraries, and the versions that constraints.txt names."""

import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.harness.gateway import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
NEEDED = [Requirement(line) for line in [*PROJECT["dependencies"], *EXTRAS["postgres"], *EXTRAS["redis"]]]
# Whose private parts are in use: tests/test_private_parts.py.
BOUND = ["aiohttp", "daphne", "django", "httpx", "twisted"]


def pins(which: str) -> dict[str, Version]:
    command = [sys.executable, str(ROOT / "dependencies" / "pins.py"), which]
    return pinned(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def pinned(text: str) -> dict[str, Version]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: Version(version) for name, version in (line.split("==") for line in lines)}


@pytest.mark.parametrize("requirement", NEEDED, ids=lambda requirement: requirement.name)
def test_each_lowest_version_is_allowed_and_the_one_that_is_tried(requirement: Requirement) -> None:
    assert pins("floors")[canonicalize_name(requirement.name)] in requirement.specifier


@pytest.mark.parametrize("name", BOUND)
def test_a_library_whose_private_parts_are_used_has_an_upper_bound(name: str) -> None:
    (found,) = [requirement for requirement in NEEDED if requirement.name == name]
    assert [limit for limit in found.specifier if limit.operator == "<"]


@pytest.mark.parametrize("requirement", NEEDED, ids=lambda requirement: requirement.name)
def test_the_constraints_name_a_version_that_is_allowed_of_all_that_is_needed(
    requirement: Requirement,
) -> None:
    """Where this fails: `make constraints`."""
    constraints = pinned((ROOT / "constraints.txt").read_text())
    assert constraints[canonicalize_name(requirement.name)] in requirement.specifier


def test_the_constraints_leave_out_nothing_that_is_installed_for_the_gateway() -> None:
    """Where this fails: `make constraints`."""
    assert not (set(pins("tested")) & INSTALLED_ON_ALL) - set(pinned((ROOT / "constraints.txt").read_text()))


# Of what the needed libraries need in their turn, the part that no Python and no system leaves out.
INSTALLED_ON_ALL = {
    *(canonicalize_name(requirement.name) for requirement in NEEDED),
    *("aiosignal", "anyio", "asgiref", "autobahn", "certifi", "h11", "httpcore", "idna", "multidict", "yarl"),
}
