"""Rules to inject into descendants so that a new rule of a parent does not change them. [ME-6]

Section 4.2.2: the parent gets `r2 = T.T1 -> g` while a child has `r1 = T1 -> f`; the child would
inherit r2, which counts more than r1 at some paths. So the child gets `T.T1 -> f`, which overrides
r2. A path is the child's own when a rule declared below the augmented interpretation decided there,
or further down where the new rule would now stop exploration.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from rapport.mediation.model.checking import Checked
from rapport.mediation.model.interpretation import DIRECTIONS, EXPLORE, Direction, Rule
from rapport.mediation.model.patterns import BoundItem, BoundPattern
from rapport.mediation.model.precedence import Path
from rapport.mediation.model.resolution import Resolver
from rapport.mediation.model.scope import BoundRule
from rapport.mediation.model.types import innermost

Decisions = Mapping[tuple[Direction, Path], str]
"""What is to be done at each path that is looked at: a conversion, or EXPLORE."""


class Expectation:
    """What a descendant must do after its ancestor `above` got the rules `added`.

    `before` is the descendant as it was; `natural` as it would be with nothing injected.
    """

    def __init__(
        self, before: Checked, natural: Checked, added: Collection[Rule], above: str
    ) -> None:
        self._before, self._natural, self._added, self._above = before, natural, added, above
        self._known = frozenset(before.scope.types.names)
        lineage = before.lineage
        self._inherited = frozenset(lineage[: lineage.index(above) + 1])

    def rules_to_inject(self, now: Checked, *, exactly: bool) -> tuple[Rule, ...]:
        """What `now` lacks to do as expected; empty when it does.

        First one rule per pattern, as the source has it; where that is too coarse, `exactly` gives
        a rule per path. The paths are those that `now` looks at: an injected rule may match at
        paths that no declared rule reaches, such as deeper in other events.
        """
        decisions = dict(self._decide_all(now))
        wrong = {
            (direction, path): decision
            for (direction, path), decision in decisions.items()
            if _decision(now.resolver(direction).winner(path)) != decision
        }
        by_path = [
            Rule(str(exact_pattern(path)), decision, direction, injected=True)
            for (direction, path), decision in wrong.items()
        ]
        return tuple(by_path if exactly else self._by_pattern(decisions, wrong) or by_path)

    def _by_pattern(self, decisions: Decisions, wrong: Decisions) -> list[Rule]:
        """One rule for each new pattern whose paths all want the same."""
        wanted: dict[tuple[Direction, BoundRule], set[str]] = {}
        for (direction, path), decision in decisions.items():
            rule = self._natural.resolver(direction).winner(path)
            if rule is not None and self._is_added(rule):
                wanted.setdefault((direction, rule), set()).add(decision)
        concerned = {
            (direction, self._natural.resolver(direction).winner(path)) for direction, path in wrong
        }
        return [
            Rule(str(rule.pattern), next(iter(alike)), direction, injected=True)
            for (direction, rule), alike in wanted.items()
            if len(alike) == 1 and (direction, rule) in concerned
        ]

    def _decide_all(self, now: Checked) -> Iterator[tuple[tuple[Direction, Path], str]]:
        for direction in DIRECTIONS:
            old, natural = self._before.resolver(direction), self._natural.resolver(direction)

            def decide(path: Path, old: Resolver = old, natural: Resolver = natural) -> str:
                return self._decide(path, old, natural)

            for name in self._natural.scope.types.complex_names:
                for path, decision in now.resolver(direction).walk(name, decide):
                    yield (direction, path), decision

    def _decide(self, path: Path, old: Resolver, natural: Resolver) -> str:
        rule = natural.winner(path)
        if rule is not None and self._is_added(rule) and self._was_possible(path):
            own = self._own_decision(path, old)
            if own is not None:
                return own
        return _decision(rule)

    def _own_decision(self, path: Path, old: Resolver) -> str | None:
        """What rules declared below `above` did here; None if nothing of its own did."""
        winner = old.winner(path)
        if winner is not None and winner.owner not in self._inherited:
            return winner.rule.conversion
        if _decision(winner) != EXPLORE:
            return None
        below = old.transforming_paths_below(path)
        return EXPLORE if any(each.rule.owner not in self._inherited for each in below) else None

    def _is_added(self, rule: BoundRule) -> bool:
        return rule.owner == self._above and rule.rule in self._added

    def _was_possible(self, path: Path) -> bool:
        return all(innermost(face) in self._known for each in path for face in each.faces)


def exact_pattern(path: Path) -> BoundPattern:
    """The pattern that says everything the path says."""
    head, *rest = path
    items = [BoundItem(position.attribute, position.type) for position in rest]
    return BoundPattern((BoundItem("", head.type), *items))


def _decision(rule: BoundRule | None) -> str:
    return EXPLORE if rule is None else rule.rule.conversion
