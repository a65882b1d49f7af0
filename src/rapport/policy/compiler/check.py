"""Names, types and units of a parsed policy against the ontology; every fault with the nearest
known name. [PO-3]"""

from __future__ import annotations

import msgspec

from rapport.policy.compiler.check_comparison import ComparisonCheck
from rapport.policy.compiler.check_state import check_duration, check_silence
from rapport.policy.compiler.check_term import TermCheck
from rapport.policy.compiler.draft import CompilerDraft
from rapport.policy.compiler.properties import check_property
from rapport.policy.compiler.scope import Scope
from rapport.policy.language.faults import Diagnostics, did_you_mean
from rapport.policy.language.printer import print_expression
from rapport.policy.language.tree import (
    And,
    Atomic,
    Comparison,
    ConceptDef,
    DurationCondition,
    Expression,
    FollowedBy,
    Or,
    SilenceCondition,
    Term,
    Within,
)
from rapport.policy.ontology import known_kinds, resolve_kind, why_no_kind
from rapport.policy.plan import Constraint


def check_policy(draft: CompilerDraft, faults: Diagnostics) -> CompilerDraft:
    """The draft with names as declared, constants in root's units and constraints typed; faults
    are noted.
    """
    checker = _Checker(draft, faults)
    constraints = {
        concept.alias: _definition(concept, checker.scope, faults)
        for concept in draft.tree.concepts
    }
    condition = checker.expression(draft.condition)
    return msgspec.structs.replace(
        draft, condition=condition, constraints=constraints, stated=checker.stated
    )


def positive_text(atomic: Atomic) -> str:
    """The canonical text of an atomic part without its NOT, by which it is known."""
    if isinstance(atomic, Term | Comparison):
        atomic = msgspec.structs.replace(atomic, negated=False)
    return print_expression(atomic)


def _definition(concept: ConceptDef, scope: Scope, faults: Diagnostics) -> tuple[Constraint, ...]:
    """The constraints of an alias, typed; those of its kind come first."""
    ontology = scope.ontology
    kind = resolve_kind(ontology, concept.concept)
    if kind is None:
        message = f"there is no concept named {concept.concept!r}"
        hint = why_no_kind(ontology, concept.concept)
        hint = hint or did_you_mean(concept.concept, known_kinds(ontology))
        faults.add("policy.unknown_concept", message, concept.place, hint=hint)
        return ()
    found = (check_property(concept, item, scope, faults) for item in concept.properties)
    own = (constraint for constraint in found if constraint is not None)
    return tuple(dict.fromkeys((*kind.constraints, *own)))


class _Checker:
    """Walks the condition of one policy."""

    def __init__(self, draft: CompilerDraft, faults: Diagnostics) -> None:
        self.scope = Scope(draft.tree.concepts, draft.ontology)
        self.faults = faults
        self.terms = TermCheck(self.scope, draft.tree.concepts, faults)
        self.comparisons = ComparisonCheck(self.scope, draft.tree.concepts, faults)
        self.stated: dict[str, Atomic] = {}

    def expression(self, expression: Expression) -> Expression:
        """The expression with its parts as declared."""
        match expression:
            case Term():
                return self.terms.checked(expression)
            case Comparison() | DurationCondition() | SilenceCondition():
                return self._stated(expression)
            case And(parts):
                return And(tuple(self.expression(part) for part in parts))
            case Or(parts):
                return Or(tuple(self.expression(part) for part in parts))
            case FollowedBy(first, second):
                first, second = self.expression(first), self.expression(second)
                return msgspec.structs.replace(expression, first=first, second=second)
            case Within(inner):
                return msgspec.structs.replace(expression, inner=self.expression(inner))

    def _stated(
        self, atomic: Comparison | DurationCondition | SilenceCondition
    ) -> Comparison | DurationCondition | SilenceCondition:
        """The part as declared, kept under its text."""
        match atomic:
            case Comparison():
                found: Comparison | DurationCondition | SilenceCondition = self.comparisons.checked(
                    atomic
                )
            case DurationCondition():
                found = self._lasting(atomic)
            case SilenceCondition():
                self.comparisons.alias(atomic.alias, atomic.alias_place)
                found = check_silence(atomic, self.scope, self.faults)
        kept = found
        if isinstance(kept, Comparison):
            kept = msgspec.structs.replace(kept, negated=False)
        self.stated.setdefault(positive_text(found), kept)
        return found

    def _lasting(self, lasting: DurationCondition) -> DurationCondition:
        before = self.faults.count
        inner = self._state(lasting.inner)
        lasting = msgspec.structs.replace(lasting, inner=inner)
        if self.faults.count == before:
            check_duration(lasting, self.scope, self.faults)
        return lasting

    def _state(self, expression: Expression) -> Expression:
        """What is inside a `for`: as elsewhere, but its parts are none of the condition's own."""
        match expression:
            case Comparison():
                return self.comparisons.checked(expression)
            case And(parts):
                return And(tuple(self._state(part) for part in parts))
            case Or(parts):
                return Or(tuple(self._state(part) for part in parts))
            case _:
                return self.expression(expression)
