"""The graph of a situation: the nodes that its plan needs, each in the smallest set of rows that
decides it. Equal parts of plans share their nodes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from rapport.core.detection import Cause
from rapport.policy import measures, relations
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import PullData
from rapport.policy.operators.columns import Rows
from rapport.policy.operators.identities import Identities
from rapport.policy.situation_plan import (
    AggregateValue,
    AllOf,
    AnyPart,
    Arithmetic,
    BoundAlias,
    ComparedValues,
    Condition,
    ConvertedValue,
    CountedInstances,
    CountedTerm,
    FixedValue,
    FunctionValue,
    Negation,
    PresentValue,
    RelatedInstances,
    SilentStream,
    SituationPlan,
    Sustained,
    TimeWindow,
    Value,
    inner_nodes,
)
from rapport.policy.situations import truth_traces as made
from rapport.policy.situations.aggregates import LongEnough, WindowLog, make_aggregate
from rapport.policy.situations.binding_rows import Driver, JoinedRows, NearPairs, PassingRows
from rapport.policy.situations.counted_terms import CountedReadings, TermAtReadings
from rapport.policy.situations.present_values import (
    AllowedInstances,
    ConceptRows,
    IdentityTexts,
    KnownRows,
    StreamReadings,
    TableValues,
)
from rapport.policy.situations.times_of_day import TimeOfDayTrace
from rapport.policy.situations.traces import (
    TRUE,
    UNKNOWN,
    ConstantScope,
    FixedTarget,
    RowIndex,
    Source,
    SpreadTrace,
    Step,
    Trace,
    distinct,
    renumbering,
)
from rapport.policy.situations.truth_traces import (
    Combined,
    CountingRows,
    FromTheFind,
    SilenceTrace,
    SustainedTrace,
    WhileKnown,
)

_T = TypeVar("_T")
Causing = Callable[[Rows, Rows], list[Cause | None]]
AnyRows = ConstantScope | ConceptRows | JoinedRows | PassingRows


class Frame:
    """Rows with the aliases that they bind."""

    def __init__(
        self,
        key: Hashable,
        rows: AnyRows,
        aliases: Mapping[str, BoundAlias],
        identities: Mapping[str, Identities],
        alias: str = "",
    ) -> None:
        """`identities`: those of each alias; `alias`: the one of a concept's rows."""
        self.key, self.rows, self.aliases, self.alias = key, rows, dict(aliases), alias
        self.identities = identities

    def index(self, inner: Frame) -> RowIndex | None:
        """For each row of this frame the row of a smaller one; None where they are the same."""
        if inner.rows is self.rows:
            return None
        if isinstance(inner.rows, ConstantScope):
            return FixedTarget(self.rows)
        assert isinstance(self.rows, JoinedRows | PassingRows)
        return self.rows.columns[inner.alias]


class PlacedTrace(NamedTuple):
    """A trace and the frame of its rows."""

    frame: Frame
    trace: Trace


class CauseReader(NamedTuple):
    """Where the causes of a value come from."""

    frame: Frame
    causes: Causing


class PlacedValue(NamedTuple):
    frame: Frame
    trace: Trace
    readers: tuple[CauseReader, ...] = ()
    present: tuple[PlacedTrace, ...] = ()
    """The present values and aggregates that it needs."""
    completeness: Trace | None = None
    """Of a count: whether it is more than a lower bound."""


class PlacedCondition(NamedTuple):
    """A condition with what its causes need."""

    condition: Condition
    frame: Frame
    trace: Trace
    parts: tuple[PlacedCondition, ...] = ()
    readers: tuple[CauseReader, ...] = ()
    inner: Frame | None = None
    """Of a quantifier: the rows with its own alias."""
    counted: Trace | None = None
    """Of a quantifier: which rows count."""
    counting: Trace | None = None
    """Of a quantifier: how many rows count."""


class RowUser(Protocol):
    """Who has state for rows of bindings."""

    @property
    def rows(self) -> AnyRows: ...

    def busy_rows(self) -> Rows:
        """The rows that must be kept."""

    def keep_rows(self, kept: Rows, renumbered: Rows) -> None:
        """The kept rows get the numbers 0, 1, 2, ...; `renumbered`: by old number."""


