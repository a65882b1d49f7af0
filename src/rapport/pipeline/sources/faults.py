"""Faults of ours on their way through Spark, which keeps nothing of an error but its text. [PI-2,
PI-10]
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from rapport.core.errors import (
    Conflict,
    Corrupt,
    InvalidInput,
    NotAllowed,
    NotAuthenticated,
    RapportError,
    Unavailable,
)

_KINDS: tuple[type[RapportError], ...] = (
    *(NotAuthenticated, NotAllowed, InvalidInput, Conflict, Unavailable, Corrupt),
    RapportError,
)
_TOLD = re.compile(
    r"SourceFault: (?P<message>.+?)(?: \(hint: (?P<hint>.+?)\))? "
    r"\[(?P<kind>[A-Z]\w+) (?P<code>[a-z_]+\.[a-z_]+)\]"
)


class SourceFault(RapportError):
    """A fault with its hint, kind and code in its text."""

    code = "source.failed"

    @staticmethod
    def of(error: RapportError) -> SourceFault:
        """The fault that an error becomes."""
        kind = next(kind.__name__ for kind in _KINDS if isinstance(error, kind))
        hint = f" (hint: {error.hint})" if error.hint else ""
        text = f"{error.message}{hint} [{kind} {error.code}]".replace("\n", " ")
        return SourceFault(text, code=error.code, hint=error.hint)


@contextmanager
def told() -> Iterator[None]:
    """Errors of ours inside keep their code and hint on their way through Spark."""
    try:
        yield
    except SourceFault:
        raise
    except RapportError as error:
        raise SourceFault.of(error) from error


def fault_in(text: str, doing: str) -> RapportError | None:
    """The error that `told` put into the text of one of Spark's exceptions; None when there is
    none.
    """
    found = _TOLD.search(text)
    if found is None:
        return None
    kind = next((kind for kind in _KINDS if kind.__name__ == found["kind"]), RapportError)
    return kind(f"{doing}: {found['message']}", code=found["code"], hint=found["hint"] or "")
