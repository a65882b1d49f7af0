"""Plans that need no state, wholly on Spark: detections without Python. [PI-5]

Such a plan finds something in one event at a time: each of its matches rests on one occurrence of
one query or comparison, beside facts of the tables. Windows, order, consumption and lateness of
others then mean nothing to it, and rows may be judged in any order, wherever they lie.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from rapport.core.errors import RapportError, Unsupported
from rapport.pipeline.history.native.occurrences import ID, TIME, Occurrences
from rapport.pipeline.history.native.operands import why_not_a_condition
from rapport.policy.operators.base import PullData
from rapport.policy.operators.identities import Identities
from rapport.policy.operators.occurrences import Predicate, constraint_pairs
from rapport.policy.operators.plan_shape import Combination, Occurs, plan_shape
from rapport.policy.plan import (
    ConstraintTerm,
    CorrelationTerm,
    LastingTerm,
    Plan,
    QueryTerm,
    ReadingTerm,
    SilentTerm,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def why_not_native(plan: Plan) -> str:
    """Why operators are needed for a plan; empty when `detected` can do all of it."""
    try:
        shape = plan_shape(plan)
    except RapportError as error:
        return error.message
    if shape.absent or shape.mixed:
        return "it asks for absence, which later events decide"
    parts = [part for each in shape.combinations for part in each.parts()]
    if not all(isinstance(part, Occurs) for part in parts):
        return "it asks for events in order"
    if plan.once_per_ms is not None:
        return "'at most once per' depends on what was reported before"
    return next(filter(None, (_why_not(plan, each) for each in shape.combinations)), "")


def detected(rows: DataFrame, plan: Plan, pull: PullData) -> DataFrame:
    """The detections of a plan in readings that are not late, as rows of
    `detection_columns.COLUMNS`, each once, in any order. Only these are shuffled. Raises
    Unsupported with `why_not_native`.
    """
    reason = why_not_native(plan)
    if reason:
        raise Unsupported(f"policy {plan.policy!r} ({reason})", "Spark without the operators")
    by_aliases: dict[tuple[str, ...], list[DataFrame]] = {}
    shape = plan_shape(plan)
    for combination in shape.combinations:
        found = _matches(rows, plan, combination, pull)
        names = tuple(sorted(set(found.columns) - {TIME, ID}))
        by_aliases.setdefault(names, []).append(found.select(TIME, ID, *_quoted(names)))
    if not by_aliases:
        return _as_detections(_none(rows), plan, ())
    parts = [
        # Different events may have one id, different ways may lead to one match.
        _as_detections(reduce(_union, frames).dropDuplicates(), plan, names)
        for names, frames in by_aliases.items()
    ]
    return reduce(_union, parts)


def _why_not(plan: Plan, combination: Combination) -> str:
    events = [term for term in combination.terms if not _is_fact(plan, term)]
    if len(events) > 1:
        return "what it asks for together may be told by several events"
    term = plan.terms[events[0]]
    match term:
        case CorrelationTerm():
            return f"{term.first.alias} and {term.second.alias} meet by two events"
        case LastingTerm():
            return f"a state of {term.first.alias} must last"
        case SilentTerm():
            return f"a silence of {term.first.alias} must last"
        case QueryTerm() | ReadingTerm():
            function = why_not_a_condition(term)
            return f"{function!r} is a function in Python" if function else ""
    return ""


def _is_fact(plan: Plan, term: int) -> bool:
    return isinstance(plan.terms[term], ConstraintTerm)


def _matches(rows: DataFrame, plan: Plan, combination: Combination, pull: PullData) -> DataFrame:
    """The occurrences of the one term with events, joined with the facts, aliases kept apart."""
    [number] = [term for term in combination.terms if not _is_fact(plan, term)]
    event = plan.terms[number]
    assert isinstance(event, QueryTerm | ReadingTerm)
    frame = Occurrences(event, pull).of(rows)
    facts = [plan.terms[term] for term in combination.terms if term != number]
    left = [fact for fact in facts if isinstance(fact, ConstraintTerm)]
    while left:
        fact = max(left, key=lambda one: len(_aliases(one) & set(frame.columns)))
        left.remove(fact)
        frame = _with_fact(frame, fact, pull)
    return _apart(frame, plan)


def _with_fact(frame: DataFrame, fact: ConstraintTerm, pull: PullData) -> DataFrame:
    """The rows joined with the instances of which a fact holds."""
    from pyspark.sql import functions as sql

    table = _fact_table(fact, pull)
    small = sql.broadcast(frame.sparkSession.createDataFrame(table))
    shared = [name for name in table.column_names if name in frame.columns]
    return frame.join(small, shared) if shared else frame.crossJoin(small)


def _fact_table(fact: ConstraintTerm, pull: PullData) -> pa.Table:
    sides = (fact.first, fact.second)
    identities = {side.concept: Identities(pull.instances(side.concept)) for side in sides}
    first, second = (identities[side.concept] for side in sides)
    ours, theirs = constraint_pairs(fact, first, second, Predicate(fact, identities, pull))
    columns = {
        f"@{fact.second.alias}": second.texts(theirs),
        f"@{fact.first.alias}": first.texts(ours),
    }
    return pa.table({name: pa.array(texts, pa.string()) for name, texts in columns.items()})


def _apart(frame: DataFrame, plan: Plan) -> DataFrame:
    """The rows that keep aliases of one concept apart which the policy calls distinct."""
    from pyspark.sql import functions as sql

    sides = [side for term in plan.terms for side in (term.first, term.second)]
    concepts = {f"@{side.alias}": side.concept for side in sides}
    for pair in plan.distinct:
        one, other = (f"@{alias}" for alias in pair)
        if {one, other} <= set(frame.columns) and concepts[one] == concepts[other]:
            frame = frame.where(sql.col(f"`{one}`") != sql.col(f"`{other}`"))
    return frame


def _as_detections(frame: DataFrame, plan: Plan, aliases: tuple[str, ...]) -> DataFrame:
    """Rows of events and identities as detections, at the time of the event."""
    from pyspark.sql import functions as sql

    bound = [part for name in aliases for part in (sql.lit(name[1:]), sql.col(f"`{name}`"))]
    return frame.select(
        sql.lit(plan.policy).alias("policy"),
        sql.lit(plan.version()).alias("version"),
        sql.col(TIME).alias("time"),
        sql.create_map(*bound).cast("map<string,string>").alias("bindings"),
        sql.array(TIME).alias("cause_times"),
        sql.array(ID).alias("cause_ids"),
        sql.lit(None).cast("array<string>").alias("silent"),
    )


def _aliases(fact: ConstraintTerm) -> set[str]:
    return {f"@{fact.first.alias}", f"@{fact.second.alias}"}


def _none(rows: DataFrame) -> DataFrame:
    return rows.where("false").select(TIME, ID)


def _union(first: DataFrame, second: DataFrame) -> DataFrame:
    return first.unionAll(second)


def _quoted(names: tuple[str, ...]) -> list[str]:
    return [f"`{name}`" for name in names]