class SituationGraph:
    """The nodes of some plans over the same readings, tables and start."""

    def __init__(self, pull: PullData, sources: Mapping[str, PushSource]) -> None:
        self._pull, self._sources = pull, sources
        self.constant = ConstantScope()
        self.concepts: dict[str, ConceptRows] = {}
        self._stages: dict[Hashable, Any] = {}
        """Everything that runs in a step, in order."""
        self.streams: dict[str, StreamReadings] = {}
        self._concept_streams: dict[str, set[str]] = {}
        self.history_ms = 0
        self.everywhere = Frame("constant", self.constant, {}, {})

    # --- steps ---

    def run(self, readings: pa.RecordBatch | None, step: Step) -> None:
        if readings is not None and len(readings):
            for stream in self.streams.values():
                stream.load(readings)
        self.constant.begin(step)
        for rows in self.concepts.values():
            rows.begin(step, self.history_ms)
        for stage in self._stages.values():
            stage.run(step)

    def commit(self, step: Step) -> None:
        for stage in self._stages.values():
            if isinstance(stage, JoinedRows | PassingRows):
                stage.commit()
            else:
                stage.commit(step)
        for rows in self.concepts.values():
            rows.commit()
        self.constant.commit()

    def due(self) -> int | None:
        """The next time at which something changes without a reading; call before `commit`."""
        dues = [
            stage.due()
            for stage in self._stages.values()
            if not isinstance(stage, JoinedRows | PassingRows)
        ]
        return min((due for due in dues if due is not None), default=None)

    def state(self) -> dict[str, Any]:
        return {
            "begun": self.constant.is_begun,
            "concepts": {name: rows.state() for name, rows in self.concepts.items()},
            "nodes": {repr(key): stage.state() for key, stage in self._stages.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.constant.is_begun = state["begun"]
        for name, rows in self.concepts.items():
            rows.restore(state["concepts"][name])
        for key, stage in self._stages.items():
            stage.restore(state["nodes"][repr(key)])

    def binding_row_count(self) -> int:
        """The rows of bindings in memory."""
        return sum(one.size for one in self._stages.values() if isinstance(one, JoinedRows))

    def drop_rows(self, users: Sequence[RowUser]) -> None:
        """Drops bindings that cannot matter before they are found again; between steps."""
        scopes = [one for one in self._stages.values() if isinstance(one, JoinedRows)]
        for rows in reversed(scopes):
            if not rows.may_drop:
                continue
            inner = [one for one in scopes if one.outer is rows]
            own = [user for user in users if user.rows is rows]
            needed = [rows.near_rows(), *(one.parents.all() for one in inner)]
            needed += [user.busy_rows() for user in own]
            kept = distinct(np.concatenate(needed))
            if len(kept) == rows.size:
                continue
            renumbered = renumbering(kept, rows.size)
            for stage in self._stages.values():
                if isinstance(stage, Trace) and stage.scope is rows:
                    stage.keep_rows(kept)
                elif isinstance(stage, PassingRows) and stage.outer is rows:
                    stage.clear()
            for user in own:
                user.keep_rows(kept, renumbered)
            rows.keep_rows(kept)
            for one in inner:
                one.renumber_parents(renumbered)

    @property
    def widest(self) -> int:
        """The largest number of rows of any scope."""
        sizes = [rows.size for rows in self.concepts.values()]
        found = (one.size for one in self._stages.values() if isinstance(one, JoinedRows))
        return max([1, *sizes, *found])

    # --- frames ---

    def prepare(self, plans: Sequence[SituationPlan]) -> None:
        """Notes what the plans read, before their nodes are made."""
        for plan in plans:
            for bound in plan.bound_aliases():
                self._concept_streams.setdefault(bound.concept, set()).update(bound.streams)
            for stream in plan.streams():
                self._concept_streams.setdefault(stream.partition(".")[0], set()).add(stream)
            roots = [plan.situation]
            if plan.cleared_by is not None:
                roots.append(plan.cleared_by)
            self.history_ms = max([self.history_ms, *map(look_back_ms, roots)])

    def concept_rows(self, concept: str) -> ConceptRows:
        if concept not in self.concepts:
            self.concepts[concept] = ConceptRows(concept, self._pull)
        return self.concepts[concept]

    def known(self, concept: str) -> KnownRows:
        streams = [self.stream(concept, name) for name in self._streams_of(concept)]
        return self._stage(
            ("known", concept), lambda: KnownRows(self.concept_rows(concept), streams)
        )

    def allowed(self, bound: BoundAlias) -> AllowedInstances:
        known = self.known(bound.concept)
        return self._stage(
            ("allowed", bound.concept, bound.constraints),
            lambda: AllowedInstances(self.concept_rows(bound.concept), known, bound.constraints),
        )

    def stream(self, concept: str, stream: str) -> StreamReadings:
        def make() -> StreamReadings:
            found = StreamReadings(self.concept_rows(concept), stream, self._sources)
            self.streams[stream] = found
            return found

        return self._stage(("stream", stream), make)

    def frame_of(self, bound: BoundAlias, *, is_narrow: bool) -> Frame:
        """All instances of a concept. `is_narrow`: only rows that satisfy the constraints count."""
        key = ("concept", bound.concept, bound.constraints if is_narrow else ())
        rows, alias = self.concept_rows(bound.concept), bound.alias
        return Frame(key, rows, {alias: bound}, {alias: rows.identities}, alias)

    def frame_of_plan(self, plan: SituationPlan) -> Frame:
        """The rows of the bindings of a plan."""
        if not plan.aliases:
            return self.everywhere
        left = list(plan.aliases)
        first = _first_alias(plan)
        left.remove(first)
        frame = self.frame_of(first, is_narrow=True)
        look_back = look_back_ms(plan.situation)
        if plan.cleared_by is not None:
            look_back = max(look_back, look_back_ms(plan.cleared_by))
        while left:
            driven = [one for one in left if _near(plan.situation, one, frame.aliases) is not None]
            chosen = driven[0] if driven else left[0]
            left.remove(chosen)
            different = [
                other
                for pair in plan.distinct
                if chosen.alias in pair
                for other in pair
                if other != chosen.alias and other in frame.aliases
            ]
            frame = self._extended(frame, chosen, different, plan.situation, look_back)
        return frame

    def _extended(
        self,
        outer: Frame,
        bound: BoundAlias,
        different: Sequence[str],
        condition: Condition,
        look_back: int,
        *,
        may_pass: bool = False,
    ) -> Frame:
        """The rows of a frame, each with the instances of one more alias. `may_pass`: only whether
        the condition is true matters."""
        related = _near(condition, bound, outer.aliases)
        if related is None:
            # A `for` around a quantifier looks back before an outer instance was known.
            look_back = max(look_back, self.history_ms)
        others = tuple(sorted(different))
        names = {**outer.aliases, bound.alias: bound}
        near = _key(related)
        key = ("bindings", outer.key, _bare(bound), others, near, look_back, tuple(names))
        drivers = None if related is None else [self._driver(one, bound, outer) for one in related]
        outer_allowed = None
        if isinstance(outer.rows, ConceptRows):
            outer_allowed = self.allowed(outer.aliases[outer.alias])
        allowed = self.allowed(bound)
        if may_pass and drivers is not None and not _remembers(condition):
            assert not isinstance(outer.rows, PassingRows)
            passing = PassingRows(
                outer.rows, outer.alias, outer_allowed, bound.alias, allowed, others, drivers
            )
            rows: AnyRows = self._stage(("passing", key), lambda: passing)
            return Frame(("passing", key), rows, names, self._identities(outer, bound))
        assert not isinstance(outer.rows, PassingRows)
        outer_rows = outer.rows
        rows = self._stage(
            key,
            lambda: JoinedRows(
                outer_rows,
                outer.alias,
                outer_allowed,
                bound.alias,
                allowed,
                others,
                drivers,
                look_back,
            ),
        )
        return Frame(key, rows, names, self._identities(outer, bound))

    def _identities(self, outer: Frame, bound: BoundAlias) -> dict[str, Identities]:
        return {**outer.identities, bound.alias: self.concept_rows(bound.concept).identities}

    def _driver(self, related: RelatedInstances, bound: BoundAlias, outer: Frame) -> Driver:
        aliases = {**outer.aliases, bound.alias: bound}
        sides = [
            self._present(one, self.frame_of(aliases[one.alias], is_narrow=False)).trace
            for one in (related.first, related.second)
        ]
        for side in sides:
            self._keep_history(side)
        relation = relations.get(related.function)
        pairs = NearPairs(relation, related.parameter, *sides)
        is_first = related.second.alias == bound.alias
        alias = related.first.alias if is_first else related.second.alias
        return Driver(pairs, alias, is_first)

    def _streams_of(self, concept: str) -> list[str]:
        return sorted(self._concept_streams.get(concept, ()))

    def source_of(self, placed: PlacedCondition, frame: Frame) -> Source:
        """The truth of a condition for the rows of a frame."""
        return self._source(PlacedTrace(placed.frame, placed.trace), frame)

    def allowed_in(self, bound: BoundAlias, frame: Frame) -> Source:
        """Whether the instance of an alias is known and satisfies its constraints, for the rows of
        a frame."""
        own = self.frame_of(bound, is_narrow=True)
        return self._source(PlacedTrace(own, self.allowed(bound)), frame)

    def known_in(self, bound: BoundAlias, frame: Frame) -> Source:
        """Whether the instance of an alias is known, for the rows of a frame."""
        own = self.frame_of(bound, is_narrow=True)
        return self._source(PlacedTrace(own, self.known(bound.concept)), frame)

    # --- conditions ---

    def condition(self, condition: Condition, frame: Frame) -> PlacedCondition:
        """The nodes of a condition whose aliases the frame binds."""
        home = self._home(condition, frame)
        match condition:
            case AllOf(parts) | AnyPart(parts):
                inner = tuple(self.condition(part, home) for part in parts)
                traces = [PlacedTrace(part.frame, part.trace) for part in inner]
                if condition.is_atom:
                    return self._atom_of_parts(condition, home, inner, traces)
                function = made.all_of if isinstance(condition, AllOf) else made.any_of
                trace = self._combined(condition, home, traces, function)
                return PlacedCondition(condition, home, trace, inner)
            case Negation(part):
                placed = self.condition(part, home)
                traces = [PlacedTrace(placed.frame, placed.trace)]
                trace = self._combined(condition, home, traces, made.negated)
                return PlacedCondition(condition, home, trace, (placed,))
            case Sustained(part, duration):
                placed = self.condition(part, home)
                source = self._source(PlacedTrace(placed.frame, placed.trace), home)
                sustained = self._stage(
                    self._node_key(condition, home),
                    lambda: SustainedTrace(home.rows, source, duration),
                )
                return PlacedCondition(condition, home, sustained, (placed,))
            case TimeWindow():
                window = self._stage(
                    ("time", condition),
                    lambda: TimeOfDayTrace(self.constant, condition, self._pull),
                )
                return PlacedCondition(condition, self.everywhere, window)
            case SilentStream():
                return self._silent(condition, home)
            case RelatedInstances(function_name, first, second, parameter):
                values = [self.value(one, home) for one in (first, second)]
                relation = relations.get(function_name)
                return self._of_values(
                    condition, home, values, made.relationship(relation, parameter)
                )
            case ComparedValues():
                return self._compared(condition, home)
            case CountedInstances():
                return self._quantified(condition, home)

    def _atom_of_parts(
        self,
        condition: AllOf | AnyPart,
        home: Frame,
        parts: tuple[PlacedCondition, ...],
        traces: list[PlacedTrace],
    ) -> PlacedCondition:
        """`between` and `is one of`: unknown if one of the values is."""
        combine = made.all_of if isinstance(condition, AllOf) else made.any_of
        present: list[PlacedTrace] = []
        for value in measured_of_atom(condition):
            placed = self.value(value, home)
            present.append(self._presence(PlacedTrace(placed.frame, placed.trace)))
        count = len(traces)

        def known_only(*values: Any) -> Any:
            found = combine(*values[:count])
            if not values[count:]:
                return found
            known = made.all_of(*values[count:])
            return np.where(known == TRUE, found, UNKNOWN).astype(np.int8)

        trace = self._combined(condition, home, [*traces, *present], known_only)
        readers = tuple(reader for part in parts for reader in part.readers)
        return PlacedCondition(condition, home, trace, (), readers)

    def _silent(self, condition: SilentStream, home: Frame) -> PlacedCondition:
        concept = home.aliases[condition.alias].concept
        streams = [self.stream(concept, name) for name in condition.streams]
        known = self.known(concept)
        key = self._node_key(condition, home)
        trace = self._stage(
            key, lambda: SilenceTrace(home.rows, streams, known, condition.duration_ms)
        )
        return PlacedCondition(condition, home, self._while_known(key, trace, concept))

    def _of_values(
        self,
        condition: Condition,
        home: Frame,
        values: Sequence[PlacedValue],
        function: made.Function,
        more: Sequence[PlacedTrace] = (),
    ) -> PlacedCondition:
        inputs = [*(PlacedTrace(one.frame, one.trace) for one in values), *more]
        trace = self._combined(condition, home, inputs, function)
        readers = tuple(reader for value in values for reader in value.readers)
        return PlacedCondition(condition, home, trace, (), readers)

    def _compared(self, condition: ComparedValues, home: Frame) -> PlacedCondition:
        left, operator, right = condition.left, condition.operator, condition.right
        counts = [_is_count(left), _is_count(right)]
        if has_counts(left) and (has_counts(right) or not counts[0]):
            return self._compared_bounds(condition, home)
        if has_counts(right) and not counts[1]:
            return self._compared_bounds(condition, home)
        if any(counts):
            turned = counts[1]
            count = self.value(right if turned else left, home)
            other = self.value(left if turned else right, home)
            assert count.completeness is not None
            complete = PlacedTrace(self.everywhere, count.completeness)
            function = made.count_comparison(operator, turned=turned)
            return self._of_values(condition, home, [count, other], function, [complete])
        if isinstance(right, FixedValue) and not isinstance(left, FixedValue):
            function = made.comparison_with(operator, right.value, turned=False)
            return self._of_values(condition, home, [self.value(left, home)], function)
        if isinstance(left, FixedValue) and not isinstance(right, FixedValue):
            function = made.comparison_with(operator, left.value, turned=True)
            return self._of_values(condition, home, [self.value(right, home)], function)
        values = [self.value(left, home), self.value(right, home)]
        return self._of_values(condition, home, values, made.comparison(operator))

    def _compared_bounds(self, condition: ComparedValues, home: Frame) -> PlacedCondition:
        """Compares calculations with counts, of which each may be a lower bound."""
        sides = (condition.left, condition.right)
        inputs = [bound for side in sides for bound in self._bounds(side, home)]
        function = made.bounds_comparison(condition.operator)
        trace = self._combined(condition, home, inputs, function)
        readers = tuple(reader for side in sides for reader in self.value(side, home).readers)
        return PlacedCondition(condition, home, trace, (), readers)

    def _bounds(self, value: Value, frame: Frame) -> tuple[PlacedTrace, PlacedTrace]:
        """The smallest and the largest number that a value may be."""
        placed = self.value(value, frame)
        exact = PlacedTrace(placed.frame, placed.trace)
        if not has_counts(value):
            return exact, exact
        home = self._home(value, frame)
        key = self._node_key(value, home)
        if isinstance(value, Arithmetic):
            inner = [
                each for side in (value.left, value.right) for each in self._bounds(side, home)
            ]
            sources = [self._source(one, home) for one in inner]
            operator = value.operator
            low, high = (
                self._stage(
                    ("bound", is_upper, key),
                    lambda is_upper=is_upper: Combined(  # type: ignore[misc]
                        home.rows,
                        sources,
                        made.bound_of(operator, is_upper=is_upper),
                        is_truth=False,
                    ),
                )
                for is_upper in (False, True)
            )
            return PlacedTrace(home, low), PlacedTrace(home, high)
        if isinstance(value, ConvertedValue):
            convert = made.bound_conversion(value.factor, value.offset)
            ends_within = self._bounds(value.value, home)
            ends = [
                self._stage(
                    ("bound", is_upper, key),
                    lambda one=one: Combined(  # type: ignore[misc]
                        home.rows, [self._source(one, home)], convert, is_truth=False
                    ),
                )
                for is_upper, one in zip((False, True), ends_within, strict=True)
            ]
            return PlacedTrace(home, ends[0]), PlacedTrace(home, ends[1])
        assert placed.completeness is not None, "it is a count"
        complete = self._source(PlacedTrace(self.everywhere, placed.completeness), placed.frame)
        upper = self._stage(
            ("bound", True, key),
            lambda: Combined(
                placed.frame.rows, [placed.trace, complete], made.upper_bound, is_truth=False
            ),
        )
        return exact, PlacedTrace(placed.frame, upper)

    def _quantified(self, condition: CountedInstances, home: Frame) -> PlacedCondition:
        bound, inner = condition.bound, condition.condition
        different = [name for name, one in home.aliases.items() if one.concept == bound.concept]
        frame = self._extended(home, bound, different, inner, look_back_ms(inner), may_pass=True)
        placed = self.condition(inner, frame)
        rows = frame.rows
        assert isinstance(rows, JoinedRows | PassingRows)
        allowed = PlacedTrace(self.frame_of(bound, is_narrow=True), self.allowed(bound))
        inputs = [
            self._source(one, frame) for one in (PlacedTrace(placed.frame, placed.trace), allowed)
        ]
        key = ("counts", frame.key, self._node_key(inner, frame))
        truth = self._stage(key, lambda: FromTheFind(rows, inputs))
        counting = self._stage(
            ("counting", key), lambda: CountingRows(home.rows, rows, truth, rows.parents)
        )
        needed: dict[Hashable, PlacedTrace] = {}
        for one in self._read_outside(inner, home):
            needed.setdefault((id(one.trace), one.frame.alias), one)
        function = made.quantified(condition.quantifier, condition.number)
        sources = [PlacedTrace(home, counting), *needed.values()]
        trace = self._combined(condition, home, sources, function)
        return PlacedCondition(condition, home, trace, (placed,), (), frame, truth, counting)

    def _read_outside(self, inner: Condition, home: Frame) -> list[PlacedTrace]:
        """Whether the values of outer aliases that a quantifier reads are known."""
        found = []
        for alias in sorted(aliases_named(inner) & home.aliases.keys()):
            bound = home.aliases[alias]
            own = self.frame_of(bound, is_narrow=False)
            known = PlacedTrace(own, self.known(bound.concept))
            found.append(known)
        for value in _values_read(inner):
            of = value.of if isinstance(value, AggregateValue) else value
            if of.alias in home.aliases:
                placed = self.value(value, home)
                found.append(self._presence(PlacedTrace(placed.frame, placed.trace)))
        return found

    # --- values ---

    def value(self, value: Value, frame: Frame) -> PlacedValue:
        home = self._home(value, frame)
        match value:
            case PresentValue():
                return self._present(value, home)
            case FixedValue(constant):
                trace = self._combined(
                    value, self.everywhere, [], lambda: np.array([constant]), is_truth=False
                )
                return PlacedValue(self.everywhere, trace)
            case Arithmetic(left, operator, right):
                if isinstance(right, FixedValue) and isinstance(right.value, float | int):
                    function = made.arithmetic_with(operator, right.value, turned=False)
                    return self._computed(value, home, [left], function)
                if isinstance(left, FixedValue) and isinstance(left.value, float | int):
                    function = made.arithmetic_with(operator, left.value, turned=True)
                    return self._computed(value, home, [right], function)
                return self._computed(value, home, [left, right], made.arithmetic(operator))
            case ConvertedValue(inner, factor, offset):
                return self._computed(value, home, [inner], made.conversion(factor, offset))
            case FunctionValue(name, of, is_looked_up):
                if is_looked_up:
                    function = made.looked_up(self._pull.pairs(name))
                else:
                    function = made.measurement(measures.get(name))
                return self._computed(value, home, list(of), function)
            case AggregateValue():
                return self._aggregate(value, home)
            case CountedTerm():
                return self._counted_term(value, home)

    def _present(self, value: PresentValue, home: Frame) -> PlacedValue:
        concept = value.concept
        if value.attribute == "id":
            rows, known = self.concept_rows(concept), self.known(concept)
            texts = self._stage(("id", concept), lambda: IdentityTexts(rows, known))
            return PlacedValue(home, texts)
        if value.stream is None:
            own = self.concept_rows(concept)
            table = self._stage(
                ("table", concept, value.attribute), lambda: TableValues(own, value.attribute)
            )
            return PlacedValue(home, table)
        stream = self.stream(concept, value.stream)
        trace = self._while_known(("stream", value.stream), stream, concept)
        return PlacedValue(home, trace, (CauseReader(home, stream.causes),))

    def _computed(
        self, value: Value, home: Frame, parts: Sequence[Value], function: made.Function
    ) -> PlacedValue:
        inner = [self.value(part, home) for part in parts]
        traces = [PlacedTrace(one.frame, one.trace) for one in inner]
        trace = self._combined(value, home, traces, function, is_truth=False)
        return PlacedValue(home, trace, tuple(one for part in inner for one in part.readers))

    def _aggregate(self, value: AggregateValue, home: Frame) -> PlacedValue:
        of = value.of
        assert of.stream is not None
        stream, known = self.stream(of.concept, of.stream), self.known(of.concept)
        log = self._stage(("log", of.stream), lambda: WindowLog(stream))
        key = self._node_key(value, home)
        aggregate = self._stage(
            key,
            lambda: make_aggregate(
                value.function, log, known, value.window_ms, value.at_least, value.percentile
            ),
        )
        trace = self._while_known(key, aggregate, of.concept)
        readers = (CauseReader(home, aggregate.causes),)
        complete = self._complete(value.window_ms) if value.function == "count" else None
        return PlacedValue(home, trace, readers, completeness=complete)

    def _counted_term(self, value: CountedTerm, home: Frame) -> PlacedValue:
        bound = home.aliases[value.alias]
        own = self.frame_of(bound, is_narrow=False)
        index = home.index(own)
        read = {
            one.stream for one in _presents(value.term) if one.alias == value.alias and one.stream
        }
        streams = [self.stream(bound.concept, name) for name in sorted(read)]
        term = self._term(value.term, home, value.alias)
        key = self._node_key(value, home)
        known = self._source(PlacedTrace(own, self.known(bound.concept)), home)
        counted = self._stage(
            key,
            lambda: CountedReadings(
                home.rows, index, streams, term, known, value.window_ms, self.history_ms
            ),
        )
        readers = (CauseReader(home, counted.causes),)
        return PlacedValue(home, counted, readers, completeness=self._complete(value.window_ms))

    def _term(self, term: Condition | Value, home: Frame, alias: str) -> TermAtReadings:
        """A term to evaluate at single readings of an alias."""
        if isinstance(term, PresentValue):
            placed = self.value(term, home)
            source = self._source(PlacedTrace(placed.frame, placed.trace), home)
            stream = None
            if term.stream is not None and term.alias == alias:
                stream = self.stream(term.concept, term.stream)
            return TermAtReadings((), None, source, stream)
        if isinstance(term, TimeWindow):
            window = self.condition(term, home)
            source = self._source(PlacedTrace(window.frame, window.trace), home)
            return TermAtReadings((), None, source, None)
        placed_node = (
            self.condition(term, home)
            if isinstance(term, ComparedValues | RelatedInstances | AllOf | AnyPart | Negation)
            else self.value(term, home)  # type: ignore[arg-type]
        )
        node = placed_node.trace
        assert isinstance(node, Combined)
        parts = [one for one in inner_nodes(term) if not isinstance(one, FixedValue)]
        inner = tuple(self._term(part, home, alias) for part in parts)
        if isinstance(term, AllOf | AnyPart) and term.is_atom:
            inner += tuple(
                TermAtReadings((self._term(value, home, alias),), made.presence, None, None)
                for value in measured_of_atom(term)
            )
        return TermAtReadings(inner, node.function, None, None)

    def _complete(self, window_ms: int) -> Trace:
        return self._stage(("complete", window_ms), lambda: LongEnough(self.constant, window_ms))

    def _presence(self, placed: PlacedTrace) -> PlacedTrace:
        key = ("presence", self._key_of(placed.trace))
        trace = self._stage(key, lambda: Combined(placed.frame.rows, [placed.trace], made.presence))
        return PlacedTrace(placed.frame, trace)

    # --- nodes ---

    def _while_known(self, key: Hashable, trace: Trace, concept: str) -> Trace:
        known = self.known(concept)
        return self._stage(("while known", key), lambda: WhileKnown(trace, known))

    def _home(self, node: Condition | Value, frame: Frame) -> Frame:
        """The smallest frame that decides a node."""
        named = aliases_named(node)
        quantified = _quantified_concepts(node)
        named |= {name for name, one in frame.aliases.items() if one.concept in quantified}
        if not named:
            return self.everywhere
        if len(named) == 1 and isinstance(frame.rows, JoinedRows | PassingRows):
            return self.frame_of(frame.aliases[named.pop()], is_narrow=bool(quantified))
        return frame

    def _combined(
        self,
        node: Condition | Value,
        home: Frame,
        inputs: Sequence[PlacedTrace],
        function: made.Function,
        *,
        is_truth: bool = True,
    ) -> Combined:
        sources = [self._source(one, home) for one in inputs]
        return self._stage(
            self._node_key(node, home),
            lambda: Combined(home.rows, sources, function, is_truth=is_truth),
        )

    def _source(self, placed: PlacedTrace, frame: Frame) -> Source:
        """A trace as a source for a frame that has its rows or more."""
        index = frame.index(placed.frame)
        if index is None:
            return placed.trace
        self._keep_history(placed.trace)
        return SpreadTrace(placed.trace, frame.rows, index)

    def _keep_history(self, trace: Trace) -> None:
        trace.keep_history(self.history_ms)

    def _node_key(self, node: Condition | Value, home: Frame) -> Hashable:
        names = {home.alias: ""} if isinstance(home.rows, ConceptRows) else {}
        kind = "condition" if isinstance(node, Condition) else "value"
        return (kind, home.key if _quantified_concepts(node) else _wide(home), _text(node, names))

    def _key_of(self, trace: Trace) -> Hashable:
        return next(key for key, stage in self._stages.items() if stage is trace)

    def _stage(self, key: Hashable, make: Callable[[], _T]) -> _T:
        found = self._stages.get(key)
        if found is None:
            found = make()
            self._stages[key] = found
        result: _T = found
        return result


def _wide(frame: Frame) -> Hashable:
    """The key of the rows without the constraints of a concept."""
    return ("concept", frame.rows.concept) if isinstance(frame.rows, ConceptRows) else frame.key


def _bare(bound: BoundAlias) -> Hashable:
    return (bound.alias, bound.concept, bound.constraints)


def _key(related: Sequence[RelatedInstances] | None) -> Hashable:
    return None if related is None else tuple(msgspec.json.encode(one) for one in related)


def _text(node: Condition | Value, names: Mapping[str, str]) -> bytes:
    """The node as a text, with aliases renamed."""

    def renamed(item: Any) -> Any:
        if isinstance(item, dict):
            return {
                key: names.get(one, one) if key == "alias" else renamed(one)
                for key, one in item.items()
            }
        return [renamed(one) for one in item] if isinstance(item, list) else item

    return msgspec.json.encode(renamed(msgspec.json.decode(msgspec.json.encode(node))))


def aliases_named(node: Condition | Value) -> set[str]:
    """The aliases bound outside that a node names."""
    match node:
        case PresentValue(alias) | SilentStream(alias):
            return {alias}
    found = {name for inner in inner_nodes(node) for name in aliases_named(inner)}
    if isinstance(node, CountedTerm):
        found.add(node.alias)
    if isinstance(node, CountedInstances):
        found.discard(node.bound.alias)
    return found


def _quantified_concepts(node: Condition | Value) -> set[str]:
    found = {name for inner in inner_nodes(node) for name in _quantified_concepts(inner)}
    if isinstance(node, CountedInstances):
        found.add(node.bound.concept)
    return found


def _presents(node: Condition | Value) -> list[PresentValue]:
    if isinstance(node, PresentValue):
        return [node]
    return [one for inner in inner_nodes(node) for one in _presents(inner)]


def _values_read(node: Condition | Value) -> list[PresentValue | AggregateValue]:
    """Present values and aggregates, those of counted terms not."""
    match node:
        case PresentValue():
            return [node]
        case AggregateValue():
            return [node] if node.function != "count" else []
        case CountedTerm():
            return []
    return [one for inner in inner_nodes(node) for one in _values_read(inner)]


def measured_of_atom(condition: AllOf | AnyPart) -> list[Value]:
    """The values that the parts of one atom compare, if there are several: with one alone all parts
    are unknown when it is."""
    found: list[Value] = []
    for part in condition.parts:
        assert isinstance(part, ComparedValues)
        found += [one for one in (part.left, part.right) if not isinstance(one, FixedValue)]
    distinct_values = list(dict.fromkeys(found))
    return distinct_values if len(distinct_values) > 1 else []


def _remembers(node: Condition | Value) -> bool:
    """Whether its rows must be kept: for durations, counted readings and inner quantifiers."""
    if isinstance(node, Sustained | CountedInstances | CountedTerm):
        return True
    return any(map(_remembers, inner_nodes(node)))


def _is_count(value: Value) -> bool:
    return isinstance(value, CountedTerm) or (
        isinstance(value, AggregateValue) and value.function == "count"
    )


def has_counts(value: Value) -> bool:
    """Whether a value rests on a count, which may be a lower bound."""
    if isinstance(value, Arithmetic):
        return has_counts(value.left) or has_counts(value.right)
    if isinstance(value, ConvertedValue):
        return has_counts(value.value)
    return _is_count(value)


def look_back_ms(node: Condition | Value) -> int:
    """How far back the truth of a node depends on what was before it became of interest."""
    inner = max(map(look_back_ms, inner_nodes(node)), default=0)
    if isinstance(node, Sustained):
        return inner + node.duration_ms
    return inner + node.window_ms if isinstance(node, CountedTerm) else inner


def _near(
    condition: Condition, new: BoundAlias, bound: Mapping[str, BoundAlias]
) -> list[RelatedInstances] | None:
    """Relationships with a new alias, of which one must be true for the condition to be; None:
    there are none."""
    match condition:
        case RelatedInstances():
            aliases = {condition.first.alias, condition.second.alias}
            relation = relations.get(condition.function)
            if relation.shape == "opaque" or len(aliases) != 2:
                return None
            others = aliases - {new.alias}
            return [condition] if len(others) == 1 and others <= bound.keys() else None
        case AllOf(parts):
            found = [_near(part, new, bound) for part in parts]
            return min((one for one in found if one is not None), key=len, default=None)
        case AnyPart(parts):
            found = [_near(part, new, bound) for part in parts]
            return None if None in found else [item for one in found if one for item in one]
        case Sustained(part):
            return _near(part, new, bound)
        case _:
            return None


def _first_alias(plan: SituationPlan) -> BoundAlias:
    """The alias to which most others can be tied by nearness."""

    def ties(bound: BoundAlias) -> int:
        others = [one for one in plan.aliases if one is not bound]
        near = [_near(plan.situation, one, {bound.alias: bound}) for one in others]
        return sum(one is not None for one in near)

    return max(plan.aliases, key=ties)
