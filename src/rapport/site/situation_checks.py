"""Checks of the situations and guards of a site: days, what is kept, attributes they read. [SI-3,
SI-7, SI-13]"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

from rapport.channel.config import channels_from_site
from rapport.channel.retention.limits import keep_of
from rapport.core.errors import Problem
from rapport.core.times import format_duration
from rapport.mediation.source_bindings import EVENTS
from rapport.policy.compiler.compile import CompiledConditions, CompiledPolicy, CompiledSituation
from rapport.policy.language.diagnostics import Diagnostics
from rapport.policy.language.situation_tree import nodes_of, read_attributes, tree_nodes
from rapport.policy.language.tree import SourceSpan
from rapport.policy.lint.situation_lint import first_place, longest_look_back
from rapport.policy.situation_plan import (
    SituationPlan,
    TableDays,
    TimeWindow,
    condition_nodes,
    table_attributes_of,
)
from rapport.site.parts import SiteParts


def check_days(parts: SiteParts) -> list[Problem]:
    """The tables that list days for `time is on holidays` have ISO dates as keys."""
    if parts.tables is None:
        return []
    problems: list[Problem] = []
    for name, compiled in parts.policies.items():
        faults = Diagnostics(name, parts.texts[name])
        for table in _day_tables(compiled):
            declared = parts.tables.declarations().get(table)
            if declared is None:
                continue  # the table has a fault of its own
            keys = [key for (key,) in parts.tables.rows(table, [declared.key])]
            wrong = next((key for key in keys if not _is_date(key)), None)
            if wrong is not None:
                message = f"the table {table!r} lists {wrong[:40]!r}, which is no day"
                hint = "write days as 2024-12-24"
                faults.add("policy.bad_day", message, _first_place(compiled), hint=hint)
        problems.extend(faults.problems())
    return problems


def _day_tables(compiled: CompiledPolicy) -> list[str]:
    plan = compiled.plan
    guard = [] if isinstance(plan, SituationPlan) or plan.guard is None else [plan.guard]
    conditions = plan.conditions() if isinstance(plan, SituationPlan) else guard
    windows = [one for one in condition_nodes(conditions) if isinstance(one, TimeWindow)]
    days = [day for window in windows for day in window.days]
    return sorted({day.table for day in days if isinstance(day, TableDays)})


def _first_place(compiled: CompiledPolicy) -> SourceSpan:
    """The place of the situation, or of the guard."""
    if isinstance(compiled, CompiledSituation):
        return first_place(compiled.tree.situation)
    assert compiled.tree.guard is not None, "only a guard names days"
    return first_place(compiled.tree.guard)


def _is_date(text: str) -> bool:
    try:
        return len(text) == len("2024-12-24") and bool(date.fromisoformat(text))
    except ValueError:
        return False


def check_kept(parts: SiteParts) -> list[Problem]:
    """Situations that look back further than the events are kept: they cannot be explained then."""
    problems: list[Problem] = []
    kept_ms = keep_of(channels_from_site(parts.file)[0].rules_for(EVENTS)).shortest_ms
    for name, compiled in parts.policies.items():
        if not isinstance(compiled, CompiledSituation):
            continue
        faults = Diagnostics(name, parts.texts[name])
        found = longest_look_back(compiled.tree)
        if found is not None and 0 < kept_ms < found[0]:
            back, kept = format_duration(found[0]), format_duration(kept_ms)
            faults.add(
                "policy.window_longer_than_kept",
                f"this looks back {back}, but readings are kept {kept}: 'explain' lacks some",
                found[1],
                hint=f'[channels.{EVENTS}] keep_for = "{back}"',
                severity="warning",
            )
        problems.extend(faults.problems())
    return problems


def needed_by_situation(compiled: CompiledSituation) -> list[tuple[str, str, SourceSpan]]:
    """Each attribute at its first place in the text, a property of a kind at its definition."""
    whole = compiled.tree.concepts[0].place if compiled.tree.concepts else SourceSpan(1, 1)
    read = read_attributes(compiled.tree.concepts, tree_nodes(compiled.tree))
    found = _placed(compiled.plan.table_attributes(), read)
    return [(concept, name, place or whole) for concept, name, place in found]


def needed_by_guard(compiled: CompiledConditions) -> list[tuple[str, str, SourceSpan]]:
    """What the guard of a policy reads from tables, each at its first place."""
    guard = compiled.tree.guard
    if guard is None or compiled.plan.guard is None:
        return []
    read = read_attributes(compiled.tree.concepts, nodes_of(guard))
    found = _placed(table_attributes_of([compiled.plan.guard]), read)
    return [(concept, name, place or first_place(guard)) for concept, name, place in found]


def _placed(
    attributes: Iterable[tuple[str, str]], read: Iterable[tuple[str, SourceSpan]]
) -> list[tuple[str, str, SourceSpan | None]]:
    """Attributes of concepts with their first place in the text."""
    places: dict[str, SourceSpan] = {}
    for name, place in read:
        places.setdefault(name, place)
    return [(concept, name, places.get(name)) for concept, name in sorted(attributes)]
