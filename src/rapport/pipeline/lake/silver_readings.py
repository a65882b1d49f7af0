"""Silver as history: readings of some streams and days, for policies over the past. [PI-3, PI-5]

Silver has the node's verdicts (late, set aside, corrected), so nothing is judged again.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from pathlib import Path

from rapport.core.errors import SiteError, UnknownName
from rapport.core.schema import PARTS
from rapport.lake.bronze import DAY_MS, FIRST_MS, LAST_MS
from rapport.lake.places import SILVER, Lake
from rapport.lake.table import local_path
from rapport.pipeline.history.files import ReadingsFile, ReadingsFiles, Series, read_footer
from rapport.pipeline.lake.silver_rows import COUNTED, LATE
from rapport.policy.ontology import Ontology


def silver_history(
    lake: Lake | Path | str,
    ontology: Ontology,
    streams: Iterable[str],
    begin: int | None = None,
    end: int | None = None,
    *,
    with_late: bool = False,
) -> ReadingsFiles:
    """The readings of the streams on the days that [begin, end) touches, a series for each stream.

    As live policies counted them; `with_late` counts late ones too, at their own time. Of a
    corrected reading only the newest form counts. Days are given whole. Readings outside of the
    years 1 to 9999 are left out. Raises UnknownName for a stream that the site does not have,
    SiteError for a damaged file. A stream without readings has no files.
    """
    place, known = Lake.at(lake), ontology.streams()
    series = []
    for stream in sorted(set(streams)):
        if stream not in known:
            raise UnknownName("stream", stream, list(known))
        series.append(
            Series(
                files=tuple(_files(place, stream, PARTS[known[stream]], begin, end)),
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
    lake: Lake, stream: str, parts: tuple[str, ...], begin: int | None, end: int | None
) -> Iterable[ReadingsFile]:
    if not lake.has(SILVER, stream):
        return
    columns = ("time", "id", "key", "source", "status", *parts)
    days = (_day(begin, FIRST_MS), _day(None if end is None else end - 1, LAST_MS))
    for file in lake.open(SILVER, stream).files(day=days):
        path = local_path(file.uri)
        assert path is not None  # tasks read the files of history from a disk that all see
        try:
            size, groups = read_footer(path, columns, "time")
        except SiteError as error:
            if error.code == "events.missing_column":
                continue  # of days when the attribute was of another type: no such values
            raise
        yield ReadingsFile(str(path), size, groups)


def _day(time_ms: int | None, otherwise_ms: int) -> date:
    time_ms = otherwise_ms if time_ms is None else min(max(time_ms, FIRST_MS), LAST_MS)
    return date.fromordinal(date(1970, 1, 1).toordinal() + time_ms // DAY_MS)
