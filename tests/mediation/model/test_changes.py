"""Changes at run time: augmenting, replacing, and what is refused. [ME-6]"""

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rapport.core.errors import InterpretationError
from rapport.mediation.codegen.transformer import make_transformer
from rapport.mediation.conversion.conversions import Call, Conversion, Formula, Rename, converts
from rapport.mediation.interpretations.model import (
    DIRECTIONS,
    EXPLORE,
    CreateAttribute,
    Interpretation,
    Rule,
    TypeMapping,
)
from rapport.mediation.interpretations.registry import InterpretationRegistry
from rapport.mediation.interpretations.type_changes import (
    Augment,
    Declare,
    Remove,
    ReplaceType,
    apply_change,
    load_all,
)
from rapport.mediation.patterns import PathPosition, shown_path
from rapport.mediation.types import Attribute, ComplexType

T1 = ComplexType("T1", (Attribute("v", "number"), Attribute("w", "number")))
T = ComplexType("T", (Attribute("one", "T1"), Attribute("two", "T1")))
OTHER = ComplexType("Other", (Attribute("one", "T1"), Attribute("t", "T")))


def times(name: str, factor: float) -> Conversion:
    return converts(name, "number", "number", Formula(factor))


def scale(name: str) -> Conversion:
    return converts(name, "T1", "T1", Call(name))


def scaled(factor: float) -> Any:
    return lambda value: {name: each * factor for name, each in value.items()}


FUNCTIONS = {f"f{n}": scaled(n) for n in range(20)}
ROOT = Interpretation(
    name="root",
    parent="",
    types=(T1, T, OTHER),
    conversions=(*(scale(f"f{n}") for n in range(20)), times("n2", 2.0), times("n3", 3.0)),
)
EVENT = {"one": {"v": 1, "w": 1}, "two": {"v": 1, "w": 1}}


def family(*children: Interpretation, root: Interpretation = ROOT) -> InterpretationRegistry:
    held, found = load_all([root, *children])
    errors = [p for _, each in found.values() for p in each if p.severity == "error"]
    assert not errors, errors
    return held


def run(
    held: InterpretationRegistry, name: str, event: Any, kind: str = "T", direction: Any = "out"
) -> Any:
    return make_transformer(held, name, kind, direction, FUNCTIONS)(event)


def changed(held: InterpretationRegistry, change: Any) -> InterpretationRegistry:
    new, problems = apply_change(held, change)
    assert new is not held, problems
    return new


def test_4_2_2_the_injected_rule_keeps_the_behaviour_of_a_child_with_a_conflicting_rule() -> None:
    held = family(
        Interpretation(name="with", rules=(Rule("T1", "f1"),)), Interpretation(name="without")
    )
    new = changed(held, Augment("root", rules=(Rule("T.T1", "f10"),)))
    injected = {
        (each.pattern, each.conversion, each.direction)
        for each in new.named("with").rules
        if each.injected
    }
    assert injected == {("T.*T1", "f1", "in"), ("T.*T1", "f1", "out")}
    assert run(new, "with", EVENT) == run(held, "with", EVENT)
    assert run(new, "without", EVENT)["one"] == {"v": 10, "w": 10}


def test_4_2_2_where_paths_disagree_each_keeps_its_conversion() -> None:
    child = Interpretation(name="child", rules=(Rule("T.one", "f3"),))
    held = family(child)
    new = changed(held, Augment("root", rules=(Rule("Other.T1", "f7"), Rule("T1", "f5"))))
    event = {"one": EVENT["one"], "t": EVENT}
    assert run(new, "child", EVENT) == {"one": {"v": 3, "w": 3}, "two": {"v": 5, "w": 5}}
    found = run(new, "child", event, "Other")
    assert found["t"]["one"] == {"v": 3, "w": 3}, "its own rule decided there before"
    assert found["t"]["two"] == {"v": 7, "w": 7}, "nothing of its own did"
    assert found["one"] == {"v": 7, "w": 7}


def test_4_2_2_a_new_rule_above_a_childs_own_rule_does_not_stop_it() -> None:
    held = family(Interpretation(name="child", rules=(Rule("T1.v", "n3"),)))
    new = changed(held, Augment("root", rules=(Rule("T1", "f10"),)))
    assert run(new, "child", EVENT)["one"] == {"v": 3, "w": 1}
    assert EXPLORE in [each.conversion for each in new.named("child").rules]


