"""Names that nobody declared, as they are told at a terminal. [UX-3]"""

from __future__ import annotations

from collections.abc import Iterable

from rapport.core.errors import UnknownName

NO_POLICIES = 'name their files in site.toml: [policies] files = ["*.dpl"]'
"""What to do about a site without policies."""


def unknown(
    kind: str, name: str, known: Iterable[str], *, if_none: str, code: str | None = None
) -> UnknownName:
    """The error for a name that is not among `known`: its hint names the nearest, else some of
    them; where there are none at all it is `if_none`, how to get one.

    >>> unknown("source", "raeders", ["readers"], if_none="declare it").hint
    "did you mean 'readers'?"
    >>> unknown("source", "raeders", [], if_none="declare it").hint
    'declare it'
    """
    return UnknownName(kind, name, list(known), code=code, hint=if_none)
