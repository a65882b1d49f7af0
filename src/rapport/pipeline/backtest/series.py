"""A history as the files that Spark's workers read themselves. [PI-9, PI-5]"""

from __future__ import annotations

import msgspec

from rapport.pipeline.backtest.history import History, Window
from rapport.pipeline.history.files import ReadingsFile, ReadingsFiles, Series, recorded_files
from rapport.pipeline.lake.silver_readings import silver_history
from rapport.policy.ontology import Ontology


def files_of(history: History, ontology: Ontology, window: Window | None) -> ReadingsFiles | None:
    """The files that can hold something of the window; None when workers cannot read all of it,
    such as CSV or raw events.
    """
    if history.kind == "silver" and history.lake is not None:
        begin, end = (None, None) if window is None else (window.begin, window.end)
        silver = silver_history(history.lake, ontology, history.streams(), begin, end)
        return ReadingsFiles(silver.series, _span(window))
    if any(feed.source is None for feed in history.feeds):
        return None
    recordings = [
        (feed.source, [file.path for file in feed.files])
        for feed in history.feeds
        if feed.source is not None
    ]
    found = recorded_files(ontology, recordings)
    if window is None:
        return found
    return ReadingsFiles(tuple(_within(one, window) for one in found.series), _span(window))


def _span(window: Window | None) -> tuple[int, int] | None:
    return None if window is None else (window.begin, window.end)


def _within(series: Series, window: Window) -> Series:
    """Without the files before the window, which make nothing in it late, and those after it, which
    nothing of it follows. Files between stay: they say what was late.
    """
    files = [file for file in series.files if not _ends_before(file, window.begin)]
    while files and _begins_at_or_after(files[-1], window.end):
        files.pop()
    return msgspec.structs.replace(series, files=tuple(files))


def _ends_before(file: ReadingsFile, time: int) -> bool:
    return all(
        group.is_known and (group.last is None or group.last < time) for group in file.groups
    )


def _begins_at_or_after(file: ReadingsFile, time: int) -> bool:
    return all(
        group.is_known and (group.first is None or group.first >= time) for group in file.groups
    )
