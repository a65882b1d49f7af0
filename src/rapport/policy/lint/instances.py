"""Lint against the current rows of tables: properties that no instance has, facts that never hold,
instances missing from lookup tables. [PO-12]

All are warnings or hints, because tables change. Instances known from events alone are never ruled
out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import numpy as np

from rapport.core.errors import nearest_names
from rapport.policy.compiler.plan_text import predicate_text
from rapport.policy.compiler.scope import table_attributes
from rapport.policy.language.diagnostics import Diagnostics
from rapport.policy.language.printer import print_value
from rapport.policy.language.situation_tree import (
    Quantified,
    SituationTree,
    quantified_concept,
    tree_nodes,
)
from rapport.policy.language.tree import ConceptDef, PolicyTree, SourceSpan
from rapport.policy.lint.satisfiability import never_fires, place_of_alias
from rapport.policy.operators.base import PullData
from rapport.policy.operators.columns import Mask
from rapport.policy.operators.identities import Identities, satisfies
from rapport.policy.operators.occurrences import Predicate
from rapport.policy.plan import (
    Constraint,
    ConstraintTerm,
    LastingTerm,
    LookedUp,
    Plan,
    Side,
    SilentTerm,
    TermStep,
    state_terms,
)
from rapport.policy.situation_plan import BoundAlias, SituationPlan
from rapport.tables.instances import Instances

_MOST_PAIRS = 250_000
"""Pairs of instances tried per fact; with more it counts as possible."""
_MOST_VALUES = 6
_SOME_VALUES = 10_000
_SHOWN = 5


def lint_instances(
    tree: PolicyTree, plan: Plan, candidates: TableCandidates, faults: Diagnostics
) -> None:
    """Warns about properties that no instance has, with the existing values, and about a policy
    that never fires for lack of instances. Costs at most `_MOST_PAIRS` per fact.
    """
    known = KnownInstances(plan, candidates)
    if known.lacks_data():
        return  # the site reports it, or it is known only while a node runs
    empty = [side for side in known.sides() if known.is_empty(side)]
    for side in empty:
        bound = BoundAlias(side.alias, side.concept, side.constraints)
        _report_empty(tree.concepts, bound, candidates, faults)
    why = never_fires(plan, known.dead_terms())
    if why is not None and not empty and never_fires(plan) is None:
        faults.warn(
            "policy.never_fires",
            f"as the tables stand the policy never fires: {why.reason}",
            place_of_alias(tree, why.aliases[0]),
            hint="check the tables and the condition",
        )


def lint_bound_instances(
    tree: SituationTree, plan: SituationPlan, candidates: TableCandidates, faults: Diagnostics
) -> None:
    """Warns about properties of a situation's aliases that no instance has."""
    quantified = [node for node in tree_nodes(tree) if isinstance(node, Quantified)]
    definitions = [*tree.concepts, *(quantified_concept(node) for node in quantified)]
    for bound in plan.bound_aliases():
        columns = candidates.instances(bound.concept).columns
        given = all(
            one.attribute in columns and (bound.concept, one.attribute) not in candidates.elsewhere
            for one in bound.constraints
        )
        known = bound.constraints and given
        if known and not candidates.mask(bound.concept, bound.constraints).any():
            _report_empty(definitions, bound, candidates, faults)


class TableCandidates:
    """Instances by properties, cached for all policies of a site."""

    def __init__(
        self, pull: PullData, elsewhere: Collection[tuple[str, str]] = frozenset()
    ) -> None:
        """`elsewhere`: concepts and attributes whose tables have rows only while a node runs."""
        self.pull, self.elsewhere = pull, elsewhere
        self._masks: dict[tuple[str, tuple[Constraint, ...]], Mask] = {}
        self._identities: dict[str, Identities] = {}

    def instances(self, concept: str) -> Instances:
        return self.pull.instances(concept)

    def mask(self, concept: str, constraints: tuple[Constraint, ...]) -> Mask:
        """Which instances satisfy the constraints."""
        key = (concept, constraints)
        if key not in self._masks:
            self._masks[key] = satisfies(self.instances(concept), constraints)
        return self._masks[key]

    def identities(self, concept: str) -> Identities:
        """With codes in the order of the instances."""
        if concept not in self._identities:
            self._identities[concept] = Identities(self.instances(concept))
        return self._identities[concept]


