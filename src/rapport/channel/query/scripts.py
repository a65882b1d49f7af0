"""The query kind `script`: decisions too complex for a condition, made by code of the site. [CH-4]

`{"name": "busy", "arguments": {"least": 3}, "where": "type = 'desk.used'"}` calls the script that
the site declares under that name in `[channels.scripts]`, such as `busy = "scripts/busy.py:busy"`,
for events that fulfil `where`. A request never contains code: it names a script and passes values.
A script is trusted like a plug-in; its file is in the site's directory.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from rapport.channel.query.compiler import Matches, compile_condition
from rapport.channel.query.parser import parse_condition
from rapport.channel.query.tree import (
    EVERYTHING,
    Bounds,
    Condition,
    position_bounds,
    print_condition,
)
from rapport.core.errors import InvalidInput, UnknownName
from rapport.core.event import StoredEvent

MOST_LINES = 100_000
"""Lines of Python that a script may run for one message."""

Decide = Callable[[StoredEvent, Mapping[str, Any]], object]
_REFERENCE = re.compile(r"(?P<file>[^:]+\.py):(?P<function>[A-Za-z_]\w*)\Z")
_VERSION_DIGITS = 16


class Script(msgspec.Struct, frozen=True):
    """A function `(stored event, arguments) -> true or false`; the same for the same input."""

    decide: Decide
    version: str
    """Changes when the script does, so that a token never means something else."""


class ScriptRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The content of a request."""

    name: str
    arguments: dict[str, Any] = {}
    where: str = ""
    version: str = ""
    """Set in tokens: the version of the script."""


class Scripts:
    """The scripts of a site by name."""

    def __init__(self) -> None:
        self._scripts: dict[str, Script] = {}

    def use(self, scripts: Mapping[str, Script]) -> None:
        """Declares scripts; one of the same name is replaced."""
        self._scripts.update(scripts)

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._scripts)

    def get(self, name: str, version: str = "") -> Script:
        """The script; raises UnknownName with the nearest, InvalidInput when it was changed."""
        if name not in self._scripts:
            raise UnknownName("script", name[:100], self.names(), code="query.unknown_script")
        script = self._scripts[name]
        if version not in ("", script.version):
            raise InvalidInput(
                f"the script {name!r} was changed since this token was given",
                code="query.script_changed",
                hint="send the query again",
            )
        return script


class PreparedScript(msgspec.Struct, frozen=True):
    """A request understood."""

    text: str
    matches: Matches
    bounds: Bounds
    condition: Condition


def prepare_script(given: Any, scripts: Scripts) -> PreparedScript:
    """Parses a query as received, an object or JSON; raises InvalidInput, QueryError (`where`)."""
    asked = _read(given)
    script = scripts.get(asked.name, asked.version)
    condition = parse_condition(asked.where)
    where = compile_condition(condition) if condition != EVERYTHING else None
    arguments, name = asked.arguments, asked.name

    def matches(stored: StoredEvent) -> bool:
        if where is not None and not where(stored):
            return False
        current = scripts.get(name, script.version)  # a query may be kept for long
        return bool(run_limited(current.decide, stored, arguments))

    canonical = ScriptRequest(asked.name, arguments, print_condition(condition), script.version)
    text = msgspec.json.encode(canonical, order="sorted").decode()
    return PreparedScript(text, matches, position_bounds(condition), condition)


def _read(given: Any) -> ScriptRequest:
    try:
        if isinstance(given, str):
            return msgspec.json.decode(given, type=ScriptRequest)
        return msgspec.convert(given, ScriptRequest)
    except (msgspec.ValidationError, msgspec.DecodeError, RecursionError) as error:
        raise InvalidInput(
            f"this is no query for a script: {error}",
            code="query.bad_query",
            hint='such as {"name": "busy", "arguments": {"least": 3}}',
        ) from None


class _TooLong(BaseException):
    """Not an Exception, so that a script's own handlers let it pass."""


def run_limited(decide: Decide, stored: StoredEvent, arguments: Mapping[str, Any]) -> object:
    """The script's result; raises InvalidInput after MOST_LINES lines.

    Lines are counted, not time, so that the same message always gets the same answer. A call into C
    is one line, however long it takes.
    """
    lines = 0

    def count(_frame: FrameType, _what: str, _argument: Any) -> Any:
        nonlocal lines
        lines += 1
        if lines > MOST_LINES:
            raise _TooLong
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        return decide(stored, arguments)
    except _TooLong:
        raise InvalidInput(
            f"the script ran over {MOST_LINES} lines for the message at {stored.position}",
            code="query.script_too_long",
            hint="the script must decide on each message in a few steps",
        ) from None
    finally:
        sys.settrace(before)


def load_scripts(declared: Mapping[str, str], directory: Path) -> dict[str, Script]:
    """The scripts by name; raises InvalidInput naming the one that cannot be used."""
    return {name: _load(name, text, directory) for name, text in declared.items()}


def check_reference(text: str) -> str:
    """The fault in a script's declaration; empty when there is none."""
    if not _REFERENCE.match(text):
        return f"{text[:100]!r} does not name a file and a function"
    return "" if _is_inside(text.partition(":")[0]) else "a script lies in the site's directory"


def _is_inside(file: str) -> bool:
    return not Path(file).is_absolute() and ".." not in Path(file).parts


def _load(name: str, text: str, directory: Path) -> Script:
    wrong = check_reference(text)
    if wrong:
        raise _fault(name, wrong, 'such as "scripts/busy.py:busy"')
    file, _colon, function = text.partition(":")
    try:
        source = (directory / file).read_bytes()
    except OSError as error:
        raise _fault(name, f"{file} cannot be read: {error.strerror}", "") from None
    made: dict[str, Any] = {"__name__": f"rapport_script_{name}", "__file__": str(directory / file)}
    try:
        exec(compile(source, file, "exec"), made)  # the site's own file, never request input
    except Exception as error:
        raise _fault(name, f"{file} does not run: {error!r}", "run it with Python") from error
    if not callable(made.get(function)):
        raise _fault(name, f"{file} has no function {function!r}", "")
    version = hashlib.sha256(source + b"\0" + function.encode()).hexdigest()[:_VERSION_DIGITS]
    return Script(made[function], version)


def _fault(name: str, message: str, hint: str) -> InvalidInput:
    return InvalidInput(f"script {name!r}: {message}", code="query.bad_script", hint=hint)
