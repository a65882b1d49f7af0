"""Who decides which plan over a history in files: Spark by itself, or the operators. [PI-5]

Spark reads every file once more for a plan that it decides by itself; operators take a plan's
readings out of what is read anyway, but each that matters costs them more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from rapport.pipeline.history.files import ReadingsFiles
from rapport.pipeline.history.interest import Needs
from rapport.pipeline.history.lateness import GroupAt, groups_of
from rapport.pipeline.history.native.arrow_filter import arrow_filter
from rapport.pipeline.history.native.choose import Asked, Choice, choose, why_not_native
from rapport.pipeline.history.native.interest import interest_of
from rapport.pipeline.history.native.scanning import why_not_scanned
from rapport.pipeline.history.reading import Reader
from rapport.pipeline.history.rows import Codes, as_readings, rows_schema
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import PullData
from rapport.policy.plan import Plan

NATIVE_STARTS_US = 10_000_000
NATIVE_ROW_US = 0.1
SAVED_US = 6.5
"""Measured on two cores, in microseconds of all processes: what a plan costs Spark to begin with (a
third of it in a session that has run some before) and per row it reads, and how much more a
reading that matters costs operators than Spark."""
_SAMPLED_GROUPS = 3
_SAMPLED_ROWS = 8_192
_ROWS_NEEDED = int(NATIVE_STARTS_US / (SAVED_US - NATIVE_ROW_US))
SHARE_NEEDED = NATIVE_ROW_US / SAVED_US
"""If fewer readings matter, or there are fewer rows, operators are cheaper in any case."""


def choose_ways(
    plans: Sequence[Plan],
    pull: PullData,
    history: ReadingsFiles,
    sources: Mapping[str, PushSource] | None = None,
    way: Asked = "auto",
) -> list[Choice]:
    """How each plan is run, and why. Reads a few thousand rows where a plan could go either way."""
    return [_choose(plan, pull, history, sources or {}, way) for plan in plans]


def is_cheaper_natively(rows: int, kept: float) -> bool:
    """Whether a plan that Spark can decide by itself is better left to it, when `kept` of so many
    rows matter to it.
    """
    return rows * (SAVED_US * kept - NATIVE_ROW_US) > NATIVE_STARTS_US


def native_needs() -> str:
    """From when on Spark decides by itself, in words."""
    return f"more than {_ROWS_NEEDED:,} rows of which more than {SHARE_NEEDED:.0%} matter"


def _choose(
    plan: Plan,
    pull: PullData,
    history: ReadingsFiles,
    sources: Mapping[str, PushSource],
    way: Asked,
) -> Choice:
    reason = "they were asked for" if way == "operators" else ""
    if not reason and not why_not_native(plan):
        if way == "auto":
            reason = _why_dearer(plan, pull, history, sources)
        reason = reason or why_not_scanned(history, plan.streams())
    return choose(plan, pull, sources, without_native=reason)


def _why_dearer(
    plan: Plan, pull: PullData, history: ReadingsFiles, sources: Mapping[str, PushSource]
) -> str:
    """Why operators are cheaper; empty when they are not."""
    needs = Needs.of([plan], sources)
    groups = [at for at in groups_of(history) if needs.wants(history.series[at.series])]
    rows = sum(at.facts.rows for at in groups)
    told = "Spark by itself would read every file once more, and"
    if rows <= _ROWS_NEEDED:
        return f"{told} {rows:,} rows are too few for that to pay"
    condition = arrow_filter(interest_of([plan], pull, sources))
    seen = kept = 0
    for sample in _samples(plan, history, groups):
        seen += len(sample)
        kept += len(sample.filter(condition))
    share = kept / seen if seen else 0.0
    if is_cheaper_natively(rows, share):
        return ""
    return f"{told} only about {share:.1%} of {rows:,} rows matter"


def _samples(
    plan: Plan, history: ReadingsFiles, groups: Sequence[GroupAt]
) -> Iterator[pa.RecordBatch]:
    """The first rows of a few row groups, spread over the history."""
    codes = Codes.none()
    schema = rows_schema(history.series, plan.streams())
    reader = Reader(history.series, schema, codes, batch_rows=_SAMPLED_ROWS)
    step = max(len(groups) // _SAMPLED_GROUPS, 1)
    for at in groups[step // 2 :: step]:
        rows = next(iter(reader.read(at, lambda problem: None)), None)
        if rows is not None:
            yield as_readings(rows, codes)
