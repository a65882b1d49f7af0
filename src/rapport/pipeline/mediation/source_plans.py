"""Which way the events of each source go, and why. [ME-14, PI-4]"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from rapport.core.errors import InterpretationError, InvalidInput, UnknownName
from rapport.pipeline.mediation.fields_form import fields_plan
from rapport.pipeline.mediation.meanings import Meanings, why_in_order, why_with_others
from rapport.pipeline.mediation.operations import NativePlan, NotColumnsError, StepShown, fields_of
from rapport.pipeline.mediation.typed_form import typed_plan


class SourceWay(msgspec.Struct, frozen=True):
    """The way that the events of a source go: as columns, through Python in any order (`rows`),
    through Python in the order of the channel, or not at all; and why.
    """

    source: str
    kind: Literal["native", "rows", "in order", "refused", "no readings"]
    why: str = ""
    plan: NativePlan | None = None
    """Of native ones."""


def ways_of(
    meanings: Meanings, sources: Iterable[str] | None, *, native: bool = True
) -> list[SourceWay]:
    """The ways of all sources, or of some; raises UnknownName."""
    chosen = meanings.bindings if sources is None else sources
    return [_way(meanings, source, native) for source in chosen]


def _way(meanings: Meanings, source: str, native: bool) -> SourceWay:
    binding = meanings.bindings.get(source)
    if binding is None:
        raise UnknownName("source", source, list(meanings.bindings), code="source.unbound")
    if not binding.concept:
        return SourceWay(
            source, "no readings", "it gives no readings, but events of a type of root"
        )
    if others := why_with_others(meanings, source):
        return SourceWay(source, "refused", others)
    if order := why_in_order(meanings, source):
        return SourceWay(source, "in order", order)
    if not native:
        return SourceWay(source, "rows", "as asked")
    try:
        return SourceWay(source, "native", plan=native_plan(meanings, source))
    except NotColumnsError as error:
        return SourceWay(source, "rows", str(error))


def native_plan(meanings: Meanings, source: str) -> NativePlan:
    """The source's interpretation as column operations; raises NotColumnsError with the reason."""
    binding = meanings.bindings[source]
    name, in_force = binding.interpretation, meanings.in_force
    if name in in_force.refused:
        raise NotColumnsError(name, "the interpretation has faults")
    try:
        if name in in_force.typed:
            plan = typed_plan(binding, in_force, meanings.tables)
        elif name and name not in in_force.fields:
            raise NotColumnsError(name, "there is no such interpretation")
        else:
            plan = fields_plan(in_force.fields.get(name), binding, meanings.tables)
    except (InterpretationError, InvalidInput) as error:
        raise NotColumnsError(name or source, error.message) from None
    fields_of(plan)
    return plan


class SourceExplanation(msgspec.Struct, frozen=True):
    """How Spark mediates one source."""

    source: str
    interpretation: str
    way: str
    """`native`, `rows`, `in order`, `refused` or `no readings`."""
    why: str
    steps: tuple[StepShown, ...] = ()

    def lines(self) -> list[str]:
        """For people."""
        named = self.interpretation or "root"
        found = [f"{self.source} ({named}): {self.way}" + (f", as {self.why}" if self.why else "")]
        for step in self.steps:
            why = f": {step.why}" if step.why else ""
            found.append(f"  {step.way:<6}  {step.place}: {step.what}{why}")
        return found


def explain_mediation(
    meanings: Meanings, sources: Iterable[str] | None = None
) -> list[SourceExplanation]:
    """Of each source which steps are native columns, which call Python, and why; no Spark needed.

    In every way, rows that columns are not certain about go through the generated Python.
    """
    return [
        SourceExplanation(
            way.source,
            meanings.bindings[way.source].interpretation,
            way.kind,
            way.why,
            way.plan.steps if way.plan is not None else (),
        )
        for way in ways_of(meanings, sources)
    ]
