"""Every block of commands in the documentation is run by a test, or says why not."""

import re
import shlex

import pytest
from django.core.management import get_commands, load_command_class

from tests.harness.pages import ROOT, Block, blocks

ILLUSTRATIONS = ("text",)
TO_BE_RUN = [each for each in blocks() if each.language not in ILLUSTRATIONS]


def in_words(each: Block) -> str:
    return f"{each.page}: {each.text.splitlines()[0][:40]}"


@pytest.mark.parametrize("each", blocks(), ids=in_words)
def test_a_block_has_a_language_and_a_mark_unless_it_is_an_illustration(each: Block) -> None:
    assert each.language
    assert bool(each.run or each.excuse) == (each.language not in ILLUSTRATIONS)


def test_every_fence_of_every_page_is_found() -> None:
    for name in {each.page for each in blocks()}:
        fences = re.findall(r"^\s*(?:```|~~~)", (ROOT / name).read_text("utf-8"), re.MULTILINE)
        assert len(fences) == 2 * sum(each.page == name for each in blocks()), name


def test_every_name_is_given_once_and_a_test_asks_for_it() -> None:
    names = [each.run for each in TO_BE_RUN if each.run]
    assert len(names) == len(set(names))
    sources = [path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    asked = {name for text in sources for name in re.findall(r'\b(?:block|text|run)\(\s*"([\w-]+)"', text)}
    assert set(names) <= asked


def commands() -> list[tuple[str, list[str]]]:
    """Every call of manage.py in every block, also in those that no test runs: the command and its arguments."""
    text = "\n".join(each.text for each in TO_BE_RUN if each.language == "sh").replace("\\\n", " ")
    found = []
    for line in text.splitlines():
        call = re.match(r"(?:\.venv/bin/python )?manage\.py (\w+)(.*)", line)
        if call:
            found.append((call[1], shlex.split(call[2], comments=True)))
    return found


@pytest.mark.parametrize(("name", "arguments"), commands(), ids=str)
def test_a_documented_command_takes_the_options_that_are_written(name: str, arguments: list[str]) -> None:
    app = get_commands()[name]
    command = load_command_class(app, name) if isinstance(app, str) else app
    command.create_parser("manage.py", name).parse_args(arguments)