def test_4_2_2_grandchildren_are_kept_too() -> None:
    middle = Interpretation(name="middle", rules=(Rule("T1", "f2"),))
    held = family(middle, Interpretation(name="leaf", parent="middle"))
    new = changed(held, Augment("root", rules=(Rule("T.T1", "f10"),)))
    assert run(new, "leaf", EVENT)["one"] == {"v": 2, "w": 2}
    between = changed(new, Augment("middle", rules=(Rule("T.one", "f4"),)))
    assert run(between, "leaf", EVENT)["one"] == {"v": 4, "w": 4}
    assert run(between, "leaf", EVENT)["two"] == {"v": 2, "w": 2}


def test_a_new_mapping_of_a_subtype_does_not_take_it_from_a_childs_own_mapping() -> None:
    sub = ComplexType("Sub", (), ("T",))
    local = ComplexType("Local", (*T.attributes, Attribute("mark", "text")))

    def marked(source: str, mark: str) -> TypeMapping:
        return TypeMapping(source, "Local", "out", (CreateAttribute("mark", "text", mark),))

    root = msgspec.structs.replace(ROOT, types=(*ROOT.types, sub, local))
    held = family(
        Interpretation(name="own", mappings=(marked("T", "own"),)),
        Interpretation(name="below", parent="own", mappings=(marked("T", "below"),)),
        Interpretation(name="heir", parent="own"),
        Interpretation(name="none"),
        root=root,
    )
    new = changed(held, Augment("root", mappings=(marked("Sub", "new"),)))
    for name, mark in (("own", "own"), ("below", "below"), ("heir", "own"), ("none", "new")):
        assert run(new, name, EVENT, "Sub")["mark"] == mark, name


def test_a_new_conversion_named_like_that_of_a_child_changes_nothing_there() -> None:
    mine = converts("mine", "T1", "T1", Call("f3"))
    child = Interpretation(name="child", rules=(Rule("T1", "mine"),), conversions=(mine,))
    held = family(child)
    other = converts("mine", "T", "T", Call("f9"))
    new = changed(held, Augment("root", conversions=(other,)))
    assert run(new, "child", EVENT)["one"] == {"v": 3, "w": 3}


def test_root_may_start_empty_and_grow() -> None:
    held, problems = apply_change(
        InterpretationRegistry(), Augment("root", ROOT.types, (), (), ROOT.conversions)
    )
    assert not problems
    new = changed(held, Declare(Interpretation(name="late", rules=(Rule("T1", "f2"),))))
    assert run(new, "late", EVENT)["one"] == {"v": 2, "w": 2}


def test_an_augmentation_that_a_child_cannot_bear_leaves_the_old_in_force() -> None:
    local = ComplexType("Local", (Attribute("one", "T1"), Attribute("two", "T1")))
    child = Interpretation(
        name="child", types=(local,), mappings=(TypeMapping("T", "Local", "out"),)
    )
    held = family(child)
    flat = ComplexType("Flat", (Attribute("v", "number"),))
    change = Augment(
        "root",
        types=(flat,),
        rules=(Rule("T1", "flatten"),),
        conversions=(converts("flatten", "T1", "Flat", Call("f1")),),
    )
    new, problems = apply_change(held, change)
    assert new is held
    assert [each.message for each in problems if each.severity == "error"] == [
        "child: rule T1 -> flatten at T.one: expected T1, found Flat",
        "child: rule T1 -> flatten at T.two: expected T1, found Flat",
    ]


@st.composite
def rule_texts(draw: st.DrawFn) -> Rule:
    pattern, conversion = draw(
        st.sampled_from(
            [
                *(("T1", "f"), ("T.T1", "f"), ("T.one", "f"), ("Other.T1", "f")),
                *(("Other.t.one", "f"), ("Other.T.two", "f"), ("T1.v", "n"), ("number", "n")),
                *(("Other.number", "n"), ("Other.T.T1.v", "n"), ("T.two.w", "n")),
                ("Other.one", "f"),
            ]
        )
    )
    number = draw(st.integers(2, 19)) if conversion == "f" else draw(st.integers(2, 3))
    return Rule(pattern, f"{conversion}{number}", draw(st.sampled_from(("both", "in", "out"))))


