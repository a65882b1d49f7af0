"""What a table asks of a context broker. The broker's room implements it; until one is wired, a
table that names a context is refused when the site is read. [PO-2]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec


class ContextRows(msgspec.Struct, frozen=True):
    """What a broker knows: fields of text below headings."""

    header: list[str]
    rows: list[list[str]]


class ContextSource(Protocol):
    """A broker that is asked as any other pull source is."""

    def ask(self, query: str, fields: Sequence[str]) -> ContextRows:
        """The rows that a query of the broker's own language gives, with at least these headings.

        May block: it is called in a thread. Raises SourceUnavailable.
        """
