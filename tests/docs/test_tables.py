"""The documentation and .env.example against the project: what they name exists, and what exists is named."""

import ast
import re
import subprocess
from collections.abc import Mapping
from http import HTTPStatus

import pytest
from django.conf import settings
from django.core.management import get_commands

from continuation.resume.views import ERRORS
from continuation.views import UNDELIVERED
from continuation.vocabulary import Case, Decision, Failure, Outcome, PassReason, Reason, Route
from gatewaysite.server.exchange import BROKEN, REFUSED
from strategies.models import Strategy
from tests.harness import pages
from tests.harness.pages import table

MAKEFILE = (settings.BASE_DIR / "Makefile").read_text("utf-8")
EXAMPLE = (settings.BASE_DIR / ".env.example").read_text("utf-8")
# Defaults that are no literals, and how the table words them.
WORDED = {
    "DOWNSTREAM_URL": "required",
    "CONTINUATION_URL": "`DOWNSTREAM_URL`",
    "DATABASE_URL": "a file `db.sqlite3`",
    "SECRET_KEY": "random",
}


def names_in(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


def environment_calls() -> dict[str, str]:
    """Each variable that the settings read, and its default as a person would write it."""
    tree = ast.parse((settings.BASE_DIR / "gatewaysite/settings.py").read_text("utf-8"))
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("_env."):
            if not node.args:
                continue
            name, *rest = node.args
            default = rest[0] if rest else ast.Constant("")
            found[ast.literal_eval(name)] = shown(default)
    return found


def shown(default: ast.expr) -> str:
    if not isinstance(default, ast.Constant):
        return "(computed)"
    value = str(default.value).lower() if isinstance(default.value, bool) else str(default.value)
    return f"`{value}`" if value else ""


def test_the_settings_table_is_what_the_settings_read_with_their_defaults() -> None:
    told = {
        name.strip("`"): default for name, default in table("docs/settings.md", "Settings", "name").items()
    }
    read = environment_calls()
    assert len(read) > 20
    assert told == {**read, **WORDED}


def test_the_example_names_every_setting_once_and_its_defaults_are_the_defaults() -> None:
    pairs = re.findall(r"^(#?)([A-Z_]+)=(.*)$", EXAMPLE, re.MULTILINE)
    names = [name for _, name, _ in pairs]
    assert sorted(names) == sorted(environment_calls())
    defaults = {name: default.strip("`") for name, default in environment_calls().items()}
    samples = {"CONTINUATION_URL", "DATABASE_URL", "CSRF_TRUSTED_ORIGINS"}
    commented = {name: value for comment, name, value in pairs if comment and name not in samples}
    assert commented == {name: defaults[name] for name in commented}


def everything() -> str:
    return "\n".join(map(pages.page, pages.pages()))


def test_every_make_target_that_the_documentation_names_exists_and_the_other_way_round() -> None:
    code = "\n".join(pages.words_in_code(everything()))
    named = set(re.findall(r"(?:^|\s)make ([a-z-]+)", code, re.MULTILINE))
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    assert named <= targets
    assert targets - {"help"} <= named


def test_every_management_command_that_the_documentation_names_exists_and_ours_are_named() -> None:
    named = set(re.findall(r"manage\.py ([a-z_]+)", "\n".join(pages.words_in_code(everything()))))
    commands = get_commands()
    assert named <= set(commands)
    ours = {name for name, app in commands.items() if app in ("continuation", "strategies")}
    assert ours <= named


def test_the_tables_of_failures_and_reasons_are_the_vocabulary() -> None:
    failures = names_in(" ".join(table("docs/rescue.md", "How it decides", "failure")))
    assert failures == {str(failure) for failure in Failure}
    section = pages.section("docs/rescue.md", "How it decides")
    reasons = set(re.findall(r"\| `(\w+)` \|$", section, re.MULTILINE))
    reasons |= names_in(" ".join(table("docs/rescue.md", "How it decides", "reason | meaning")))
    assert reasons == {str(reason) for reason in Reason if reason}


def test_the_table_of_pass_through_reasons_is_complete() -> None:
    told = [name.strip("`") for name in table("docs/rescue.md", "What is passed through", "reason")]
    assert told == [str(reason) for reason in PassReason]


def test_the_table_of_the_audits_other_words_is_the_vocabulary() -> None:
    told = table("docs/audit.md", "The words of a row", "value | column")
    words = {"case": Case, "decision": Decision, "route": Route, "outcome": Outcome}
    expected = [(f"`{word}`", column) for column, kind in words.items() for word in kind if word]
    assert list(told.items()) == expected


# Calls of json_error whose status and code are no literals: the tables they take them from are below.
TABLES: list[Mapping[int, tuple[str, ...]]] = [UNDELIVERED, REFUSED, {500: BROKEN}]
COMPUTED = {
    "json_error(status, message, kind, code, headers)",  # of _undelivered, and of _own_error
    "json_error(status, refused.message or message, kind, refused.code, headers, **more)",
    "json_error(status, f\"{body.rstrip('.')}.\", *REFUSED.get(status, BROKEN))",
}


# Where a call has its status and its code.
PLACES = {"json_error": (0, 3), "_own_error": (1, 2)}


def refusals() -> set[tuple[str, str]]:
    """Each code that the sources can answer with, and its status."""
    found = {(told[1], str(status)) for each in TABLES for status, told in each.items()}
    found |= {(code, str(status)) for code, (status, _message) in ERRORS.items()}
    apps = (settings.BASE_DIR / "continuation", settings.BASE_DIR / "gatewaysite")
    for path in (path for app in apps for path in app.rglob("*.py") if "testbed" not in path.parts):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in PLACES:
                found |= refused_by(node)
    return found


def refused_by(call: ast.Call) -> set[tuple[str, str]]:
    # As trees, for Pythons write the quotes of one and the same expression differently.
    if ast.dump(call) in {ast.dump(ast.parse(text, mode="eval").body) for text in COMPUTED}:
        return set()
    status, code = (call.args[at] for at in PLACES[ast.unparse(call.func)])
    name = ast.unparse(status).removeprefix("HTTPStatus.")
    number = str(int(HTTPStatus[name])) if name in HTTPStatus.__members__ else name
    return {(ast.literal_eval(code), number)}


def test_the_table_of_refusals_is_what_the_sources_can_answer() -> None:
    told = table("docs/errors.md", "What is refused", "`code` | status")
    assert {(code.strip("`"), status) for code, status in told.items()} == refusals()


def test_the_table_of_strategy_fields_is_the_form_of_the_admin() -> None:
    told = names_in(" ".join(table("docs/strategies.md", "The fields", "field")))
    editable = {field.name for field in Strategy._meta.fields if field.editable and not field.primary_key}
    assert told == editable


PLACES_NAMED = (
    "continuation",
    "strategies",
    "gatewaysite",
    "tests",
    "bench",
    "engines",
    "docs",
    "dependencies",
)
ROOMS = re.compile(rf"(?:{'|'.join(PLACES_NAMED)})/[\w/.]*")


@pytest.mark.parametrize(
    "path",
    sorted({word for word in pages.words_in_code(everything()) if ROOMS.fullmatch(word)}),
)
def test_a_file_that_the_documentation_names_exists(path: str) -> None:
    assert (settings.BASE_DIR / path).exists()


@pytest.mark.parametrize("name", pages.pages())
def test_links_lead_to_a_page_and_a_heading(name: str) -> None:
    here = (settings.BASE_DIR / name).parent
    for link in re.findall(r"\]\(([^)]+)\)", pages.page(name)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (here / path).resolve() if path else settings.BASE_DIR / name
        assert target.is_file(), link
        if anchor:
            assert anchor in pages.anchors(target.relative_to(settings.BASE_DIR).as_posix()), link


def test_troubleshooting_has_advice_for_every_reason() -> None:
    about = "docs/troubleshooting.md"
    passed = [name.strip("`") for name in table(about, "It was passed through", "reason")]
    assert passed == [str(reason) for reason in PassReason]
    failed = [name.strip("`") for name in table(about, "It was watched, and not saved", "reason")]
    assert failed == [str(reason) for reason in Reason if reason]


def test_help_tells_every_target() -> None:
    command = ["make", "--no-print-directory", "help"]
    told = subprocess.run(command, cwd=settings.BASE_DIR, capture_output=True, text=True, check=True).stdout
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    assert {line.split()[1] for line in told.splitlines()} == targets
