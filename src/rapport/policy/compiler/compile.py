"""Compiles policy text to a plan in stages. Pure: no files, no clock, no network. [PO-3, PO-4,
PO-5]"""

from __future__ import annotations

import msgspec

from rapport.core.errors import InvalidInput, PolicyError, Problem
from rapport.policy.compiler.check import check_policy
from rapport.policy.compiler.interpretation import PolicyTerms, TermRewrite, rewrite_policy
from rapport.policy.compiler.logic_tree import LogicTree, build_logic_tree
from rapport.policy.compiler.normal_form import Ecnf, atoms_of_expression, normalize
from rapport.policy.compiler.planner import make_plan
from rapport.policy.compiler.scope import Scope, aliases_of
from rapport.policy.compiler.situation_planner import plan_guard, plan_situation
from rapport.policy.delivery import read_delivery
from rapport.policy.language.diagnostics import Diagnostics
from rapport.policy.language.parser import parse_policy
from rapport.policy.language.situation_tree import ParsedPolicy, SituationTree
from rapport.policy.language.situations import is_situation, parse_situation_policy
from rapport.policy.language.tree import PolicyTree
from rapport.policy.lint.meant_situations import lint_meant_situation
from rapport.policy.lint.satisfiability import lint_aliases, lint_satisfiable
from rapport.policy.lint.situation_lint import lint_guard, lint_situation
from rapport.policy.lint.times import lint_times
from rapport.policy.ontology import Ontology
from rapport.policy.plan import Plan
from rapport.policy.situation_plan import SituationPlan


class CompiledConditions(msgspec.Struct, frozen=True):
    """A policy with `conditions` that can run: canonical tree, plan, the warnings and hints found,
    and the stages between."""

    tree: PolicyTree
    plan: Plan
    problems: tuple[Problem, ...]
    ecnf: Ecnf
    logic_tree: LogicTree
    rewritten: tuple[TermRewrite, ...] = ()
    """The terms that were not canonical."""


class CompiledSituation(msgspec.Struct, frozen=True):
    """A policy with a `situation` that can run: tree, plan, and the warnings and hints found."""

    tree: SituationTree
    plan: SituationPlan
    problems: tuple[Problem, ...]


CompiledPolicy = CompiledConditions | CompiledSituation


def parse_text(text: str, *, name: str) -> ParsedPolicy:
    """Parses a policy with `conditions` or with a `situation`; raises PolicyError with every
    fault."""
    if is_situation(text):
        return parse_situation_policy(name, text)
    return parse_policy(text, name=name)


def compile_policy(
    text: str,
    *,
    name: str,
    ontology: Ontology,
    window_ms: int,
    terms: PolicyTerms | None = None,
) -> CompiledPolicy:
    """Compiles a policy with `conditions` or with a `situation`; raises PolicyError with every
    fault of the first stage that finds any.

    Args:
        name: the policy's name, by which detections and problems refer to it.
        window_ms: the site's window, for a policy with conditions that names none.
        terms: the interpretation whose terms it uses; None: canonical terms.
    """
    if is_situation(text):
        return compile_situation(text, name=name, ontology=ontology, terms=terms)
    return compile_conditions(text, name=name, ontology=ontology, window_ms=window_ms, terms=terms)


def compile_situation(
    text: str, *, name: str, ontology: Ontology, terms: PolicyTerms | None = None
) -> CompiledSituation:
    """Compiles a policy with a `situation`; see `compile_policy`."""
    tree = parse_situation_policy(name, text)
    faults = Diagnostics(name, text)
    if terms is not None:
        message = "a situation uses the terms of the site, not those of an interpretation"
        hint = f"take the policy out of [policies.interpretations], not {terms.interpretation}"
        faults.add("policy.untranslatable", message, hint=hint)
        raise PolicyError(faults.problems())
    for action in (*tree.actions, *tree.cleared_actions):
        read_delivery(action, faults)
    plan = plan_situation(tree, ontology, faults)
    if plan is None:
        raise PolicyError(faults.problems())
    lint_situation(tree, plan, ontology, faults)
    return CompiledSituation(tree, plan, faults.problems())


def compile_conditions(
    text: str,
    *,
    name: str,
    ontology: Ontology,
    window_ms: int,
    terms: PolicyTerms | None = None,
) -> CompiledConditions:
    """Compiles a policy with `conditions`; see `compile_policy`."""
    tree, faults = parse_policy(text, name=name), Diagnostics(name, text)
    rewritten: tuple[TermRewrite, ...] = ()
    if terms is not None:
        tree, rewritten = _in_canonical_terms(tree, terms, ontology, faults)
    for action in tree.actions:
        read_delivery(action, faults)
    checked = check_policy(tree, ontology, faults)
    _raise_errors(faults)
    try:
        ecnf = normalize(checked.condition)
    except InvalidInput as error:
        place = next(atoms_of_expression(checked.condition)).place
        faults.add(error.code, error.message, place, hint=error.hint)
        raise PolicyError(faults.problems()) from None
    scope = Scope(tree.concepts, ontology)
    logic_tree = build_logic_tree(ecnf, checked.text_atoms, checked.constraints, scope)
    plan = make_plan(tree, checked, logic_tree, scope, window_ms, faults)
    _raise_errors(faults)
    if tree.guard is not None and terms is not None:
        message = "'while' uses the terms of the site, not those of an interpretation"
        hint = "take the policy out of [policies.interpretations]"
        faults.add("policy.untranslatable", message, hint=hint)
    else:
        plan = plan_guard(tree, plan, ontology, faults)
    _raise_errors(faults)
    lint_aliases(
        _by_concepts(tree, scope),
        checked.constraints,
        frozenset(aliases_of(checked.condition)),
        faults,
    )
    lint_times(plan, ontology, checked.condition, faults)
    lint_satisfiable(tree, plan, faults)
    lint_meant_situation(tree, plan, faults)
    if plan.guard is not None:
        lint_guard(tree, plan.guard, ontology, faults)
    _raise_errors(faults)
    return CompiledConditions(tree, plan, faults.problems(), ecnf, logic_tree, rewritten)


def _raise_errors(faults: Diagnostics) -> None:
    if faults.has_errors():
        raise PolicyError(faults.problems())


def _in_canonical_terms(
    tree: PolicyTree, terms: PolicyTerms, ontology: Ontology, faults: Diagnostics
) -> tuple[PolicyTree, tuple[TermRewrite, ...]]:
    """The tree in canonical terms; adds a hint for each translated term."""
    tree, rewritten = rewrite_policy(tree, terms, ontology, faults)
    _raise_errors(faults)
    for each in rewritten:
        own = f"{each.written} in the terms of {terms.interpretation}"
        message = f"{own} is {each.root} in canonical terms"
        faults.add("policy.own_terms", message, each.place, severity="hint")
    return tree, rewritten


def _by_concepts(tree: PolicyTree, scope: Scope) -> PolicyTree:
    """The tree with concepts instead of kinds, which may name the same instances."""
    resolved = tuple(
        msgspec.structs.replace(each, concept=scope.concepts[each.alias]) for each in tree.concepts
    )
    return msgspec.structs.replace(tree, concepts=resolved)
