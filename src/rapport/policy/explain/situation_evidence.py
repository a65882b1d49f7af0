"""Explains a situation at a time: each atom with its value, since when it has held, how far it is
from the limit, and the readings of an aggregate. [SI-12]

The operator runs over the readings of the past; its traces give the evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.detection import Cause
from rapport.core.errors import InvalidInput
from rapport.policy.compiler.situation_text import value_text
from rapport.policy.ontology import Ontology
from rapport.policy.operators.base import BEGIN_OF_TIME, PullData
from rapport.policy.situation_plan import AggregateValue, SituationPlan, plan_nodes
from rapport.policy.situations.current_states import AtomReader, AtomState, Truth, shown_truth
from rapport.policy.situations.graph import Frame, PlacedCondition
from rapport.policy.situations.lives import PolicySituations
from rapport.policy.situations.situation_operator import SituationOperator
from rapport.policy.situations.traces import UNKNOWN, Trace

MOST_READINGS = 1_000
_CAUSE = ["time", "id"]


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


class SituationEvidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A situation at a time."""

    time: int
    bindings: dict[str, str]
    truth: Truth
    """Of the whole expression."""
    atoms: tuple[AtomEvidence, ...] = ()
    aggregates: tuple[AggregateReadings, ...] = ()
    looked_from: int | None = None
    """Atoms without `since` have been so at least since this time. None: nothing is known of it."""

    def lacks_since(self) -> bool:
        """Whether some atom has been so since before the readings that were looked at."""
        return any(one.since is None for one in self.atoms)


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
    *,
    began: int | None = None,
    settled: int | None = None,
) -> SituationEvidence | None:
    """The evidence for one binding; None when the readings do not tell of it. `readings` are sorted
    by (time, id) and begin well before. `began`, `settled`: see EvidenceRun.
    """
    run = EvidenceRun(plan, ontology, pull, [bindings], began=began, settled=settled)
    run.process(readings.filter(pc.less_equal(readings.column("time"), time)), time + 1)
    return run.evidence(bindings)


