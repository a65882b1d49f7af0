"""Every error that the command line makes says what to do about it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import rapport.cli
from rapport.core import errors
from rapport.core.errors import (
    InterpretationError,
    PolicyError,
    Problem,
    RapportError,
    SiteError,
    UnknownName,
)

ROOM = Path(rapport.cli.__file__).parent
_MADE = {
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, (RapportError, Problem))
}
_WITHOUT = {
    # Carry problems that have hints of their own.
    *(kind.__name__ for kind in (SiteError, PolicyError, InterpretationError)),
    # Makes its hint of the names there are; see the next test.
    UnknownName.__name__,
}
_NEVER_NONE = {
    "hints.py": "the function itself that gives a hint where there are no names",
    "bench.py": "the names are constants",
    "ensemble/experiment.py": "the names are constants",
}
"""Where UnknownName may be made directly, and why."""


def calls() -> Iterator[tuple[str, int, str, ast.Call]]:
    """Every error or problem that is made in the room: file, line, kind, and the call."""
    for path in sorted(ROOM.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and (kind := _name(node.func)) in _MADE:
                yield path.relative_to(ROOM).as_posix(), node.lineno, kind, node


def _name(called: ast.expr) -> str:
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


def _has_hint(call: ast.Call) -> bool:
    """Whether it is given one that is not empty in some case, as far as the text shows."""
    given = [keyword.value for keyword in call.keywords if keyword.arg == "hint"]
    return bool(given) and not any(
        isinstance(part, ast.Constant) and part.value == "" for part in ast.walk(given[0])
    )


def test_every_error_has_a_hint() -> None:
    silent = [
        f"{file}:{line}: {kind}"
        for file, line, kind, call in calls()
        if kind not in _WITHOUT and not _has_hint(call)
    ]
    assert not silent, f"say what to do about it with hint=...: {silent}"


def test_an_unknown_name_has_a_hint_also_where_there_are_no_names() -> None:
    direct = [
        f"{file}:{line}"
        for file, line, kind, _call in calls()
        if kind == UnknownName.__name__ and file not in _NEVER_NONE
    ]
    assert not direct, f"use rapport.cli.hints.unknown: {direct}"


def test_the_walk_sees_errors() -> None:
    assert len(list(calls())) > 50
    perhaps_none = ast.parse("X(hint='' if a else 'b')", mode="eval").body
    assert isinstance(perhaps_none, ast.Call)
    assert not _has_hint(perhaps_none)
