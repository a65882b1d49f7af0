"""Files that stayed behind when a segment went, or a write of ours was cut short. [CH-14]"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rapport.store.files import Files
from rapport.store.segments.reading import INDEX_ENDING, Segment

_CUT = ".cut-"


def leftovers_in(files: Files, directory: Path, segments: Sequence[Segment]) -> list[Path]:
    """Indexes and bytes put aside of segments that are not there any more.

    What was put aside from a segment that is still there stays: it may be needed to mend it.
    """
    kept = {segment.path.stem for segment in segments}
    return [
        directory / name
        for name in files.names(directory)
        if _is_ours(name) and name.partition(".")[0] not in kept
    ]


def _is_ours(name: str) -> bool:
    stem, _dot, ending = name.partition(".")
    known = ending.startswith((_CUT[1:], INDEX_ENDING[1:]))
    return known and stem.isascii() and stem.isdigit()
