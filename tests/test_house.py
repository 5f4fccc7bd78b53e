"""The house stays one that a head can hold: each class has a name of its own, and nothing grows beyond its limit."""

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.harness.gateway import ROOT

APPS = ("continuation", "strategies", "gatewaysite")
MOST_MODULES = 14
MOST_LINES = 450  # of Python; the browser's resumable.js is one file, for a page loads it as one
MOST_METHODS = 25
MOST_ATTRIBUTES = 15

# Names that Django looks for: every model has its Meta, every command is a Command.
DJANGOS = {"Meta", "Media", "Command", "Migration"}
# A library that people import or copy on its own: `resumable.Event` is its public face, and knows no other room.
OWN_FACES = ("continuation/clients/",)
# Django reads a model or an admin as a list of fields and hooks: more of them make a longer form, not a deeper machine.
DECLARED = {"Model", "ModelAdmin"}

# Larger than the limit for now. This may only shrink: an entry that is no longer needed fails.
EXCEPTIONS: Mapping[str, set[str]] = {
    "lines": {
        "continuation/testbed/drill/campaign.py",
        "continuation/testbed/drill/injector.py",
        "continuation/token_route/route.py",
    },
    "methods": {
        "continuation/resume/store/hot.py:HotLog",
        "continuation/testbed/drill/injector.py:Passage",
        "gatewaysite/server/channel.py:Channel",
        "gatewaysite/server/server.py:Server",
    },
    "attributes": {
        "continuation/audit/writer.py:AuditWriter",
        "continuation/clients/resumable/core.py:Core",
        "continuation/resume/reading.py:Reading",
        "continuation/resume/store/hot.py:HotLog",
        "continuation/resume/store/redis/account.py:Account",
        "continuation/splice/leg.py:Leg",
        "gatewaysite/server/server.py:Server",
    },
}


@cache
def modules() -> Mapping[str, ast.Module]:
    """By path. Migrations are generated, and left out."""
    paths = (path for app in APPS for path in (ROOT / app).rglob("*.py") if "migrations" not in path.parts)
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text("utf-8")) for path in sorted(paths)}


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    """Each with the path of its module; nested ones too."""
    for path, module in modules().items():
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                yield path, node


def machines() -> dict[str, ast.ClassDef]:
    """The classes that the limits are for, by "module.py:Class". A frozen value may have as many fields as it has."""
    return {
        f"{path}:{node.name}": node
        for path, node in classes()
        if not _is_frozen(node) and not DECLARED & {ast.unparse(base).split(".")[-1] for base in node.bases}
    }


def _is_frozen(node: ast.ClassDef) -> bool:
    return any("frozen=True" in ast.unparse(decorator) for decorator in node.decorator_list)


def functions(node: ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef))


def methods(node: ast.ClassDef) -> set[str]:
    """By name, so that a property and its setter, or a method and its overloads, are one."""
    return {function.name for function in functions(node)}


def attributes(node: ast.ClassDef) -> set[str]:
    """What an object of the class remembers: fields that are declared, and all that is assigned to `self`."""
    declared = {
        part.target.id
        for part in node.body
        if isinstance(part, ast.AnnAssign)
        and isinstance(part.target, ast.Name)
        and "ClassVar" not in ast.unparse(part.annotation)
    }
    assigned = {
        part.attr
        for function in functions(node)
        for part in ast.walk(function)
        if isinstance(part, ast.Attribute)
        and isinstance(part.ctx, ast.Store)
        and isinstance(part.value, ast.Name)
        and part.value.id == "self"
    }
    return declared | assigned


def assert_only_exceptions(limit: str, found: Iterable[str]) -> None:
    beyond, excepted = set(found), EXCEPTIONS[limit]
    assert not beyond - excepted, f"too many {limit}"
    assert not excepted - beyond, f"no longer too many {limit}: take it out of EXCEPTIONS"


def test_each_class_has_a_name_of_its_own() -> None:
    places = defaultdict(list)
    for path, node in classes():
        if node.name not in DJANGOS and not path.startswith(OWN_FACES):
            places[node.name].append(path)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_the_continuation_room_has_few_modules_of_its_own() -> None:
    found = [path for path in modules() if Path(path).parent == Path("continuation")]
    found.remove("continuation/__init__.py")
    assert len(found) <= MOST_MODULES, found


def test_no_module_is_long() -> None:
    lengths = {path: len((ROOT / path).read_text("utf-8").splitlines()) for path in modules()}
    assert_only_exceptions("lines", (path for path, length in lengths.items() if length > MOST_LINES))


@pytest.mark.parametrize(
    "limit, most, parts",
    [("methods", MOST_METHODS, methods), ("attributes", MOST_ATTRIBUTES, attributes)],
)
def test_no_class_has_more_than_a_head_can_hold(
    limit: str, most: int, parts: Callable[[ast.ClassDef], set[str]]
) -> None:
    assert_only_exceptions(limit, (name for name, node in machines().items() if len(parts(node)) > most))
