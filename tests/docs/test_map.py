"""The maps of the code name every room that there is, and no other."""

import re
from pathlib import Path

import continuation
from tests.harness import pages
from tests.harness.pages import ROOT


def rooms(package: str) -> set[str]:
    """Modules and directories that lie directly in a package."""
    inside = [path for path in (ROOT / package).iterdir() if not path.name.startswith("_")]
    return {path.stem for path in inside if path.suffix == ".py" or _has_files(path)}


def _has_files(path: Path) -> bool:
    """A directory that was moved away may still hold what Python has compiled."""
    return path.is_dir() and any(each.name != "__pycache__" for each in path.iterdir())


def test_the_docstring_of_the_package_names_every_room() -> None:
    text = (continuation.__doc__ or "").split("The map\n-------\n")[1].split("\n`strategies`")[0]
    lines = re.findall(r"^    (\S.*?)  +\S", text, re.MULTILINE)
    assert {name for line in lines for name in line.split(", ")} == rooms("continuation")


def test_the_map_of_the_documentation_names_every_package() -> None:
    packages = {path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("*/*/__init__.py")}
    ours = {name for name in packages if name.startswith(("continuation/", "gatewaysite/"))}
    named = set(pages.words_in_code(pages.section("docs/development.md", "The map")))
    unnamed = {name for name in ours if f"{name}/" not in named}
    assert unnamed <= {"continuation/management", "continuation/migrations"}
