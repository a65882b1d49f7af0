"""The names of privacy functions in a site file, checked without running anything. [CO-9, UX-2]

A function of the site lies in its directory: whoever may change a peer can name no other module.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from rapport.core.errors import InvalidInput
from rapport.kernel.config_fields import suggest
from rapport.kernel.plugins import Plugins

_FUNCTION = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<name>[A-Za-z_]\w*)\Z")


def function_fault(name: str, directory: Path) -> InvalidInput | None:
    """What is wrong with the name of a privacy function, or None. Reads its file, runs nothing."""
    if ":" not in name:
        known = Plugins().names("privacy")
        if name in known:
            return None
        hint = suggest(name, known) or 'write "module:function" for a file of the site'
        message = f"there is no privacy plug-in named {name[:40]!r}"
        return InvalidInput(message, code="privacy.unknown_function", hint=hint)
    found = _FUNCTION.match(name)
    if found is None:
        message = f"{name[:40]!r} does not name a module and a function"
        hint = 'write "rules:not_in_a_meeting" for that function in rules.py of the site'
        return InvalidInput(message, code="privacy.bad_function", hint=hint)
    file = directory.joinpath(*found["module"].split(".")).with_suffix(".py")
    return _file_fault(file, found["name"])


def _file_fault(file: Path, function: str) -> InvalidInput | None:
    code = "privacy.unknown_function"
    try:
        tree = ast.parse(file.read_bytes())
    except OSError:
        hint = "functions lie in the site's directory; others are installed as rapport.privacy"
        return InvalidInput(f"the site has no file {file.name!r}", code=code, hint=hint)
    except (SyntaxError, ValueError, RecursionError) as error:
        message = f"{file.name} is not Python: {error}"[:200]
        return InvalidInput(message, code="privacy.bad_function", hint="run it with Python")
    known = [each.name for each in tree.body if isinstance(each, ast.FunctionDef)]
    if function in known:
        return None
    message = f"{file.name} has no function {function[:40]!r}"
    return InvalidInput(message, code=code, hint=suggest(function, known) or "define it with def")
