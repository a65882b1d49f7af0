"""What is piped in or typed, and the `-` that asks for it. [UX-3]"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

from cyclopts import App, Parameter

from rapport.cli.names import unknown
from rapport.cli.terminal import stderr
from rapport.core.errors import InvalidInput

STDIN = "-"
_OPTION = re.compile(r"--?[a-z][a-z-]*(=.*)?", re.DOTALL)


def may_be_stdin(command: Callable[[], Callable[..., Any]]) -> Parameter:
    """For an argument of the command that may be `-`, or a text such as `-5 degrees`. What looks
    like an option is refused all the same: it is a misspelt one.
    """

    def refuse(_type: Any, word: str) -> None:
        if _OPTION.fullmatch(word):
            raise _misspelt(word.partition("=")[0], command())

    return Parameter(allow_leading_hyphen=True, validator=refuse)


def tell_typing() -> None:
    """Tells who sits at a terminal that we wait for them; nothing where something is piped in."""
    if sys.stdin.isatty():
        stderr().print("reading what you type; end it with Ctrl-D")


def _misspelt(word: str, command: Callable[..., Any]) -> InvalidInput:
    help_of = f"rapport {command.__name__} --help"
    options = _options(command)
    if word in options:
        return InvalidInput(
            f"something is missing before {word}", code="cli.wrong_use", hint=help_of
        )
    return unknown("option", word, options, if_none=help_of, code="cli.wrong_use")


def _options(command: Callable[..., Any]) -> list[str]:
    alone = App(default_command=command)
    names = [name for each in alone.assemble_argument_collection() for name in each.names]
    return [name for name in names if name.startswith("-")]
