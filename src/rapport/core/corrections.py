"""Which readings stand when some were corrected: only the newest correction of each. [ME-16]

One rule for the second look, `rapport replay` and the jobs on Spark. Pure.
"""

from __future__ import annotations

from collections.abc import Collection


class Corrections:
    """What corrects what, learned in the order of the log; costs memory per correction, not per
    reading.

    >>> told = Corrections()
    >>> told.note("weather", "1~a", "1"); told.note("weather", "1~b", "1")
    >>> [told.stands("weather", id, of) for id, of in (("1", ""), ("1~a", "1"), ("1~b", "1"))]
    [False, False, True]
    """

    def __init__(self) -> None:
        self._stands_in: dict[tuple[str, str], str] = {}
        self.original_of: dict[str, str] = {}
        """Of each correction's id the id of the reading it corrects."""

    def note(self, source: str, id: str, original: str) -> None:
        """A reading of the source corrects another one; of several the last noted stands."""
        self._stands_in[source, original] = id
        self.original_of[id] = original

    def stands(self, source: str, id: str, original: str = "") -> bool:
        """Whether no other reading stands in for this one; `original` is what it corrects."""
        return self._stands_in.get((source, original or id), id) == id

    def sources(self) -> Collection[str]:
        """The sources with corrected readings."""
        return {source for source, _id in self._stands_in}

    def superseded(self) -> Collection[str]:
        """Ids of readings that another one stands in for."""
        standing = set(self._stands_in.values())
        every = {id for _source, id in self._stands_in} | self.original_of.keys()
        return every - standing