@pytest.mark.slow
@given(
    st.lists(rule_texts(), max_size=2),
    st.lists(rule_texts(), max_size=3),
    st.lists(rule_texts(), min_size=1, max_size=2),
)
@settings(derandomize=True, suppress_health_check=list(HealthCheck))
def test_after_any_augmentation_a_childs_own_decisions_stand_and_the_rest_is_inherited(
    above: list[Rule], own: list[Rule], added: list[Rule]
) -> None:
    """Judged per leaf by factors: what a path did by a rule of the child's own, it does still."""
    root = Interpretation(
        name="root",
        parent="",
        types=ROOT.types,
        rules=tuple(above),
        conversions=ROOT.conversions,
    )
    child = Interpretation(name="child", rules=tuple(own))
    held, _ = load_all([root, child])
    new, problems = apply_change(held, Augment("root", rules=tuple(added)))
    assert new is not held, problems
    natural, _ = load_all(
        [
            Interpretation(
                name="root",
                parent="",
                types=ROOT.types,
                rules=(*above, *added),
                conversions=ROOT.conversions,
            ),
            child,
        ]
    )
    event = {
        "one": {"v": 1.0, "w": 1.0},
        "t": {"one": {"v": 1.0, "w": 1.0}, "two": {"v": 1.0, "w": 1.0}},
    }
    for direction in DIRECTIONS:
        owners = _own_leaves(held, direction)
        before, after = (
            _leaves(run(each, "child", event, "Other", direction)) for each in (held, new)
        )
        plain = _leaves(run(natural, "child", event, "Other", direction))
        for leaf, value in after.items():
            beside = leaf.rpartition(".")[0]
            if leaf in owners:
                assert value == before[leaf], leaf
            elif not any(own.startswith(beside) for own in owners):
                assert value == plain[leaf], leaf


def _leaves(value: Any, path: str = "Other") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {path: value}
    return {
        k: v for name, each in value.items() for k, v in _leaves(each, f"{path}.{name}").items()
    }


def _own_leaves(held: InterpretationRegistry, direction: Any) -> set[str]:
    """Leaves that a rule of the child decided."""
    found = set()
    leaves = [
        "Other.one.v",
        "Other.one.w",
        "Other.t.one.v",
        "Other.t.one.w",
        "Other.t.two.v",
        "Other.t.two.w",
    ]
    for path, rule in (
        held.checked("child")
        .resolver(direction)
        .transforming_paths_below((PathPosition("", ("Other",)),))
    ):
        text = shown_path(path)
        if rule.owner == "child":
            found |= {leaf for leaf in leaves if f"{leaf}.".startswith(f"{text}.")}
    return found


# --- replacing a type (4.2.3)

ADDRESS = ComplexType("Address", (Attribute("street", "text"),))
ADDRESS2 = ComplexType(
    "Address2", (Attribute("street", "text"), Attribute("country", "text", True))
)
ORDER = ComplexType("Order", (Attribute("to", "Address"), Attribute("stops", "[Address]")))
LOCAL_ADDRESS = ComplexType("LocalAddress", (Attribute("line", "text"),))
LOCAL = ComplexType(
    "LocalOrder", (Attribute("to", "LocalAddress"), Attribute("stops", "[LocalAddress]"))
)
FORTH = converts("forth", "Address", "Address2", Call("forth"))
BACK = converts("back", "Address2", "Address", Call("back"))
ADDRESS_FUNCTIONS = {
    "forth": lambda value: {**value, "country": None},
    "back": lambda value: {"street": value["street"]},
    "localise": lambda value: {"line": value["street"].upper()},
    "globalise": lambda value: {"street": value["line"].lower()},
    "shout": lambda value: {"street": value["street"] + "!"},
}
REPLACE = ReplaceType("Address", ADDRESS2, FORTH, BACK)


def orders(*more: Interpretation, rules: tuple[Rule, ...] = ()) -> InterpretationRegistry:
    root = Interpretation(
        name="root",
        parent="",
        types=(ADDRESS, ORDER),
        rules=rules,
        conversions=(converts("shout", "Address", "Address", Call("shout")),),
    )
    local = Interpretation(
        name="local",
        types=(LOCAL_ADDRESS, LOCAL),
        mappings=(
            TypeMapping("Order", "LocalOrder", "out"),
            TypeMapping("LocalOrder", "Order", "in"),
        ),
        rules=(Rule("Address", "localise"), Rule("LocalAddress", "globalise")),
        conversions=(
            converts("localise", "Address", "LocalAddress", Call("localise")),
            converts("globalise", "LocalAddress", "Address", Call("globalise")),
        ),
    )
    plain = Interpretation(name="plain")
    return family(local, plain, *more, root=root)


def send(held: InterpretationRegistry, name: str, kind: str, direction: Any, event: Any) -> Any:
    return make_transformer(held, name, kind, direction, ADDRESS_FUNCTIONS)(event)


NEW_ORDER = {
    "to": {"street": "a", "country": "de"},
    "stops": [{"street": "b", "country": "fr"}],
}


