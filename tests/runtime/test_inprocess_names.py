"""The public names of nvidia_resiliency_ext.inprocess are here as well, and can be used in the same way.

`inprocess_names.json` lists them by module, with what users give and call: `parameters` ("name=" has a default; those
after "*" are given by name), `methods` with theirs, `attributes`, `fields` of dataclasses, `members` of enums, and
`bases`, as which they are caught or recognized. "is" says that a name of the package is one of a module, or a module.
`context_store` has the methods of torch's Store that a rank assignment may call, by their number of arguments.
`internal` has what is not for users, and why.
"""

from __future__ import annotations

import builtins
import dataclasses
import importlib
import inspect
import json
import re
from collections.abc import Callable, Iterator, Sequence
from inspect import Parameter
from pathlib import Path
from typing import Any

import pytest

from softrun.runtime.inprocess.store import IterationStore

HERE = "softrun.runtime.inprocess"
LIST = json.loads(Path(__file__).with_name("inprocess_names.json").read_text())
PUBLIC: dict[str, dict[str, Any]] = {
    f"{module}.{name}".lstrip("."): entry for module, names in LIST["public"].items() for name, entry in names.items()
}
PAGE = (Path(__file__).parents[2] / "docs" / "migration-nvrx.md").read_text()


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_of_the_original_can_be_used_as_there(name: str) -> None:
    assert list(lacks(name, PUBLIC[name])) == []


@pytest.mark.parametrize("method", LIST["context_store"])
def test_a_rank_assignment_can_use_its_store_as_torchs(method: str) -> None:
    found = getattr(IterationStore, method, None)
    assert found is not None, f"ctx.store has no {method}"
    inspect.signature(found).bind(*["self", *range(LIST["context_store"][method])])


@pytest.mark.parametrize("name", [*PUBLIC, *(text.rstrip("=") for text in PUBLIC["wrap.Wrapper"]["parameters"][1:])])
def test_the_migration_page_has_every_public_name_and_every_argument(name: str) -> None:
    assert re.search(rf"[`.]{name.rpartition('.')[2]}\b", PAGE)


def test_what_is_internal_has_a_reason_and_is_not_public() -> None:
    assert all(LIST["internal"].values())
    assert not PUBLIC.keys() & LIST["internal"].keys()


@pytest.mark.parametrize(
    ("name", "entry", "lacking"),
    [
        ("wrap.Rapper", {}, "there is no wrap.Rapper"),
        ("rap.Wrapper", {}, "there is no module rap"),
        ("Tree", {"is": "compose.Compose"}, "it is not compose.Compose"),
        ("wrap.Wrapper", {"parameters": ["*", "store_factory=", "tempo="]}, "parameters: there is no tempo"),
        ("wrap.CallWrapper", {"methods": {"pong": []}}, "there is no method pong"),
        ("wrap.CallWrapper", {"methods": {"ping": ["times"]}}, "ping: there is no times"),
        ("wrap.CallWrapper", {"attributes": ["stage"]}, "there is no attribute stage"),
        ("state.Mode", {"members": ["ACTIVE", "ASLEEP"]}, "there is no member ASLEEP"),
        ("state.State", {"fields": ["world_size", "rank"]}, "its first fields are rank, world_size"),
        ("exception.RestartAbort", {"bases": ["Exception"]}, "it is no Exception"),
    ],
)
def test_what_is_not_there_is_found(name: str, entry: dict[str, Any], lacking: str) -> None:
    assert list(lacks(name, entry)) == [lacking]


@pytest.mark.parametrize(
    ("wanted", "lacking"),
    [
        (["one", "two=", "*more", "three="], []),
        (["one", "two", "*", "three"], []),
        (["one", "*", "three=", "four="], []),
        (["one", "five"], ["there is no five"]),
        (["one="], ["one has no default"]),
        (["two="], ["its parameters are one, two=, *more, three=, four=", "one must be given as well"]),
        (["two=", "one"], ["its parameters are one, two=, *more, three=, four="]),
        (["one", "*", "four=", "three="], ["its parameters are one, two=, *more, three=, four="]),
        (["one", "three="], ["three is keyword-only", "its parameters are one, two=, *more, three=, four="]),
        (["one", "*", "two="], ["two is positional or keyword"]),
        (["*one"], ["one is positional or keyword"]),
    ],
)
def test_parameters_are_compared(wanted: list[str], lacking: list[str]) -> None:
    def function(one: int, two: int = 0, *more: int, three: int = 0, four: int = 0) -> None: ...

    assert list(unlike(parameters(function), wanted)) == lacking


