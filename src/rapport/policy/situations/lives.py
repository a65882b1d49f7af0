"""The lives of the situations of one policy: when they begin and end, what of it is told, and
which readings show it. [SI-14]"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from rapport.core.detection import Cause, Detection, NamedValue, identity_order
from rapport.policy.operators.columns import NO_ROWS, Array, Mask, Rows, widened
from rapport.policy.operators.detection_output import SuppressionFilter
from rapport.policy.situation_plan import (
    AllOf,
    AnyPart,
    CountedInstances,
    NamedAtTurns,
    Negation,
    SituationPlan,
    Sustained,
)
from rapport.policy.situations.binding_rows import JoinedRows, PassingRows
from rapport.policy.situations.graph import (
    AnyRows,
    Frame,
    PlacedCondition,
    SituationGraph,
)
from rapport.policy.situations.traces import (
    FALSE,
    NEVER,
    TRUE,
    Source,
    Step,
    Trace,
    distinct,
    first_of_runs,
    last_of_runs,
    union,
)
from rapport.policy.situations.truth_traces import all_of

NOTHING_NAMED = NamedAtTurns()


class Turn(NamedTuple):
    """The beginning or the end of a situation."""

    row: int
    time: int
    began: int | None
    """Of an end."""


class PolicySituations:
    """The situations of one plan, one for each binding."""

    def __init__(self, plan: SituationPlan, graph: SituationGraph) -> None:
        self.plan, self._graph = plan, graph
        self._version = plan.version()
        self._frame = graph.frame_of_plan(plan)
        self._rows = self._frame.rows
        self._situation = graph.condition(plan.situation, self._frame)
        self._cleared = None
        if plan.cleared_by is not None:
            self._cleared = graph.condition(plan.cleared_by, self._frame)
        self._sources = [graph.source_of(self._situation, self._frame)]
        if self._cleared is not None:
            self._sources.append(graph.source_of(self._cleared, self._frame))
        self._allowed: list[Source] = [
            graph.allowed_in(bound, self._frame) for bound in plan.aliases
        ]
        self._known: list[Source] = [graph.known_in(bound, self._frame) for bound in plan.aliases]
        self._open: Mask = np.zeros(0, np.bool_)
        self._began: Rows = np.zeros(0, np.int64)
        self._last_told: dict[int, int] = {}
        """With `at most once per`, by row, when the last beginning was told."""
        self._waiting: dict[int, int] = {}
        """By row, when the beginning of an open situation is told at last."""
        self.suppressed = 0
        self._carried: dict[tuple[tuple[str, str], ...], int] = {}
        """Situations of a former version whose rows are not here yet."""
        self._looked_at = 0
        """The number of rows that were compared with them."""
        self.named: Mapping[str, NamedAtTurns] = {}
        """By policy, what detections carry for texts."""
        self.counts: SuppressionFilter | None = None
        """Which situations are counted, by their bindings; None: all."""
        self._not_known: set[int] = set()
        """Rows of carried situations whose instances this version does not know yet."""
        self._again: Rows = NO_ROWS
        """Rows that are looked at in the next step though nothing changes."""

    # --- a step ---

    def run(self, step: Step) -> list[Detection]:
        """The beginnings and ends within the step; the graph has run."""
        self._grow()
        self._take_carried()
        rows, times, is_begin = self._turns(step)
        turns = self._with_began(rows, times, is_begin)
        if self.plan.once_per_ms is not None:
            turns = self._throttled(step, turns)
        return self._detections(turns)

    def due(self) -> int | None:
        return min(self._waiting.values(), default=None)

    @property
    def is_due_now(self) -> bool:
        """Whether the next step may tell something though nothing changes."""
        return bool(len(self._again))

    def open_count(self) -> int:
        """Situations that have begun, were told and have not ended."""
        if self.counts is not None:
            return sum(map(self._is_counted, np.flatnonzero(self.open_rows()).tolist()))
        return int(self._open.sum()) - len(self._waiting)

    def pending_count(self) -> int:
        """Open situations that are told later."""
        return sum(map(self._is_counted, self._waiting))

    def _is_counted(self, row: int) -> bool:
        if self.counts is None:
            return True
        found = Detection(
            policy=self.plan.policy,
            time=int(self._began[row]),
            bindings=self.bindings(row),
            causes=(),
        )
        return self.counts(found)

    # --- as it is now ---

    @property
    def graph(self) -> SituationGraph:
        return self._graph

    @property
    def frame(self) -> Frame:
        """The rows of all bindings."""
        return self._frame

    @property
    def condition(self) -> PlacedCondition:
        """The expression of the situation."""
        return self._situation

    def row_count(self) -> int:
        """The number of rows that were looked at."""
        return min(self._rows.size, len(self._open))

    def row_of(self, bindings: Mapping[str, str]) -> int | None:
        """The row of a binding; None when it has none. Costs a pass over the rows."""
        wanted = dict(bindings)
        rows = range(self._rows.size)
        return next((row for row in rows if self.bindings(row) == wanted), None)

    def open_rows(self) -> Mask:
        """The situations that have begun, were told and have not ended."""
        return self._open[: self.row_count()] & ~self.pending_rows()

    def pending_rows(self) -> Mask:
        """The open situations that are told later."""
        found: Mask = np.zeros(self.row_count(), np.bool_)
        found[[*self._waiting]] = True
        return found

    def began_at(self, row: int) -> int:
        """The beginning of an open situation, as it was told."""
        return self._last_told.get(row, int(self._began[row]))

    def allowed_traces(self) -> list[tuple[Frame, Trace]]:
        """Whether the instance of each alias is known and satisfies its constraints."""
        graph = self._graph
        return [
            (graph.frame_of(bound, is_narrow=True), graph.allowed(bound))
            for bound in self.plan.aliases
        ]

    def continue_open(self, began: Mapping[tuple[tuple[str, str], ...], int]) -> None:
        """Situations that are open already: those of a version that this one replaces, by bindings
        in the order of aliases. Each ends when this version says so; a binding without a row here
        waits for one. What this version has open besides begins anew, if it still holds.
        """
        self._again = distinct(np.concatenate((self._again, np.flatnonzero(self._open))))
        self._open[:] = False
        self._last_told, self._waiting = {}, {}
        self._carried, self._looked_at = dict(began), 0

    def _take_carried(self) -> None:
        """Opens the rows of carried situations as soon as there are any."""
        if not self._carried:
            return
        first, self._looked_at = self._looked_at, self.row_count()
        new = set(self._rows.new_rows.tolist())
        for row in range(first, self._looked_at):
            key = tuple(sorted(self.bindings(row).items()))
            since = self._carried.pop(key, None)
            if since is not None:
                if row not in new:
                    self._again = distinct(np.append(self._again, row))
                self._open[row], self._began[row] = True, since
                self._not_known.add(row)
                if self.plan.once_per_ms is not None:
                    self._last_told[row] = since

    def _turns(self, step: Step) -> tuple[Rows, Rows, Mask]:
        """The rows and times at which situations begin and end, in order."""
        inputs = [*self._sources, *self._allowed]
        parts = [(one.fresh.rows, one.fresh.times) for one in inputs]
        again, self._again = self._again, NO_ROWS
        parts.append((again, np.full(len(again), step.begin, np.int64)))
        scope, found_at = self._rows, None
        if len(scope.new_rows):
            found_at = scope.found_at if isinstance(scope, JoinedRows) else scope.new_since
            parts.append((scope.new_rows, found_at))
        rows, times = union(step, parts)
        if found_at is not None:
            since = np.full(scope.size, NEVER, np.int64)
            since[scope.new_rows] = found_at
            chosen = times >= since[rows]
            rows, times = rows[chosen], times[chosen]
        if self._not_known:
            chosen = self._since_known(rows, times)
            rows, times = rows[chosen], times[chosen]
        if not len(rows):
            return rows, times, np.zeros(0, np.bool_)
        signals = self._signals(rows, times)
        is_open = signals > 0
        before = np.where(signals == 0, -1, np.arange(len(rows)))
        before = np.maximum.accumulate(before)
        last = np.full(len(rows), -1, np.int64)
        last[1:] = before[:-1]
        first = np.maximum.accumulate(np.where(first_of_runs(rows), np.arange(len(rows)), 0))
        was_open = np.where(last >= first, is_open[last], self._open[rows])
        turned = (signals != 0) & (is_open != was_open)
        return rows[turned], times[turned], is_open[turned]

    def _since_known(self, rows: Rows, times: Rows) -> Mask:
        """The points at which this version may say something about carried situations: none before
        it knows their instances, which have not left because of that.
        """
        chosen: Mask = np.ones(len(rows), np.bool_)
        for row in sorted(self._not_known):
            own = np.flatnonzero(rows == row)
            if not len(own):
                continue
            known = all_of(*(one.sample(rows[own], times[own]) for one in self._known)) == TRUE
            first = int(known.argmax()) if known.any() else len(own)
            chosen[own[:first]] = False
            if known.any():
                self._not_known.discard(row)
        return chosen

    def _signals(self, rows: Rows, times: Rows) -> Array:
        """1 where a situation would begin, -1 where it would end, 0 elsewhere."""
        truth = self._sources[0].sample(rows, times)
        ends = truth == FALSE
        if self._cleared is not None:
            ends = (truth != TRUE) & (self._sources[1].sample(rows, times) == TRUE)
        begins = truth == TRUE
        if self._allowed:
            allowed = all_of(*(one.sample(rows, times) for one in self._allowed)) == TRUE
            begins &= allowed
            ends |= ~allowed
        found: Array = begins.astype(np.int8) - ends
        return found

    def _with_began(self, rows: Rows, times: Rows, is_begin: Mask) -> list[Turn]:
        turns: list[Turn] = []
        if not len(rows):
            return turns
        previous = np.empty_like(times)
        previous[1:] = times[:-1]
        first = first_of_runs(rows)
        previous[first] = self._began[rows[first]]
        last = last_of_runs(rows)
        self._open[rows[last]] = is_begin[last]
        begun = last & is_begin
        self._began[rows[begun]] = times[begun]
        columns = rows.tolist(), times.tolist(), is_begin.tolist(), previous.tolist()
        for row, time, begins, began in zip(*columns, strict=True):
            turns.append(Turn(row, time, None if begins else began))
        return turns

    def _throttled(self, step: Step, turns: list[Turn]) -> list[Turn]:
        """The turns that are told: a beginning soon after the last one told waits."""
        once_per = self.plan.once_per_ms
        assert once_per is not None
        told: list[Turn] = []
        for turn in turns:
            row = turn.row
            if turn.began is None:
                last = self._last_told.get(row)
                if last is not None and turn.time - last < once_per:
                    self._waiting[row] = last + once_per
                else:
                    self._last_told[row] = turn.time
                    told.append(turn)
                continue
            due = self._waiting.pop(row, None)
            if due is not None and turn.time <= due:
                self.suppressed += self._is_counted(row)
                continue
            if due is not None:
                self._last_told[row] = due
                told.append(Turn(row, due, None))
            told.append(turn._replace(began=self._last_told[row]))
        for row, due in [item for item in self._waiting.items() if item[1] < step.end]:
            del self._waiting[row]
            self._last_told[row] = due
            told.append(Turn(row, due, None))
        for row in [row for row, last in self._last_told.items() if last + once_per < step.end]:
            if not self._open[row]:
                del self._last_told[row]
        return told

    # --- detections ---

    def _detections(self, turns: list[Turn]) -> list[Detection]:
        if not turns:
            return []
        causes: list[set[Cause]] = [set() for _ in turns]
        values: list[dict[str, NamedValue]] = [{} for _ in turns]
        for is_end, placed in ((False, self._situation), (True, self._cleared)):
            chosen = [
                place for place, turn in enumerate(turns) if (turn.began is not None) == is_end
            ]
            rows = np.array([turns[place].row for place in chosen], np.int64)
            times = np.array([turns[place].time for place in chosen], np.int64)
            for place, one in zip(chosen, self._named_values(placed, rows, times), strict=True):
                values[place] = one
            if placed is not None and chosen:
                found = CauseSearch(placed, self._frame, rows, times).found
                for place, own in zip(chosen, found, strict=True):
                    causes[place] = own
        return [
            Detection(
                policy=self.plan.policy,
                time=turn.time,
                bindings=self.bindings(turn.row),
                causes=tuple(sorted(own)),
                version=self._version,
                began=turn.began,
                values=named or None,
            )
            for turn, own, named in zip(turns, causes, values, strict=True)
        ]

    def _named_values(
        self, placed: PlacedCondition | None, rows: Rows, times: Rows
    ) -> list[dict[str, NamedValue]]:
        """What texts name of each row at its time: the counts, and the first instance that a
        quantifier of the expression counts.
        """
        found: list[dict[str, NamedValue]] = [{} for _ in range(len(rows))]
        if not len(rows):
            return found
        named = self.named.get(self.plan.policy, NOTHING_NAMED)
        for name, term in named.terms.items():
            counted = self._graph.value(term, self._frame)
            numbers = counted.trace.sample(_targets(self._frame, counted.frame, rows), times)
            for one, number in zip(found, numbers.tolist(), strict=True):
                one[name] = NamedValue(number if np.isfinite(number) else None)
        if placed is not None and named.aliases:
            for quantifier in _quantifiers(placed):
                assert isinstance(quantifier.condition, CountedInstances)
                alias = quantifier.condition.bound.alias
                if alias in named.aliases:
                    own = _targets(self._frame, quantifier.frame, rows)
                    counting = CountingInstances(quantifier, own, times, 1)
                    for place, identity in zip(counting.places.tolist(), counting.ids, strict=True):
                        found[place].setdefault(alias, NamedValue(identity))
        return found

    def bindings(self, row: int) -> dict[str, str]:
        """The identities of a row, by alias."""
        rows, found = np.array([row]), {}
        for alias, bound in self._frame.aliases.items():
            code = row
            if isinstance(self._rows, JoinedRows):
                code = int(self._rows.columns[alias].targets(rows)[0])
            found[alias] = self._graph.concepts[bound.concept].identities.ids[code]
        return found

    # --- rows and state ---

    @property
    def rows(self) -> AnyRows:
        return self._rows

    def busy_rows(self) -> Rows:
        """The rows that must be kept."""
        own = np.concatenate((np.flatnonzero(self._open), self._again))
        return distinct(np.concatenate((own, np.array([*self._last_told], np.int64))))

    def keep_rows(self, kept: Rows, renumbered: Rows) -> None:
        self._grow()
        self._open, self._began = self._open[kept], self._began[kept]
        self._looked_at = 0
        self._again = renumbered[self._again]
        self._not_known = {int(renumbered[row]) for row in self._not_known}
        told, waiting = self._last_told, self._waiting
        self._last_told = {int(renumbered[row]): time for row, time in told.items()}
        self._waiting = {int(renumbered[row]): time for row, time in waiting.items()}

    def state(self) -> dict[str, Any]:
        self._grow()
        return {
            "open": self._open,
            "began": self._began,
            "told": [[row, time] for row, time in self._last_told.items()],
            "waiting": [[row, time] for row, time in self._waiting.items()],
            "suppressed": self.suppressed,
            "not known": sorted(self._not_known),
            "again": self._again,
            "carried": [[[list(pair) for pair in key], at] for key, at in self._carried.items()],
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._open, self._began = state["open"], state["began"]
        self._last_told = {row: time for row, time in state["told"]}
        self._waiting = {row: time for row, time in state["waiting"]}
        self.suppressed = state["suppressed"]
        self._not_known = set(state.get("not known", ()))
        self._again = state.get("again", NO_ROWS)
        self._carried = {
            tuple((alias, identity) for alias, identity in key): at
            for key, at in state.get("carried", ())
        }

    def _grow(self) -> None:
        had, size = len(self._open), self._rows.size
        if had < size:
            size = max(size, had + had // 2)
            self._open, self._began = widened(self._open, size), widened(self._began, size)


class CauseSearch:
    """The causes of a condition for some rows and times: of every atom whose truth, with the NOTs
    before it, is true."""

    def __init__(self, placed: PlacedCondition, frame: Frame, rows: Rows, times: Rows) -> None:
        self.found: list[set[Cause]] = [set() for _ in range(len(rows))]
        self._visit(placed, frame, rows, times, np.arange(len(rows)), wanted=True)

    def _visit(
        self,
        placed: PlacedCondition,
        frame: Frame,
        rows: Rows,
        times: Rows,
        owners: Rows,
        *,
        wanted: bool,
    ) -> None:
        """`owners`: for which result each row is looked at."""
        if not len(rows):
            return
        own, condition = placed.frame, placed.condition
        rows = _targets(frame, own, rows)
        is_atom = isinstance(condition, AllOf | AnyPart) and condition.is_atom
        if isinstance(condition, AllOf | AnyPart | Negation) and not is_atom:
            wanted = wanted != isinstance(condition, Negation)
            for part in placed.parts:
                self._visit(part, own, rows, times, owners, wanted=wanted)
            return
        truth = placed.trace.sample(rows, times)
        if isinstance(condition, Sustained):
            chosen = truth != FALSE
            self._visit(
                placed.parts[0], own, rows[chosen], times[chosen], owners[chosen], wanted=wanted
            )
            return
        chosen = truth == (TRUE if wanted else FALSE)
        rows, times, owners = rows[chosen], times[chosen], owners[chosen]
        if isinstance(condition, CountedInstances):
            if condition.quantifier == "at least":
                self._visit_counting(placed, condition, rows, times, owners)
            return
        for reader in placed.readers:
            found = reader.causes(_targets(own, reader.frame, rows), times)
            for owner, cause in zip(owners.tolist(), found, strict=True):
                if cause is not None:
                    self.found[owner].add(cause)

    def _visit_counting(
        self,
        placed: PlacedCondition,
        condition: CountedInstances,
        rows: Rows,
        times: Rows,
        owners: Rows,
    ) -> None:
        """The first rows that count, in the order of ids."""
        first = CountingInstances(placed, rows, times, condition.number)
        places, found = first.places, first.rows
        assert placed.inner is not None
        self._visit(
            placed.parts[0], placed.inner, found, times[places], owners[places], wanted=True
        )


class CountingInstances:
    """The first instances that a quantifier counts for some rows at times, in the order of ids."""

    def __init__(self, placed: PlacedCondition, rows: Rows, times: Rows, number: int) -> None:
        """`number`: how many of each row."""
        frame, truth, condition = placed.inner, placed.counted, placed.condition
        assert frame is not None
        assert truth is not None
        assert isinstance(condition, CountedInstances)
        inner = frame.rows
        assert isinstance(inner, JoinedRows | PassingRows)
        places, found = inner.parents.find(rows)
        chosen = truth.sample(found, times[places]) == TRUE
        places, found = places[chosen], found[chosen]
        alias = condition.bound.alias
        codes = inner.columns[alias].targets(found)
        known = frame.identities[alias].ids
        ids = [known[code] for code in codes.tolist()]
        order = sorted(
            range(len(found)), key=lambda one: (int(places[one]), identity_order(ids[one]))
        )
        taken: dict[int, int] = {}
        first = []
        for one in order:
            place = int(places[one])
            taken[place] = taken.get(place, 0) + 1
            if taken[place] <= number:
                first.append(one)
        chosen_rows = np.array(first, np.int64)
        self.places: Rows = places[chosen_rows]
        """For which of the given rows each counts."""
        self.rows: Rows = found[chosen_rows]
        """Those with the alias of the quantifier."""
        self.ids = [ids[one] for one in first]


def _quantifiers(placed: PlacedCondition) -> Iterator[PlacedCondition]:
    """The quantifiers of which texts can name an instance, in the order of the text; see
    `named_instances`.
    """
    match placed.condition:
        case AllOf() | AnyPart() | Sustained():
            for part in placed.parts:
                yield from _quantifiers(part)
        case CountedInstances(quantifier="at least"):
            yield placed
        case _:
            pass


def _targets(frame: Frame, inner: Frame, rows: Rows) -> Rows:
    index = frame.index(inner)
    return rows if index is None else index.targets(rows)