class KnownInstances:
    """The table instances that a plan can use."""

    def __init__(self, plan: Plan, candidates: TableCandidates) -> None:
        self._plan, self.candidates = plan, candidates
        self.instances = candidates.instances

    def sides(self) -> list[Side]:
        """One side per alias."""
        found: dict[str, Side] = {}
        for side in self._plan.sides():
            found.setdefault(side.alias, side)
        return list(found.values())

    def lacks_data(self) -> bool:
        """Whether the plan reads an attribute that no table gives here."""
        wanted = [(side, one.attribute) for side in self.sides() for one in side.constraints]
        wanted += [each for term in self._plan.terms for each in table_attributes(term)]
        return any(
            attribute not in self.instances(side.concept).columns
            or (side.concept, attribute) in self.candidates.elsewhere
            for side, attribute in wanted
        )

    def is_empty(self, side: Side) -> bool:
        """Whether no instance has the required properties; instances outside the tables have
        none.
        """
        if not side.constraints:
            return False
        return not self.candidates.mask(side.concept, side.constraints).any()

    def dead_terms(self) -> dict[int, str]:
        """Terms that cannot occur with the current tables, with the reason."""
        found = ((number, self._why_dead(term)) for number, term in enumerate(self._plan.terms))
        return {number: why for number, why in found if why}

    def _why_dead(self, term: TermStep) -> str:
        for side in (term.first, term.second):
            if self.is_empty(side):
                return f"no {side.concept} in the tables has the properties of {side.alias}"
            if self._needs_a_row(term, side) and not len(self.instances(side.concept)):
                return f"no table has a {side.concept}"
        if isinstance(term, ConstraintTerm) and self._holds_of_none(term):
            return f"'{predicate_text(term)}' holds for no instance of the tables"
        return ""

    def _needs_a_row(self, term: TermStep, side: Side) -> bool:
        """Whether only table instances can be at this side."""
        if isinstance(term, SilentTerm):
            return False
        if isinstance(term, LastingTerm):
            parts = list(state_terms(term))
            with_events = {
                one.alias for part in parts for one in (part.first, part.second) if one.stream
            }
            return side.alias not in with_events
        if side.stream is not None:
            return False
        return any(one.alias == side.alias for one, _attribute in table_attributes(term))

    def _holds_of_none(self, term: ConstraintTerm) -> bool:
        """Whether no instances satisfy the fact; False when there are too many to try."""
        sides = (term.first, term.second)
        if not all(self._needs_a_row(term, side) or side.constraints for side in sides):
            return False
        rows = [self._rows(side) for side in sides]
        if term.first.alias == term.second.alias:
            first = second = rows[0]
        elif len(rows[0]) * len(rows[1]) <= _MOST_PAIRS:
            first = np.repeat(rows[0], len(rows[1]))
            second = np.tile(rows[1], len(rows[0]))
        else:
            return False
        concepts = {side.concept for side in sides}
        identities = {concept: self.candidates.identities(concept) for concept in concepts}
        predicate = Predicate(term, identities, self.candidates.pull)
        return not predicate.holds(None, None, first, second).any()

    def _rows(self, side: Side) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Codes of the instances with the properties; instances have the first codes, in
        their order.
        """
        return np.flatnonzero(self.candidates.mask(side.concept, side.constraints))


def _report_empty(
    definitions: Iterable[ConceptDef],
    bound: BoundAlias,
    candidates: TableCandidates,
    faults: Diagnostics,
) -> None:
    """Reports the property that no instance has, and the existing values."""
    instances = candidates.instances(bound.concept)
    masks = candidates.mask
    blamed = [one for one in bound.constraints if not masks(bound.concept, (one,)).any()]
    shown = " and ".join(_shown(one) for one in blamed[:1] or bound.constraints)
    faults.warn(
        "policy.no_such_instance",
        f"no {bound.concept} in the tables has {shown}",
        _place(definitions, bound.alias, (blamed or bound.constraints)[0]),
        hint=_values_hint(instances, blamed[0]) if blamed else "each is there, but not together",
    )


def _shown(constraint: Constraint) -> str:
    return f"{constraint.attribute} {constraint.operator} {print_value(constraint.value)}"


def _place(
    definitions: Iterable[ConceptDef], alias: str, constraint: Constraint
) -> SourceSpan | None:
    """Of the property, or of the definition when its kind requires it."""
    for definition in definitions:
        if definition.alias == alias:
            places = {one.attribute: one.place for one in definition.properties}
            return places.get(constraint.attribute, definition.place)
    return None


def _values_hint(instances: Instances, constraint: Constraint) -> str:
    """The existing values, nearest first."""
    column = instances.columns.get(constraint.attribute)
    if column is None or not len(column):
        return f"the tables have no {instances.concept}" if not len(instances) else ""
    if column.dtype != object:
        there = column[~np.isnan(column)]
        return f"from {there.min():g} to {there.max():g}" if len(there) else "no instance has it"
    values = list(_texts(column))
    if not values:
        return "no instance has it"
    near = nearest_names(str(constraint.value), values, limit=1)
    if near:
        return f"did you mean {near[0]!r}?"
    more = ", ..." if len(values) > _MOST_VALUES else ""
    return f"there are: {', '.join(values[:_MOST_VALUES])}{more}"


def _texts(column: np.ndarray[tuple[int, ...], np.dtype[np.object_]]) -> Iterator[str]:
    """Distinct values, most frequent first; of a very long column only those of its beginning."""
    counts: dict[str, int] = {}
    for value in column[:_SOME_VALUES].tolist():
        if value is not None:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            counts[text] = counts.get(text, 0) + 1
    yield from sorted(counts, key=lambda text: (-counts[text], text))


def lint_lookups(tree: PolicyTree, plan: Plan, pull: PullData, faults: Diagnostics) -> None:
    """Reports instances that no row of a looked-up function names; comparisons with them never
    hold. A table with fewer than half of the instances counts as intended. Costs one pass over
    table and instances per function.
    """
    reported: set[tuple[str, frozenset[str]]] = set()
    for function, side, attribute in _lookups(plan):
        named = {text for key in pull.pairs(function) for text in key}
        wanted = _values(side, attribute, pull)
        missing = wanted - named
        if not missing or 2 * len(missing) >= len(wanted) or (function, missing) in reported:
            continue
        reported.add((function, missing))
        shown = ", ".join(sorted(missing)[:_SHOWN])
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        faults.add(
            "policy.not_in_table",
            f"the table of {function!r} has no row for {shown}{more}",
            place_of_alias(tree, side.alias),
            hint="add rows, or leave it if nothing is to be found there",
            severity="hint",
        )


def _lookups(plan: Plan) -> Iterator[tuple[str, Side, str]]:
    """Every looked-up function with the side and attribute of its key."""
    for term in (state for each in plan.terms for state in state_terms(each)):
        if term.compared is None:
            continue
        for operand in (term.compared.left, term.compared.right):
            if isinstance(operand, LookedUp):
                for value in operand.of:
                    yield operand.function, (term.first, term.second)[value.side], value.attribute


def _values(side: Side, attribute: str, pull: PullData) -> frozenset[str]:
    """The keys that the alias's instances give."""
    instances = pull.instances(side.concept)
    rows = np.flatnonzero(satisfies(instances, side.constraints)).tolist()
    if attribute == "id":
        return frozenset(instances.ids[row] for row in rows)
    column = instances.columns.get(attribute)
    if column is None:
        return frozenset()
    return frozenset(str(column[row]) for row in rows if column[row] is not None)
