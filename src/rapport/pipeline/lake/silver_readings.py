"""Silver as history: readings of some streams and days, for policies over the past. [PI-3, PI-5]

What the node found late or set aside is known there, and so is what was corrected, so nothing has
to be judged again.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rapport.core.errors import SiteError, UnknownName
from rapport.core.schema import PARTS
from rapport.pipeline.history.files import ReadingsFile, ReadingsFiles, Series, read_footer
from rapport.pipeline.lake.places import (
    DAY_MS,
    data_files,
    day_number,
    folder_day,
    stream_folder,
)
from rapport.pipeline.lake.silver_rows import COUNTED, LATE
from rapport.policy.ontology import Ontology


def silver_history(
    lake: Path,
    ontology: Ontology,
    streams: Iterable[str],
    begin: int | None = None,
    end: int | None = None,
    *,
    with_late: bool = False,
) -> ReadingsFiles:
    """The readings of the streams on the days that [begin, end) touches, a series for each stream.

    As live policies counted them; `with_late` counts late ones too, at their own time. Of a
    corrected reading only the newest form counts. Days are given whole: who wants less leaves out
    the rest. Raises UnknownName for a stream that the site does not have, SiteError for a damaged
    file. A stream without readings has no files.
    """
    known = ontology.streams()
    series = []
    for stream in sorted(set(streams)):
        if stream not in known:
            raise UnknownName("stream", stream, list(known))
        series.append(
            Series(
                files=tuple(_files(lake, stream, PARTS[known[stream]], begin, end)),
                stream=stream,
                kind=known[stream],
                value=PARTS[known[stream]],
                source_column="source",
                only_column="status",
                only=(COUNTED, LATE) if with_late else (COUNTED,),
                is_judged=True,
            )
        )
    return ReadingsFiles(tuple(series))


def _files(
    lake: Path, stream: str, parts: tuple[str, ...], begin: int | None, end: int | None
) -> Iterable[ReadingsFile]:
    columns = ("time", "id", "key", "source", "status", *parts)
    for path in data_files(stream_folder(lake, stream)):
        day = day_number(folder_day(path.parent))
        if day is None or (begin is not None and day < begin // DAY_MS):
            continue
        if end is not None and day > (end - 1) // DAY_MS:
            continue
        try:
            size, groups = read_footer(path, columns, "time")
        except SiteError as error:
            if error.code == "events.missing_column":
                continue  # of days when the attribute was of another type: no such values
            raise
        yield ReadingsFile(str(path.resolve()), size, groups)
