"""From policy text to plan, stage by stage. Pure: no files, no clock, no network. [PO-3, PO-4,
PO-5]"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rapport.core.errors import InvalidInput, PolicyError, Problem
from rapport.policy.compiler.atoms import atoms_of_expression
from rapport.policy.compiler.check import check
from rapport.policy.compiler.draft import Draft, Rewritten
from rapport.policy.compiler.logic_tree import build_logic_tree
from rapport.policy.compiler.normalize import normalize
from rapport.policy.compiler.planner import make_plan
from rapport.policy.compiler.scope import aliases_of
from rapport.policy.delivery import read_delivery
from rapport.policy.language.faults import Faults
from rapport.policy.language.parser import parse_policy
from rapport.policy.language.tree import PolicyTree
from rapport.policy.lint.satisfiability import lint_aliases, lint_satisfiable
from rapport.policy.lint.times import lint_times
from rapport.policy.ontology import Ontology
from rapport.policy.own_terms.terms import PolicyTerms, rewrite
from rapport.policy.plan import Plan

Stage = Callable[[Draft, Faults], Draft]


class Compiled(msgspec.Struct, frozen=True):
    """A policy that can run: its tree in root, its plan, and the warnings and hints found on the
    way."""

    tree: PolicyTree
    plan: Plan
    problems: tuple[Problem, ...]
    rewritten: tuple[Rewritten, ...] = ()
    """What was said in other words than root's."""


def compile_policy(
    text: str,
    *,
    name: str,
    ontology: Ontology,
    window_ms: int,
    terms: PolicyTerms | None = None,
) -> Compiled:
    """Compiles a policy; raises PolicyError with every fault of the first stage that finds any.

    Args:
        name: the policy's name, by which detections and problems refer to it.
        window_ms: the site's window, for a policy that names none.
        terms: what its words mean, when it is not written in root's.
    """
    draft, faults = compile_draft(
        text, name=name, ontology=ontology, window_ms=window_ms, terms=terms
    )
    assert draft.plan is not None
    return Compiled(draft.tree, draft.plan, faults.problems(), draft.rewritten)


def compile_draft(
    text: str,
    *,
    name: str,
    ontology: Ontology,
    window_ms: int,
    terms: PolicyTerms | None = None,
) -> tuple[Draft, Faults]:
    """The same with what every stage made of it, for people who want to look."""
    tree = parse_policy(text, name=name)
    faults = Faults(name, text)
    draft = Draft(tree=tree, ontology=ontology, window_ms=window_ms, condition=tree.condition)
    if terms is not None:
        draft = _in_root(draft, terms, faults)
    for stage in STAGES:
        draft = stage(draft, faults)
        if faults.has_errors():
            raise PolicyError(faults.problems())
    return draft, faults


def _in_root(draft: Draft, terms: PolicyTerms, faults: Faults) -> Draft:
    """The draft in root's words; each that was another is told by a hint."""
    tree, rewritten = rewrite(draft.tree, terms, draft.ontology, faults)
    if faults.has_errors():
        raise PolicyError(faults.problems())
    for each in rewritten:
        message = f"{each.written} in the terms of {terms.interpretation} is {each.root} in root"
        faults.add("policy.own_terms", message, each.place, severity="hint")
    return msgspec.structs.replace(draft, tree=tree, condition=tree.condition, rewritten=rewritten)


def _check(draft: Draft, faults: Faults) -> Draft:
    for action in draft.tree.actions:
        read_delivery(action, faults)
    return check(draft, faults)


def _normalize(draft: Draft, faults: Faults) -> Draft:
    try:
        return msgspec.structs.replace(draft, ecnf=normalize(draft.condition))
    except InvalidInput as error:
        place = next(atoms_of_expression(draft.condition)).place
        faults.add(error.code, error.message, place, hint=error.hint)
        return draft


def _logic_tree(draft: Draft, faults: Faults) -> Draft:
    tree = build_logic_tree(draft.ecnf, draft.stated, draft.constraints, draft.scope)
    return msgspec.structs.replace(draft, logic_tree=tree)


def _lint(draft: Draft, faults: Faults) -> Draft:
    used = frozenset(aliases_of(draft.condition))
    lint_aliases(_by_concepts(draft), draft.constraints, used, faults)
    assert draft.plan is not None
    lint_times(draft.plan, draft.ontology, draft.condition, faults)
    lint_satisfiable(draft.tree, draft.plan, faults)
    return draft


def _by_concepts(draft: Draft) -> PolicyTree:
    """The tree with concepts in place of kinds, which may name the same instances."""
    concepts = draft.scope.concepts
    resolved = tuple(
        msgspec.structs.replace(each, concept=concepts[each.alias]) for each in draft.tree.concepts
    )
    return msgspec.structs.replace(draft.tree, concepts=resolved)


STAGES: tuple[Stage, ...] = (_check, _normalize, _logic_tree, make_plan, _lint)
