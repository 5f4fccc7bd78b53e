"""The documentation as tests read it: its pages, tables and fenced blocks.

A block that is more than an illustration stands below a comment: `<!-- run: NAME -->`, and a test asks for it by that
name, or `<!-- not run: REASON -->`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
_BLOCK = re.compile(r"(?:^<!-- (?P<mark>.*?) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block.

    run: the name under which a test runs it; excuse: why none does. Without a mark both are empty.
    """

    page: str
    language: str
    text: str
    run: str = ""
    excuse: str = ""


@cache
def page(name: str) -> str:
    """The text of a page, by its path from the top: `docs/settings.md`, `README.md`."""
    return (ROOT / name).read_text("utf-8")


@cache
def pages() -> tuple[str, ...]:
    """Every page that people read first, or that is linked from there."""
    inside = sorted(path.relative_to(ROOT).as_posix() for path in DOCS.rglob("*.md"))
    return (
        ("README.md", "CONTRIBUTING.md", *inside)
        if (ROOT / "CONTRIBUTING.md").exists()
        else ("README.md", *inside)
    )


def section(name: str, heading: str) -> str:
    """What stands below a heading of a page, up to the next heading of any level."""
    return re.split(r"\n#+ ", page(name).split(f"# {heading}\n", 1)[1])[0]


def table(name: str, heading: str, columns: str) -> dict[str, str]:
    """Of the table below a heading whose head begins with these columns: first cell -> second cell."""
    text = section(name, heading)
    lines = text[text.index(f"| {columns} |") :].split("\n\n", 1)[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1] for row in cells}


@cache
def blocks() -> tuple[Block, ...]:
    """Every fenced block of every page, in order."""
    return tuple(_block(name, found) for name in pages() for found in _BLOCK.finditer(page(name)))


def _block(name: str, found: re.Match[str]) -> Block:
    kind, _, rest = (found["mark"] or "").partition(": ")
    run, excuse = (rest if kind == "run" else ""), (rest if kind == "not run" else "")
    return Block(name, found["language"], found["text"], run, excuse)


def block(name: str) -> str:
    """The text of the one block that is marked `run: NAME`."""
    (found,) = (each for each in blocks() if each.run == name)
    return found.text


def words_in_code(text: str) -> list[str]:
    """What stands in backticks: fenced blocks, and code within lines."""
    fenced = [found["text"] for found in _BLOCK.finditer(text)]
    return fenced + re.findall(r"`([^`\n]+)`", _BLOCK.sub("", text))


def anchors(name: str) -> set[str]:
    """What links can point to within a page, as GitHub and mkdocs both name it."""
    headings = re.findall(r"^#+ (.+)$", _BLOCK.sub("", page(name)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
