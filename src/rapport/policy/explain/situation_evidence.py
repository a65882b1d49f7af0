"""Explains a situation at a time: each atom with its value, since when it has held, how far it is
from the limit, and the readings of an aggregate. [SI-12]

The operator runs over the readings of the past; its traces give the evidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.detection import Cause
from rapport.core.errors import InvalidInput
from rapport.policy.compiler.situation_text import value_text
from rapport.policy.ontology import Ontology
from rapport.policy.operators.base import PullData
from rapport.policy.situation_plan import AggregateValue, SituationPlan, plan_nodes
from rapport.policy.situations.current_states import AtomReader, AtomState, Truth, shown_truth
from rapport.policy.situations.graph import Frame, PlacedCondition
from rapport.policy.situations.situation_operator import SituationOperator
from rapport.policy.situations.traces import Trace

MOST_READINGS = 1_000


class AtomEvidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One atom at the time, and since when its truth has been the same."""

    atom: AtomState
    since: int | None = None
    """None: since before the readings that were looked at."""


class AggregateReadings(msgspec.Struct, frozen=True, kw_only=True):
    """The readings that an aggregate had: the newest 1,000, and their number."""

    aggregate: str
    count: int
    readings: tuple[Cause, ...]


class SituationEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """A situation at a time."""

    time: int
    bindings: dict[str, str]
    truth: Truth
    """Of the whole expression."""
    atoms: tuple[AtomEvidence, ...] = ()
    aggregates: tuple[AggregateReadings, ...] = ()


class _Changes(NamedTuple):
    """The truth of an atom, and when it became that."""

    truth: int
    since: int | None


def check_bindings(plan: SituationPlan, given: Mapping[str, str]) -> None:
    """Raises InvalidInput when a binding is not named whole."""
    aliases = [bound.alias for bound in plan.aliases]
    if set(given) != set(aliases):
        names = ", ".join(f"{alias}=..." for alias in aliases)
        raise InvalidInput(
            f"{plan.policy!r} has a situation for each {' and '.join(aliases)}",
            code="policy.which_situation",
            hint=f"name which: {names}",
        )


def situation_at(
    plan: SituationPlan,
    ontology: Ontology,
    pull: PullData,
    readings: pa.RecordBatch,
    bindings: Mapping[str, str],
    time: int,
    began: int | None = None,
) -> SituationEvidence | None:
    """The evidence for one binding; None when the readings do not tell of it. `readings` are sorted
    by (time, id) and begin well before. `began`: the start; None: the first of them.
    """
    operator = SituationOperator([plan], pull, ontology.sources, began)
    situations = operator.situations_of(plan.policy)
    changes: dict[str, _Changes] = {}
    reader = AtomReader(situations, ontology)

    def observe() -> None:
        row = situations.row_of(bindings)
        if row is not None:
            for text, placed, frame in reader.placed_atoms():
                changes[text] = _after(changes.get(text), placed, frame, situations.frame, row)

    operator.on_step = observe
    operator.process(readings.filter(pc.less_equal(readings.column("time"), time)), time + 1)
    row = situations.row_of(bindings)
    if row is None:
        return None
    atoms = [
        AtomEvidence(atom=atom, since=changes[atom.text].since if atom.text in changes else None)
        for atom in reader.atoms(row)
    ]
    return SituationEvidence(
        time=time,
        bindings=dict(bindings),
        truth=shown_truth(situations, row),
        atoms=tuple(atoms),
        aggregates=tuple(_aggregates(plan, readings, bindings, time)),
    )


def _after(
    before: _Changes | None, placed: PlacedCondition, frame: Frame, outer: Frame, row: int
) -> _Changes:
    """The truth of an atom after the changes of a step."""
    index = outer.index(frame)
    target = row if index is None else int(index.targets(np.array([row]))[0])
    trace: Trace = placed.trace
    now = before or _Changes(int(trace.fill), None)
    own = np.flatnonzero(trace.fresh.rows == target)
    for place in own.tolist():
        truth = int(trace.fresh.values[place])
        if truth != now.truth:
            now = _Changes(truth, int(trace.fresh.times[place]))
    return now


def _aggregates(
    plan: SituationPlan, readings: pa.RecordBatch, bindings: Mapping[str, str], time: int
) -> list[AggregateReadings]:
    """The readings in the windows of the aggregates over bound aliases."""
    found: dict[str, AggregateReadings] = {}
    for node in plan_nodes(plan):
        if not isinstance(node, AggregateValue) or node.of.alias not in bindings:
            continue
        own = readings.filter(pc.equal(readings.column("stream"), node.of.stream))
        own = own.filter(pc.equal(own.column("key"), bindings[node.of.alias]))
        times = own.column("time")
        own = own.filter(
            pc.and_(pc.greater(times, time - node.window_ms), pc.less_equal(times, time))
        )
        newest = own.slice(max(len(own) - MOST_READINGS, 0))
        causes = zip(
            newest.column("time").to_pylist(), newest.column("id").to_pylist(), strict=True
        )
        text = value_text(node)
        found[text] = AggregateReadings(aggregate=text, count=len(own), readings=tuple(causes))
    return list(found.values())
