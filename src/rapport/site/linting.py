"""Lint over all policies of a site: against the tables, against each other, against the actions.
[PO-12]

Findings are warnings and hints: a site with them runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rapport.core.errors import Problem
from rapport.kernel.config_fields import Fields
from rapport.policy.language.diagnostics import Diagnostics
from rapport.policy.language.tree import Action
from rapport.policy.lifecycle.record import stop_of
from rapport.policy.lint.instances import TableCandidates, lint_instances, lint_lookups
from rapport.policy.lint.policy_set import (
    CONTRARY,
    ActionStatement,
    Effect,
    Pair,
    action_statements,
    contrary_to,
    effect_of,
    exclude_each_other,
    nearly_equal,
    policy_graph,
    shortest_cycle,
)
from rapport.site.parts import SiteParts

_SHOWN = 3
"""Others that one hint names."""
Said = tuple[str, Action]
"""A policy and one of its actions."""


def check_instances(parts: SiteParts) -> list[Problem]:
    """Properties that nobody has, policies that for want of instances never fire, and instances
    that a table of pairs leaves out.
    """
    if parts.tables is None:
        return []
    problems: list[Problem] = []
    candidates = TableCandidates(parts.tables, parts.tables.context_attributes())
    for name, compiled in parts.policies.items():
        faults = Diagnostics(name, parts.texts[name])
        lint_instances(compiled.tree, compiled.plan, candidates, faults)
        lint_lookups(compiled.tree, compiled.plan, parts.tables, faults)
        problems += faults.problems()
    return problems


def check_chains(parts: SiteParts) -> list[Problem]:
    """Policies whose actions set them off again, and policies that stop each other."""
    found = _Findings(parts)
    effects = _effects(parts)
    leads = policy_graph({name: each.plan for name, each in parts.policies.items()}, effects)
    for name in parts.policies:
        way = shortest_cycle(name, leads)
        if not way:
            continue
        phrase = _leading(effects[name], leads, parts, way[1])
        found.warn(
            (name, _action(parts, name, phrase)),
            "policy.chain",
            f"this can go round for ever: {' -> '.join(way)}",
            hint="narrow one of the conditions; a chain ends after `most_hops` actions",
        )
    stops = {name: _stops(parts, name) for name in parts.policies}
    for name in parts.policies:
        for other, action in stops[name].items():
            if other < name and name in stops.get(other, {}):
                message = f"{other} and {name} stop each other: the first to fire stays alone"
                found.warn((name, action), "policy.stop_each_other", message, severity="hint")
    return found.problems()


def check_contrary(parts: SiteParts) -> list[Problem]:
    """Contrary actions on one target, in one policy or in two whose conditions can hold together;
    of each action the first it is contrary to.
    """
    pairs, problems = contrary_pairs(parts)
    found = _Findings(parts)
    before: dict[ActionStatement, Said] = {}
    for name, compiled in parts.policies.items():
        for action in compiled.tree.actions:
            said = action_statements(action.phrase, pairs)
            first = next((one for one in said if contrary_to(one) in before), None)
            if first is not None:
                _tell_contrary(parts, before[contrary_to(first)], (name, action), first, found)
            for one in said:
                before.setdefault(one, (name, action))
    return [*problems, *found.problems()]


def check_similar(parts: SiteParts) -> list[Problem]:
    """Policies that say nearly the same; one hint per policy."""
    found = _Findings(parts)
    plans = {name: compiled.plan for name, compiled in parts.policies.items()}
    for name, others in nearly_equal(plans).items():
        shown = ", ".join(sorted(one.policy for one in others)[:_SHOWN])
        more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        found.warn(
            (name, parts.policies[name].tree.actions[0]),
            "policy.similar",
            f"{name} says nearly the same as {shown}{more}",
            hint=f"see them side by side: rapport policy similar {name}",
            severity="hint",
        )
    return found.problems()


def contrary_pairs(parts: SiteParts) -> tuple[tuple[Pair, ...], list[Problem]]:
    """The table of contrary words, after the site's own `[contrary] pairs`."""
    problems: list[Problem] = []
    section = parts.file.section("contrary")
    fields = Fields(section, problems, known=("pairs",))
    own: list[Pair] = []
    given = section.values.get("pairs", [])
    for pair in given if isinstance(given, list) else [given]:
        if isinstance(pair, list) and len(pair) == 2 and all(_is_text(word) for word in pair):
            own.append((pair[0], pair[1]))
        else:
            hint = 'such as pairs = [["let in", "evict"]]'
            fields.fault("pairs", "site.bad_pairs", "a pair is a list of two texts", hint=hint)
    return (*own, *CONTRARY), problems


def _tell_contrary(
    parts: SiteParts, first: Said, second: Said, saying: ActionStatement, found: _Findings
) -> None:
    (one, action), (other, last) = first, second
    about = f" of {saying.target!r}" if saying.target else ""
    if one == other:
        message = f"{action.phrase!r} and {last.phrase!r} are contrary, and both are done at once"
        found.warn(second, "policy.contrary_actions", message, hint="leave one out")
        return
    message = f"{last.phrase!r} here and {action.phrase!r} in {one} say contrary things{about}"
    concept = exclude_each_other(parts.policies[one].plan, parts.policies[other].plan)
    if concept:
        hint = f"both hold together only for two different instances of {concept}"
        found.warn(second, "policy.contrary_actions", message, hint=hint, severity="hint")
    else:
        hint = "both conditions can hold at the same time; say which goes before, or part them"
        found.warn(second, "policy.contrary_actions", message, hint=hint)


def _effects(parts: SiteParts) -> dict[str, list[Effect]]:
    """What the actions of each policy do."""
    said: Mapping[str, Any] = parts.file.section("actions").values
    known = {_same(phrase): what for phrase, what in said.items() if isinstance(what, dict)}
    return {
        name: [
            effect_of(one.phrase, known.get(_same(one.phrase), {}), parts.ontology)
            for one in compiled.tree.actions
        ]
        for name, compiled in parts.policies.items()
    }


def _leading(
    effects: list[Effect], leads: Mapping[str, set[str]], parts: SiteParts, other: str
) -> str:
    """The action by which a policy sets another off."""
    plan = {other: parts.policies[other].plan}
    return next(one.phrase for one in effects if policy_graph(plan, {other: [one]})[other])


def _action(parts: SiteParts, name: str, phrase: str) -> Action:
    return next(one for one in parts.policies[name].tree.actions if one.phrase == phrase)


def _stops(parts: SiteParts, name: str) -> dict[str, Action]:
    """The policies that a policy stops."""
    actions = parts.policies[name].tree.actions
    return {stop.policy: one for one in actions if (stop := stop_of(one.phrase)) is not None}


def _same(phrase: str) -> str:
    return " ".join(phrase.split()).casefold()


def _is_text(word: object) -> bool:
    return isinstance(word, str) and bool(word.strip())


class _Findings:
    """Problems at actions of policies."""

    def __init__(self, parts: SiteParts) -> None:
        self._faults = {name: Diagnostics(name, text) for name, text in parts.texts.items()}

    def warn(
        self, said: Said, code: str, message: str, *, hint: str = "", severity: Any = "warning"
    ) -> None:
        name, action = said
        self._faults[name].add(code, message, action.place, hint=hint, severity=severity)

    def problems(self) -> list[Problem]:
        return [problem for faults in self._faults.values() for problem in faults.problems()]
