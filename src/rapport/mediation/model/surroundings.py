"""What conversions may ask beside the value itself: tables of the site, what is so at present, and
the time of the event under way. [ME-4]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from rapport.mediation.lookups import Lookups


class SiteTables(Lookups, Protocol):
    """The tables of the site; `rapport.tables.Tables` is one."""

    def rows(self, table: str, columns: Sequence[str]) -> Sequence[tuple[str, ...]]:
        """The fields of some columns in every row; raises UnknownName."""


class Context(Protocol):
    """What is so at present."""

    def value(self, concept: str, key: str, attribute: str) -> Sequence[Any] | None:
        """The parts of the present value of an attribute of one instance; None: not known."""


class Surroundings:
    """What the transformers of a source ask; one object, kept for as long as they are.

    `event_time_ms` is set by the caller before each event and counts where a conversion needs a
    time that the value does not tell.
    """

    def __init__(self, tables: SiteTables | None = None, context: Context | None = None) -> None:
        self.tables, self.context = tables, context
        self.event_time_ms: int | None = None