def test_4_2_3_both_functions_are_chained_for_interpretations_of_the_old_type() -> None:
    held = changed(orders(), REPLACE)
    assert send(held, "local", "Order", "out", NEW_ORDER) == {
        "to": {"line": "A"},
        "stops": [{"line": "B"}],
    }
    assert send(held, "local", "LocalOrder", "in", {"to": {"line": "A"}, "stops": []}) == {
        "to": {"street": "a", "country": None},
        "stops": [],
    }


def test_4_2_3_an_interpretation_without_a_rule_for_it_keeps_the_old_type() -> None:
    held = changed(orders(), REPLACE)
    old = {"to": {"street": "a"}, "stops": [{"street": "b"}]}
    assert send(held, "plain", "Order", "out", NEW_ORDER) == old
    assert send(held, "plain", "Order", "in", old)["stops"] == [{"street": "b", "country": None}]


def test_4_2_3_an_event_of_the_replaced_type_itself_changes_its_type() -> None:
    held = changed(orders(), REPLACE)
    plan = held.plan("plain", "Address2", "out")
    assert (plan.type, plan.result_type) == ("Address2", "Address")
    assert held.plan("plain", "Address", "in").result_type == "Address2"


@pytest.mark.parametrize("how", ["rename", "functions"])
def test_4_2_3_both_ways_give_exactly_the_declared_type(how: str) -> None:
    base = ComplexType("Base")
    address = ComplexType("Address", (Attribute("street", "text"),), ("Base",))
    newer = ComplexType("Address2", (*ADDRESS2.attributes,), ("Base",))
    order = ComplexType("Order", (Attribute("to", "Base"), Attribute("home", "Address")))
    root = Interpretation(name="root", parent="", types=(base, address, order))
    ways = (Rename(()), Rename(())) if how == "rename" else (Call("copy"), Call("copy"))
    forth = converts("forth", "Address", "Address2", ways[0])
    back = converts("back", "Address2", "Address", ways[1])
    held = changed(
        family(Interpretation(name="plain"), root=root),
        ReplaceType("Address", newer, forth, back),
    )

    def pass_on(kind: str, direction: Any, event: Any) -> Any:
        return make_transformer(held, "plain", kind, direction, {"copy": dict})(event)

    new = {"street": "a", "country": "de", "strange": 1}
    event = {"to": new | {"@type": "Address2"}, "home": new}
    old = {"to": {"street": "a", "@type": "Address"}, "home": {"street": "a"}}
    assert pass_on("Order", "out", event) == old
    assert pass_on("Order", "in", old) == {
        "to": {"street": "a", "@type": "Address2"},
        "home": {"street": "a"},
    }
    assert pass_on("Address2", "out", new | {"@type": "Address2"}) == {"street": "a"}
    assert pass_on("Address", "in", {"street": "a", "@type": "Address", "b": 1}) == {"street": "a"}


def test_4_2_3_a_later_interpretation_uses_the_new_type() -> None:
    held = changed(changed(orders(), REPLACE), Declare(Interpretation(name="late")))
    assert send(held, "late", "Order", "out", NEW_ORDER) == NEW_ORDER
    held = changed(held, Declare(Interpretation(name="plain")))
    assert send(held, "plain", "Order", "out", NEW_ORDER) == NEW_ORDER, "updated later"


def test_4_2_3_rules_of_root_go_on_with_chained_conversions() -> None:
    rules = (Rule("Address", "shout"),)
    held = orders(rules=rules)
    new = changed(changed(held, REPLACE), Declare(Interpretation(name="late")))
    found = send(new, "late", "Order", "out", NEW_ORDER)
    assert found["to"] == {"street": "a!", "country": None}, "back, shout, forth"
    assert send(new, "plain", "Order", "out", NEW_ORDER)["to"] == {"street": "a!"}


def test_4_2_3_two_replacements_one_after_the_other() -> None:
    third = ComplexType("Address3", (*ADDRESS2.attributes, Attribute("floor", "integer", True)))
    again = ReplaceType(
        "Address2",
        third,
        converts("forth", "Address2", "Address3", Call("up")),
        converts("back", "Address3", "Address2", Call("down")),
    )
    held = changed(changed(orders(), REPLACE), again)
    functions = {
        **ADDRESS_FUNCTIONS,
        "up": lambda value: {**value, "floor": 1},
        "down": lambda value: {k: v for k, v in value.items() if k != "floor"},
    }
    made = make_transformer(held, "plain", "Order", "in", functions)
    assert made({"to": {"street": "a"}, "stops": []})["to"] == {
        "street": "a",
        "country": None,
        "floor": 1,
    }
    assert [len(held.plan("plain", "Order", direction).stages) for direction in DIRECTIONS] == [
        3,
        3,
    ]


