"""Compiles policy text to a plan in stages. Pure: no files, no clock, no network. [PO-3, PO-4,
PO-5]"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rapport.core.errors import InvalidInput, PolicyError, Problem
from rapport.policy.compiler.check import check_policy
from rapport.policy.compiler.interpretation import PolicyTerms, TermRewrite, rewrite_policy
from rapport.policy.compiler.logic_tree import build_logic_tree
from rapport.policy.compiler.normal_form import atoms_of_expression, normalize
from rapport.policy.compiler.planner import CompilerDraft, make_plan
from rapport.policy.compiler.scope import aliases_of
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

Stage = Callable[[CompilerDraft, Diagnostics], CompilerDraft]


class CompiledConditions(msgspec.Struct, frozen=True):
    """A policy with `conditions` that can run: canonical tree, plan, and the warnings and hints
    found."""

    tree: PolicyTree
    plan: Plan
    problems: tuple[Problem, ...]
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
    draft, faults = compile_draft(
        text, name=name, ontology=ontology, window_ms=window_ms, terms=terms
    )
    assert draft.plan is not None
    return CompiledConditions(draft.tree, draft.plan, faults.problems(), draft.rewritten)


def compile_draft(
    text: str,
    *,
    name: str,
    ontology: Ontology,
    window_ms: int,
    terms: PolicyTerms | None = None,
) -> tuple[CompilerDraft, Diagnostics]:
    """Compiles a policy and returns the results of all stages."""
    tree = parse_policy(text, name=name)
    faults = Diagnostics(name, text)
    draft = CompilerDraft(
        tree=tree, ontology=ontology, window_ms=window_ms, condition=tree.condition
    )
    if terms is not None:
        draft = _in_canonical_terms(draft, terms, faults)
    for stage in STAGES:
        draft = stage(draft, faults)
        if faults.has_errors():
            raise PolicyError(faults.problems())
    return draft, faults


def _in_canonical_terms(
    draft: CompilerDraft, terms: PolicyTerms, faults: Diagnostics
) -> CompilerDraft:
    """Translates the draft into canonical terms; adds a hint for each translated term."""
    tree, rewritten = rewrite_policy(draft.tree, terms, draft.ontology, faults)
    if faults.has_errors():
        raise PolicyError(faults.problems())
    for each in rewritten:
        own = f"{each.written} in the terms of {terms.interpretation}"
        message = f"{own} is {each.root} in canonical terms"
        faults.add("policy.own_terms", message, each.place, severity="hint")
    return msgspec.structs.replace(
        draft, tree=tree, condition=tree.condition, rewritten=rewritten, has_own_terms=True
    )


def _check(draft: CompilerDraft, faults: Diagnostics) -> CompilerDraft:
    for action in draft.tree.actions:
        read_delivery(action, faults)
    checked = check_policy(draft.tree, draft.ontology, faults)
    return msgspec.structs.replace(draft, **checked._asdict())


def _normalize(draft: CompilerDraft, faults: Diagnostics) -> CompilerDraft:
    try:
        return msgspec.structs.replace(draft, ecnf=normalize(draft.condition))
    except InvalidInput as error:
        place = next(atoms_of_expression(draft.condition)).place
        faults.add(error.code, error.message, place, hint=error.hint)
        return draft


def _logic_tree(draft: CompilerDraft, faults: Diagnostics) -> CompilerDraft:
    tree = build_logic_tree(draft.ecnf, draft.text_atoms, draft.constraints, draft.scope)
    return msgspec.structs.replace(draft, logic_tree=tree)


def _lint(draft: CompilerDraft, faults: Diagnostics) -> CompilerDraft:
    used = frozenset(aliases_of(draft.condition))
    lint_aliases(_by_concepts(draft), draft.constraints, used, faults)
    assert draft.plan is not None
    lint_times(draft.plan, draft.ontology, draft.condition, faults)
    lint_satisfiable(draft.tree, draft.plan, faults)
    lint_meant_situation(draft.tree, draft.plan, faults)
    if draft.plan.guard is not None:
        lint_guard(draft.tree, draft.plan.guard, draft.ontology, faults)
    return draft


def _guard(draft: CompilerDraft, faults: Diagnostics) -> CompilerDraft:
    assert draft.plan is not None
    if draft.tree.guard is not None and draft.has_own_terms:
        message = "'while' uses the terms of the site, not those of an interpretation"
        hint = "take the policy out of [policies.interpretations]"
        faults.add("policy.untranslatable", message, hint=hint)
        return draft
    plan = plan_guard(draft.tree, draft.plan, draft.ontology, faults)
    return msgspec.structs.replace(draft, plan=plan)


def _by_concepts(draft: CompilerDraft) -> PolicyTree:
    """The tree with concepts instead of kinds, which may name the same instances."""
    concepts = draft.scope.concepts
    resolved = tuple(
        msgspec.structs.replace(each, concept=concepts[each.alias]) for each in draft.tree.concepts
    )
    return msgspec.structs.replace(draft.tree, concepts=resolved)


STAGES: tuple[Stage, ...] = (_check, _normalize, _logic_tree, make_plan, _guard, _lint)
