"""What reading shows of row groups, where that is more than their footers tell. [PI-5]"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from rapport.pipeline.history.feeds import GroupFacts
from rapport.pipeline.history.files import ReadingsFile, ReadingsFiles
from rapport.pipeline.history.lateness import GroupAt, groups_of


def corrected(
    history: ReadingsFiles, groups: Sequence[GroupAt], shown: Iterable[GroupFacts]
) -> tuple[ReadingsFiles, tuple[GroupAt, ...]]:
    """The history with what reading showed, and its groups anew."""
    facts = {_place(groups[one.number]): one.facts for one in shown}

    def renewed(file: ReadingsFile, series: int, number: int) -> ReadingsFile:
        known = [facts.get((series, number, n), own) for n, own in enumerate(file.groups)]
        return msgspec.structs.replace(file, groups=tuple(known))

    made = ReadingsFiles(
        tuple(
            msgspec.structs.replace(
                own, files=tuple(renewed(file, place, n) for n, file in enumerate(own.files))
            )
            for place, own in enumerate(history.series)
        )
    )
    return made, groups_of(made)


def matters(before: Sequence[GroupAt], after: Sequence[GroupAt]) -> bool:
    """Whether something was decided wrongly by what was believed before: what is late, or to which
    slice rows belong.
    """
    return any(
        old.before != new.before or new.first < old.first or new.last > old.last
        for old, new in zip(before, after, strict=True)
    )


def _place(at: GroupAt) -> tuple[int, int, int]:
    return at.series, at.file, at.group
