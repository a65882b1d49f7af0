"""Plans that Spark decides by itself, over the files of a history. [PI-5]"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from rapport.pipeline.history.feeds import GroupFacts
from rapport.pipeline.history.files import ReadingsFiles
from rapport.pipeline.history.lateness import groups_of
from rapport.pipeline.history.native.choose import detected
from rapport.pipeline.history.native.scanning import Judged, scanned
from rapport.pipeline.history.outcome import unpacked
from rapport.pipeline.history.reading import changed
from rapport.pipeline.history.shown_facts import corrected
from rapport.policy.operators.base import PullData
from rapport.policy.plan import Plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def judged_history(history: ReadingsFiles, told: pa.Table, *, lateness_ms: int, end: int) -> Judged:
    """A history with what its row groups showed to those who read them."""
    shown = list(unpacked(told, GroupFacts))
    known, groups = corrected(history, groups_of(history), shown)
    return Judged(
        series=known.series,
        groups=groups,
        shown={one.number: one for one in shown},
        lateness_ms=lateness_ms,
        end=end,
    )


def detect_natively(
    spark: SparkSession, plans: Sequence[Plan], pull: PullData, judged: Judged
) -> pa.Table:
    """The detections of plans of which `why_not_native` says nothing, as rows of
    `detection_columns.COLUMNS`, in any order. Every plan is a scan of its files: made for few
    plans.

    Raises SiteError when a file is not what it was when it was judged.
    """
    frames = [detected(scanned(spark, judged, plan.streams()), plan, pull) for plan in plans]
    found = reduce(lambda one, other: one.unionAll(other), frames).toArrow()
    for file in (file for series in judged.series for file in series.files):
        path = Path(file.path)
        if path.stat().st_size != file.size:
            raise changed(path)
    return found
