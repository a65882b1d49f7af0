"""Loading the scripts that a site declares in `[channels.scripts]`, such as
`busy = "scripts/busy.py:busy"`. [CH-4]

A script is code of the site, trusted like a plug-in; it lies in the site's directory.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rapport.channel.query.script import Script
from rapport.core.errors import InvalidInput

_REFERENCE = re.compile(r"(?P<file>[^:]+\.py):(?P<function>[A-Za-z_]\w*)\Z")
_VERSION_DIGITS = 16


def load_scripts(declared: Mapping[str, str], directory: Path) -> dict[str, Script]:
    """The scripts by name; raises InvalidInput naming the one that cannot be used."""
    return {name: _load(name, text, directory) for name, text in declared.items()}


def check_reference(text: str) -> str:
    """What is wrong with the text of a declaration; empty when nothing is."""
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
        exec(compile(source, file, "exec"), made)  # the site's own file, never what came in
    except Exception as error:
        raise _fault(name, f"{file} does not run: {error!r}", "run it with Python") from error
    if not callable(made.get(function)):
        raise _fault(name, f"{file} has no function {function!r}", "")
    version = hashlib.sha256(source + b"\0" + function.encode()).hexdigest()[:_VERSION_DIGITS]
    return Script(made[function], version)


def _fault(name: str, message: str, hint: str) -> InvalidInput:
    return InvalidInput(f"script {name!r}: {message}", code="query.bad_script", hint=hint)