def lacks(name: str, entry: dict[str, Any]) -> Iterator[str]:
    """What this name lacks here, one text each."""
    try:
        found = resolve(name)
        if "is" in entry and found is not resolve(entry["is"]):
            yield f"it is not {entry['is']}"
    except LookupError as error:
        yield str(error.args[0])
        return
    for base in entry.get("bases", ()):
        if not issubclass(found, resolve(base) if "." in base else getattr(builtins, base)):
            yield f"it is no {base}"
    yield from (f"there is no member {each}" for each in entry.get("members", ()) if each not in found.__members__)
    yield from (f"there is no attribute {each}" for each in entry.get("attributes", ()) if not has(found, each))
    if "fields" in entry:
        fields = [field.name for field in dataclasses.fields(found)][: len(entry["fields"])]
        if fields != entry["fields"]:
            yield f"its first fields are {', '.join(fields)}"
    if "parameters" in entry:
        yield from (f"parameters: {each}" for each in unlike(parameters(found), entry["parameters"]))
    for method, wanted in entry.get("methods", {}).items():
        if not callable(getattr(found, method, None)):
            yield f"there is no method {method}"
            continue
        is_bound = not inspect.isfunction(inspect.getattr_static(found, method))
        given = parameters(getattr(found, method))
        yield from (f"{method}: {each}" for each in unlike(given[0 if is_bound else 1 :], wanted))


def resolve(name: str) -> Any:
    """What a name of the package, of a module, or a module is here. Raises LookupError."""
    package = importlib.import_module(HERE)
    module, _, attribute = name.rpartition(".")
    if module:
        try:
            package = importlib.import_module(f"{HERE}.{module}")
        except ModuleNotFoundError as error:
            if error.name != f"{HERE}.{module}":
                raise
            raise LookupError(f"there is no module {module}") from None
    if not hasattr(package, attribute):
        raise LookupError(f"there is no {name}")
    return getattr(package, attribute)


def has(cls: type, attribute: str) -> bool:
    """Whether objects of a class have an attribute, as far as the class says so."""
    return hasattr(cls, attribute) or any(attribute in vars(each).get("__annotations__", {}) for each in cls.__mro__)


def parameters(function: Callable[..., Any]) -> list[Parameter]:
    """Of a call; a lone "unknown" if they cannot be read."""
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:
        return [Parameter("unknown", Parameter.VAR_POSITIONAL)]


def unlike(found: Sequence[Parameter], wanted: Sequence[str]) -> Iterator[str]:
    """Why some call with the wanted parameters may not be possible. Further ones must be optional, and come after."""
    theirs, ours = list(parsed(wanted)), {parameter.name: parameter for parameter in found}
    names = [parameter.name for parameter in theirs]
    for parameter in theirs:
        mine = ours.get(parameter.name)
        if mine is None:
            yield f"there is no {parameter.name}"
        elif mine.kind is not parameter.kind:
            yield f"{parameter.name} is {mine.kind.description}"
        elif parameter.default is not Parameter.empty and mine.default is Parameter.empty:
            yield f"{parameter.name} has no default"
    by_place = [parameter.name for parameter in theirs if parameter.kind is Parameter.POSITIONAL_OR_KEYWORD]
    shared = [parameter.name for parameter in found if parameter.name in names]
    if set(shared) == set(names) and (shared != names or list(ours)[: len(by_place)] != by_place):
        yield f"its parameters are {', '.join(map(shown, found))}"
    for parameter in found:
        if parameter.name not in names and parameter.kind not in VARIABLE and parameter.default is Parameter.empty:
            yield f"{parameter.name} must be given as well"


def parsed(wanted: Sequence[str]) -> Iterator[Parameter]:
    """The parameters that the texts stand for."""
    by_place = True
    for text in wanted:
        if text.startswith("*"):
            by_place = False
            if text != "*":
                yield Parameter(text[1:], Parameter.VAR_POSITIONAL)
        else:
            kind = Parameter.POSITIONAL_OR_KEYWORD if by_place else Parameter.KEYWORD_ONLY
            yield Parameter(text.rstrip("="), kind, default=None if text.endswith("=") else Parameter.empty)


def shown(parameter: Parameter) -> str:
    """A parameter as the list writes it, but without a lone "*"."""
    if parameter.kind in VARIABLE:
        return f"{VARIABLE[parameter.kind]}{parameter.name}"
    return parameter.name if parameter.default is Parameter.empty else f"{parameter.name}="


VARIABLE = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}