def test_4_2_3_root_is_augmented_for_those_before_and_after() -> None:
    held = changed(changed(orders(), REPLACE), Declare(Interpretation(name="late")))
    shout2 = converts("shout2", "Address2", "Address2", Call("shout2"))
    visit = ComplexType("Visit", (Attribute("at", "Address2"),))
    change = Augment(
        "root", types=(visit,), rules=(Rule("Visit.Address2", "shout2"),), conversions=(shout2,)
    )
    new = changed(held, change)
    functions = {**ADDRESS_FUNCTIONS, "shout2": lambda v: {**v, "street": v["street"] + "?"}}
    event = {"at": {"street": "a", "country": "de"}}
    for name, expected in (
        ("late", {"street": "a?", "country": "de"}),
        ("plain", {"street": "a?"}),
    ):
        made = make_transformer(new, name, "Visit", "out", functions)
        assert made(event) == {"at": expected}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            ReplaceType("Nobody", ADDRESS2, FORTH, BACK),
            "the canonical model has no complex type 'Nobody'",
        ),
        (
            ReplaceType("Address", ComplexType("Address2"), FORTH, BACK),
            "Address2 lacks attribute 'street' of Address",
        ),
        (ReplaceType("Address", ADDRESS2, BACK, BACK), "forth is (Address2) -> Address"),
        (ReplaceType("Address", ADDRESS2, FORTH, FORTH), "back is (Address) -> Address2"),
        (ReplaceType("Order", ORDER, FORTH, BACK), "'Order' is not a new name"),
    ],
)
def test_4_2_3_a_replacement_that_does_not_fit_leaves_the_old_in_force(
    change: ReplaceType, why: str
) -> None:
    held = orders()
    new, problems = apply_change(held, change)
    assert new is held
    assert any(why in each.message for each in problems), problems


# --- many at once, and bad ones among them


def test_a_faulty_interpretation_refuses_itself_and_those_below_it_only() -> None:
    faulty = Interpretation(name="faulty", rules=(Rule("T9", "f1"), Rule("T1", "g1")))
    held, found = load_all(
        [Interpretation(name="below", parent="faulty"), faulty, Interpretation(name="good"), ROOT]
    )
    assert "good" in held
    assert "faulty" not in held
    codes = {name: [each.code for each in problems] for name, (_, problems) in found.items()}
    assert codes["faulty"][:2] == ["pattern.invalid", "rule.unknown_conversion"]
    assert codes["below"] == ["interpretation.unknown_parent"]


def test_parents_that_go_round_in_circles_are_refused() -> None:
    held, found = load_all(
        [Interpretation(name="a", parent="b"), Interpretation(name="b", parent="a"), ROOT]
    )
    assert held.names == ("root",)
    assert {each.code for _, problems in found.values() for each in problems} == {
        "interpretation.parent_cycle"
    }
    held = family(Interpretation(name="a"), Interpretation(name="b", parent="a"))
    new, problems = apply_change(held, Declare(Interpretation(name="a", parent="b")))
    assert new is held
    assert problems[0].code == "interpretation.parent_cycle"


def test_an_interpretation_in_use_is_not_removed() -> None:
    held = family(Interpretation(name="a"), Interpretation(name="b", parent="a"))
    assert apply_change(held, Remove("a"))[1][0].code == "interpretation.in_use"
    assert "b" not in changed(held, Remove("b"))


def test_a_redeclared_parent_that_breaks_a_child_is_refused() -> None:
    parent = Interpretation(name="a", conversions=(scale("own"),))
    held = family(parent, Interpretation(name="b", parent="a", rules=(Rule("T1", "own"),)))
    new, problems = apply_change(held, Declare(Interpretation(name="a")))
    assert new is held
    assert problems[0].message.startswith("b: rule T1 -> own: there is no conversion")


def test_a_plan_for_a_type_that_cannot_be_passed_raises() -> None:
    flat = ComplexType("Flat", (Attribute("v", "number"),))
    child = Interpretation(
        name="child",
        types=(flat,),
        rules=(Rule("T1", "flatten"),),
        conversions=(converts("flatten", "T1", "Flat", Call("f1")),),
    )
    held = family(child)
    hints = [each for each in held.checked("child").problems if each.code == "mapping.missing"]
    assert any("Other has no mapping (out) and cannot be passed" in h.message for h in hints)
    with pytest.raises(InterpretationError, match="T has no mapping"):
        held.plan("child", "T", "out")