class EvidenceRun:
    """Runs the operator of a plan over readings and gives evidence for some bindings.

    Keeps the readings in the windows of their aggregates; nothing else grows with the readings.
    """

    def __init__(
        self,
        plan: SituationPlan,
        ontology: Ontology,
        pull: PullData,
        bindings: Iterable[Mapping[str, str]],
        *,
        began: int | None = None,
        settled: int | None = None,
    ) -> None:
        """`began`: the start; None: the first reading. `settled`: there are readings before those
        that are given, and changes before this time may come from their absence; None: the readings
        are all there are.
        """
        self._plan, self._settled = plan, settled
        self._operator = SituationOperator([plan], pull, ontology.sources, began)
        self._situations = self._operator.situations_of(plan.policy)
        self._reader = AtomReader(self._situations, ontology)
        self._followed = [_FollowedBinding(dict(one)) for one in bindings]
        aliases = {bound.alias for bound in plan.aliases}
        self._aggregates = [
            node
            for node in plan_nodes(plan)
            if isinstance(node, AggregateValue) and node.of.alias in aliases
        ]
        self._recent: dict[tuple[str, str], list[pa.RecordBatch]] = {}
        """By stream and identity."""
        self._first = began
        self._watermark = 0
        self._operator.on_step = self._observe

    def process(self, readings: pa.RecordBatch, watermark: int) -> None:
        """Takes readings sorted by (time, id), all before the watermark."""
        if len(readings) and self._first is None:
            self._first = int(readings.column("time")[0].as_py())
        self._operator.process(readings, watermark)
        self._watermark = watermark
        self._keep_recent(readings)

    def evidence(self, bindings: Mapping[str, str]) -> SituationEvidence | None:
        """The last instant before the watermark; None when the readings do not tell of it."""
        followed = next(one for one in self._followed if one.bindings == bindings)
        row = followed.row(self._situations)
        if row is None:
            return None
        changes = followed.changes
        atoms = [
            AtomEvidence(atom=one, since=changes[one.text].since if one.text in changes else None)
            for one in self._reader.atoms(row)
        ]
        return SituationEvidence(
            time=self._watermark - 1,
            bindings=dict(bindings),
            truth=shown_truth(self._situations, row),
            atoms=tuple(atoms),
            aggregates=tuple(self._readings_of(bindings)),
            looked_from=self._first if self._settled is None else self._settled,
        )

    def _observe(self) -> None:
        for one in self._followed:
            row = one.row(self._situations)
            if row is not None:
                for text, placed, frame in self._reader.placed_atoms():
                    one.changes[text] = _after(
                        one.changes.get(text),
                        placed,
                        frame,
                        self._situations.frame,
                        row,
                        self._settled,
                    )

    def _keep_recent(self, readings: pa.RecordBatch) -> None:
        """Adds the readings of the aggregates, and drops those that left the windows."""
        for node in self._aggregates:
            for one in self._followed:
                key = (str(node.of.stream), one.bindings[node.of.alias])
                self._recent.setdefault(key, [])
        for (stream, identity), kept in self._recent.items():
            if len(readings):
                own = readings.filter(pc.equal(readings.column("stream"), stream))
                kept.append(own.filter(pc.equal(own.column("key"), identity)).select(_CAUSE))
            longest = max(one.window_ms for one in self._aggregates if one.of.stream == stream)
            kept[:] = [one for one in kept if _last_time(one) >= self._watermark - longest]

    def _readings_of(self, bindings: Mapping[str, str]) -> list[AggregateReadings]:
        """The readings in the windows of the aggregates over bound aliases."""
        found: dict[str, AggregateReadings] = {}
        time = self._watermark - 1
        for node in self._aggregates:
            kept = self._recent.get((str(node.of.stream), bindings[node.of.alias]), [])
            causes = [
                (at, id)
                for batch in kept
                for at, id in zip(
                    batch.column("time").to_pylist(), batch.column("id").to_pylist(), strict=True
                )
                if time - node.window_ms < at <= time
            ]
            text, newest = value_text(node), tuple(causes[-MOST_READINGS:])
            found[text] = AggregateReadings(aggregate=text, count=len(causes), readings=newest)
        return list(found.values())


class _FollowedBinding:
    """A binding and the changes of its atoms."""

    def __init__(self, bindings: dict[str, str]) -> None:
        self.bindings = bindings
        self.changes: dict[str, _Changes] = {}
        self._row: int | None = None
        self._looked_at = -1

    def row(self, situations: PolicySituations) -> int | None:
        """The row of the binding; None while it has none."""
        size = situations.frame.rows.size
        row = self._row
        if row is not None and row < size and situations.bindings(row) == self.bindings:
            return row
        if row is not None or size != self._looked_at:
            self._row, self._looked_at = situations.row_of(self.bindings), size
        return self._row


def _last_time(readings: pa.RecordBatch) -> int:
    return int(readings.column("time")[-1].as_py()) if len(readings) else BEGIN_OF_TIME


def _after(
    before: _Changes | None,
    placed: PlacedCondition,
    frame: Frame,
    outer: Frame,
    row: int,
    settled: int | None,
) -> _Changes:
    """The truth of an atom after the changes of a step."""
    index = outer.index(frame)
    target = row if index is None else int(index.targets(np.array([row]))[0])
    trace: Trace = placed.trace
    now = before or _Changes(int(trace.fill), None)
    own = np.flatnonzero(trace.fresh.rows == target)
    for place in own.tolist():
        truth, time = int(trace.fresh.values[place]), int(trace.fresh.times[place])
        if truth != now.truth:
            # What becomes known may have been so before the first reading.
            is_known = settled is None or (time >= settled and now != _Changes(UNKNOWN, None))
            now = _Changes(truth, time if is_known else None)
    return now
