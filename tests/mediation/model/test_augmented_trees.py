"""Random trees of interpretations under augmentation; another evaluator is the judge. [ME-6]"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rapport.mediation.codegen.transformer import make_transformer
from rapport.mediation.conversion.conversions import Call, Formula, converts
from rapport.mediation.interpretations.model import DIRECTIONS, EXPLORE, Interpretation, Rule
from rapport.mediation.interpretations.registry import InterpretationRegistry
from rapport.mediation.interpretations.type_changes import Augment, apply_change, load_all
from rapport.mediation.types import Attribute, ComplexType
from support.examples import examples
from support.judge.mediation import Judge, Place, Said, Trail

FACTORS = range(2, 9)
TYPES = (
    ComplexType("T1", (Attribute("v", "number"), Attribute("w", "number"))),
    ComplexType("S1", (Attribute("x", "number", True),), ("T1",)),
    ComplexType("T", (Attribute("one", "T1"), Attribute("two", "T1"), Attribute("many", "[T1]"))),
    ComplexType("U", (Attribute("more", "T1"),), ("T",)),
    ComplexType("Other", (Attribute("one", "T1"), Attribute("t", "T"))),
)
CONVERSIONS = (
    *(converts(f"f{n}", "T1", "T1", Call(f"f{n}")) for n in FACTORS),
    *(converts(f"n{n}", "number", "number", Formula(float(n))) for n in FACTORS),
)
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    f"f{n}": lambda value, n=n: value | {"by": f"f{n}"} for n in FACTORS
}
COMPLEX = (
    *("T1", "S1", "T.T1", "T.S1", "T.one", "T.one(S1)", "T.many(T1)", "U.T1", "U.one", "U.more"),
    *("Other.T1", "Other.one", "Other.T.T1", "Other.t.one", "Other.T.two", "Other.t(U).one"),
)
NUMBERS = (
    *("number", "T1.v", "S1.v", "S1.x", "T1.number", "T.number", "Other.number", "T.two.w"),
    *("T.T1.v", "Other.T.T1.v", "Other.t.one.v", "U.more.v", "U.number"),
)
INNER = {"v": 1.0, "w": 1.0}
WHOLE = {
    "one": INNER | {"@type": "S1", "x": 1.0},
    "two": INNER | {"@type": "T1"},
    "many": [INNER, INNER | {"@type": "S1", "x": 1.0}],
}
EVENTS: dict[str, Any] = {
    "T": WHOLE,
    "U": WHOLE | {"more": INNER},
    "Other": {"one": INNER, "t": WHOLE | {"@type": "U", "more": INNER}},
}


LOCAL = WHOLE | {"more": INNER, "own": INNER}


class Deciding(NamedTuple):
    """A rule as the evaluator sees it."""

    conversion: str
    is_below: bool
    """Declared below the interpretation that is augmented."""
    is_added: bool


Rules = Mapping[tuple[Said, ...], Any]


class Evaluator:
    """What a descendant must do after an augmentation: as before wherever a rule declared below
    the augmented interpretation decided, as inherited everywhere else.
    """

    def __init__(self, chain: tuple[Interpretation, ...], change: Augment, direction: str) -> None:
        self.judge = Judge(chain, FUNCTIONS)
        at = [each.name for each in chain].index(change.name)
        before: dict[tuple[Said, ...], Deciding] = {}
        natural: dict[tuple[Said, ...], Deciding] = {}
        for number, one in enumerate(chain):
            added = change.rules if number == at else ()
            for place, rule in enumerate((*one.rules, *added)):
                if rule.direction not in ("both", direction):
                    continue
                is_added = place >= len(one.rules)
                deciding = Deciding(rule.conversion, number > at, is_added)
                for rules in (natural,) if is_added else (before, natural):
                    pattern = self.judge.parse(rule.pattern)
                    rules.pop(pattern, None)
                    rules[pattern] = deciding
        self.before, self.natural = before, natural

    def expected(self, value: Any, trail: Trail) -> Any:
        conversion = self.decide(trail)
        if conversion.startswith("n"):
            return value * float(conversion[1:])
        if conversion.startswith("f"):
            return FUNCTIONS[conversion](value)
        here = trail[-1].types[-1]
        if here.startswith("["):
            return [self.declared(each, trail, here[1:-1]) for each in value]
        if not isinstance(value, dict):
            return value
        attributes = self.judge.attributes(here)
        return {
            name: self.declared(each, (*trail, Place(name, ())), attributes[name][0])
            if name in attributes
            else each
            for name, each in value.items()
        }

    def declared(self, value: Any, trail: Trail, declared: str) -> Any:
        actual = value.get("@type", declared) if isinstance(value, dict) else declared
        return self.expected(value, seen_as(trail, actual))

    def decide(self, trail: Trail) -> str:
        natural: Any = self.judge.choose(trail, self.natural)
        if natural is None:
            return EXPLORE
        if natural.is_added:
            old: Any = self.judge.choose(trail, self.before)
            if old is not None and old.is_below:
                return str(old.conversion)
            if (old is None or old.conversion == EXPLORE) and self.own_below(trail):
                return EXPLORE
        return str(natural.conversion)

    def own_below(self, trail: Trail) -> bool:
        """Before, a rule of its own decided somewhere below."""
        here = trail[-1].types[-1]
        if here.startswith("["):
            return any(self.own_at(seen_as(trail, each)) for each in self.judge.dynamic(here[1:-1]))
        return any(
            self.own_at(seen_as((*trail, Place(name, ())), each))
            for name, (declared, _) in self.judge.attributes(here).items()
            for each in self.judge.dynamic(declared)
        )

    def own_at(self, trail: Trail) -> bool:
        old: Any = self.judge.choose(trail, self.before)
        if old is None or old.conversion == EXPLORE:
            return (old is not None and old.is_below) or self.own_below(trail)
        return bool(old.is_below)


def seen_as(trail: Trail, actual: str) -> Trail:
    *before, last = trail
    return (*before, Place(last.attribute, (*last.types, actual)))


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    pattern, kind = draw(
        st.sampled_from([*((each, "f") for each in COMPLEX), *((each, "n") for each in NUMBERS)])
    )
    number = draw(st.sampled_from(FACTORS))
    return Rule(pattern, f"{kind}{number}", draw(st.sampled_from(("both", "in", "out"))))


@st.composite
def trees(draw: st.DrawFn) -> list[Interpretation]:
    """Root and up to five others on several levels; some declare a type of their own."""
    some = st.lists(rules(), max_size=3).map(tuple)
    root = Interpretation(
        name="root", parent="", types=TYPES, rules=draw(some), conversions=CONVERSIONS
    )
    found = [root]
    for number in range(draw(st.integers(1, 5))):
        parent = draw(st.sampled_from([*found, found[-1]])).name
        own = ComplexType(f"L{number}", (Attribute("own", "T1"),), (draw(st.sampled_from("TU")),))
        found.append(
            Interpretation(
                name=f"i{number}",
                parent=parent,
                types=(own,) if draw(st.booleans()) else (),
                rules=draw(some),
            )
        )
    return found


def check_augmented(
    old: InterpretationRegistry, new: InterpretationRegistry, change: Augment
) -> None:
    for name in old.descendants(change.name):
        for direction in DIRECTIONS:
            chain = old.chain(name)
            evaluator = Evaluator(chain, change, direction)
            local = {each.name: LOCAL for one in chain[1:] for each in one.types}
            for kind, event in (EVENTS | local).items():
                made = make_transformer(new, name, kind, direction, FUNCTIONS)
                wanted = evaluator.expected(event, (Place("", (kind,)),))
                assert made(event) == wanted, (name, direction, kind)


@settings(max_examples=examples(30), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_in_a_whole_tree_own_decisions_stand_and_the_rest_is_inherited(data: st.DataObject) -> None:
    held, _ = load_all(data.draw(trees()))
    for _time in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from([*held.names, "root"]))
        change = Augment(name, rules=tuple(data.draw(st.lists(rules(), min_size=1, max_size=3))))
        new, problems = apply_change(held, change)
        assert new is not held, problems
        check_augmented(held, new, change)
        held = new
