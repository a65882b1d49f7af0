"""The history that a back-test is given by name, and its files for Spark. [PI-9, PI-5]"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rapport.core.errors import InvalidInput, Problem
from rapport.core.times import format_time
from rapport.lake.places import BRONZE, SILVER, Lake
from rapport.pipeline.backtest.lake_history import behind, bronze_history, silver_as_history
from rapport.pipeline.backtest.pieces import History, Window
from rapport.pipeline.backtest.recorded_history import Interpreted, recorded_history
from rapport.pipeline.history.files import ReadingsFile, ReadingsFiles, Series, recorded_files
from rapport.pipeline.lake.silver_readings import silver_history
from rapport.policy.ontology import Ontology, PushSource
from rapport.policy.plan import PolicyPlan
from rapport.policy.replay.replay import Recording
from rapport.policy.situation_plan import SituationPlan, value_streams
from rapport.site.recordings import recordings_in_site

if TYPE_CHECKING:
    from rapport.mediation.interpretations.repository import ActiveInterpretations
    from rapport.site.site import Site


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


def find_history(
    site: Site, given: str | None, in_force: ActiveInterpretations | None = None
) -> History:
    """The history at a path, perhaps as SOURCE=PATH; None: the site's own lake, or the recorded
    files that its sources name. `in_force` gives raw files their meaning; None: the interpretations
    as the site's files have them.
    """

    def interpreted(source: PushSource, file: Path) -> Recording:
        return recordings_in_site(site, [f"{source.name}={file}"], in_force=in_force)[0]

    if given is None:
        return _own_history(site, interpreted)
    source, path = _split(site, given)
    if not source and path.is_dir() and is_lake(path):
        return lake_history(site, given, path)
    return recorded_history(site.ontology, given, path, source, interpreted)


def is_lake(path: Path) -> bool:
    """Whether a folder is a lake."""
    return (path / BRONZE).is_dir() or (path / SILVER).is_dir()


def lake_history(site: Site, label: str, lake: Path) -> History:
    """Silver where it has readings, else bronze; raises InvalidInput when neither has any, Conflict
    for a lake of a former format.
    """
    Lake.at(lake).refuse_former_format()
    found = silver_as_history(site.ontology, label, lake) if (lake / SILVER).is_dir() else None
    return found or bronze_history(site.ontology, label, lake)


def check_history(history: History, plans: list[PolicyPlan], asked: Window | None) -> list[Problem]:
    """Raises InvalidInput when the plans read nothing that is there, or the period has no data; the
    streams that only some of them miss are told as warnings.
    """
    streams = history.streams()
    problems: list[Problem] = []
    if history.kind == "silver" and history.lake is not None:
        problems += behind(history.lake)
    for plan in plans:
        # Other streams only make instances known; nobody misses them.
        read = value_streams(plan) if isinstance(plan, SituationPlan) else set(plan.streams())
        missing = sorted(read - streams)
        if missing and streams.isdisjoint(read):
            raise InvalidInput(
                f"{plan.policy} reads {_listed(read)}, of which {history.label} has nothing",
                code="backtest.other_streams",
                hint=f"it has {_listed(streams) or 'no readings at all'}",
            )
        if missing:
            problems.append(
                Problem(
                    severity="warning",
                    code="backtest.missing_streams",
                    message=f"{plan.policy} also reads {_listed(missing)}, of which "
                    f"{history.label} has nothing",
                )
            )
    if history.rows() == 0:
        raise InvalidInput(f"{history.label} has no rows", code="backtest.no_rows")
    span = history.span()
    if asked is not None and span is not None and not _touch(asked, span):
        raise nothing_in_period(history.label, span)
    return problems


def nothing_in_period(label: str, span: tuple[int, int] | None) -> InvalidInput:
    """The error of a period without a reading."""
    goes = f"it goes from {format_time(span[0])} to {format_time(span[1])}" if span else ""
    return InvalidInput(
        f"{label} has no readings in this period", code="backtest.empty_period", hint=goes
    )


def _touch(asked: Window, span: tuple[int, int]) -> bool:
    return asked.begin <= span[1] and span[0] < asked.end


def _listed(streams: object) -> str:
    return ", ".join(sorted(streams))  # type: ignore[call-overload]


def _split(site: Site, given: str) -> tuple[str, Path]:
    name, equals, rest = given.partition("=")
    if equals and name in site.ontology.sources:
        return name, Path(rest)
    return "", Path(given)


def _own_history(site: Site, interpreted: Interpreted) -> History:
    lake = site.data_directory / "lake"
    if is_lake(lake):
        return lake_history(site, str(lake), lake)
    feeds = [
        feed
        for source in site.ontology.sources.values()
        if source.events and (file := site.directory / source.events).is_file()
        for feed in recorded_history(
            site.ontology, source.events, file, source.name, interpreted
        ).feeds
    ]
    if feeds:
        return History(label="the site's recorded files", kind="recorded", feeds=tuple(feeds))
    raise InvalidInput(
        "the site has no lake yet, and no source names recorded events",
        code="backtest.no_lake",
        hint="fill it with rapport pipeline export, or name recorded files: --history PATH",
    )
