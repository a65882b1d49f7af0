"""Which way the events of each source go, and why. [ME-14, PI-4]"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rapport.core.errors import InterpretationError, InvalidInput, UnknownName
from rapport.pipeline.mediation.fields_form import fields_plan
from rapport.pipeline.mediation.meanings import Meanings, why_in_order, why_with_others
from rapport.pipeline.mediation.operations import NativePlan, NotColumnsError, StepShown, fields_of
from rapport.pipeline.mediation.typed_form import typed_plan


class Ways(msgspec.Struct):
    """Sources by the way their events go: as columns, through Python in any order, through Python
    in the order of the channel, or not at all. `into` are those that give no readings.
    """

    native: list[NativePlan] = []
    by_rows: list[str] = []
    in_order: list[str] = []
    refused: dict[str, str] = {}
    into: list[str] = []
    why: dict[str, str] = {}


def ways_of(meanings: Meanings, sources: Iterable[str] | None, *, native: bool = True) -> Ways:
    """The ways of all sources, or of some; raises UnknownName."""
    chosen = list(meanings.bindings) if sources is None else list(sources)
    found = Ways()
    for source in chosen:
        binding = meanings.bindings.get(source)
        if binding is None:
            raise UnknownName("source", source, list(meanings.bindings), code="source.unbound")
        others, order = why_with_others(meanings, source), why_in_order(meanings, source)
        if not binding.concept:
            found.into.append(source)
            found.why[source] = "it gives no readings, but events of a type of root"
        elif others:
            found.refused[source] = found.why[source] = others
        elif order:
            found.in_order.append(source)
            found.why[source] = order
        else:
            _as_columns(found, meanings, source, native)
    return found


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


def _as_columns(found: Ways, meanings: Meanings, source: str, native: bool) -> None:
    if not native:
        found.by_rows.append(source)
        found.why[source] = "as asked"
        return
    try:
        found.native.append(native_plan(meanings, source))
    except NotColumnsError as error:
        found.by_rows.append(source)
        found.why[source] = str(error)


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
    ways = ways_of(meanings, sources)
    steps = {plan.source: plan.steps for plan in ways.native}
    kinds = {source: "rows" for source in ways.by_rows}
    kinds |= {source: "in order" for source in ways.in_order}
    kinds |= {source: "refused" for source in ways.refused}
    kinds |= {source: "no readings" for source in ways.into}
    kinds |= dict.fromkeys(steps, "native")
    chosen = meanings.bindings if sources is None else list(sources)
    return [
        SourceExplanation(
            source,
            meanings.bindings[source].interpretation,
            kinds[source],
            ways.why.get(source, ""),
            steps.get(source, ()),
        )
        for source in chosen
    ]
