"""P1 to P6 of section 4.1.2, one by one, and its examples. [ME-3]"""

from rapport.mediation.conversion.conversions import Call, converts
from rapport.mediation.interpretation_checks import CheckedInterpretation
from rapport.mediation.interpretations.model import Interpretation, Rule
from rapport.mediation.plans import ConvertStep, EachStep, ObjectStep, Step, VariantsStep
from rapport.mediation.types import Attribute, ComplexType, Type

POSITION = ComplexType("Position", (Attribute("x", "number"), Attribute("y", "number")))
WITH_HEIGHT = ComplexType("PositionWithHeight", (Attribute("z", "number"),), ("Position",))
MONEY = ComplexType("Money", (Attribute("currency", "text"), Attribute("amount", "number")))
STATUS = ComplexType(
    "ProductStatusEvent",
    (
        Attribute("productId", "text"),
        Attribute("position", "Position"),
        Attribute("dynamicPrice", "Money"),
        Attribute("dynamicCost", "Money"),
    ),
)
DANGER = ComplexType("DangerCheck", (Attribute("pos", "Position"),))
FIGURE_4_2 = (POSITION, WITH_HEIGHT, MONEY, STATUS, DANGER)


def decisions(types: tuple[Type, ...], patterns: list[str], event: str) -> dict[str, str]:
    """Path (with the dynamic type where there are several) -> pattern of the rule that counts.

    Every conversion takes and gives anything, so only precedence is at work.
    """
    rules = tuple(Rule(pattern, f"f{n}") for n, pattern in enumerate(patterns))
    conversions = tuple(converts(f"f{n}", "json", "json", Call("f")) for n in range(len(patterns)))
    root = Interpretation(name="root", parent="", types=types, rules=rules, conversions=conversions)
    checked = CheckedInterpretation((root,))
    assert not [each for each in checked.scope.problems], checked.scope.problems
    found: dict[str, str] = {}
    _collect(checked.resolver("out").resolve(event), "", found)
    return found


def _collect(step: Step, dynamic: str, found: dict[str, str]) -> None:
    if isinstance(step, ConvertStep):
        found[step.path.partition(".")[2] + dynamic] = step.rule.partition(" ->")[0]
    elif isinstance(step, ObjectStep):
        for part in step.parts:
            _collect(part.step, "", found)
    elif isinstance(step, EachStep):
        _collect(step.step, "", found)
    elif isinstance(step, VariantsStep):
        for case in step.cases:
            mark = "" if case.type == step.declared else f"({case.type})"
            _collect(case.step, mark, found)


def nested(*names: str) -> tuple[Type, ...]:
    """T0 contains T1 as a1, which contains T2 as a2, and so on."""
    last = ComplexType(names[-1], (Attribute("v", "number"),))
    types = [last]
    for number in range(len(names) - 2, -1, -1):
        attribute = Attribute(f"a{number + 1}", names[number + 1])
        types.append(ComplexType(names[number], (attribute,)))
    return tuple(types)


# --- the prose before the list, on figure 4.2


def test_a_type_pattern_applies_at_any_nesting_level() -> None:
    types = (*FIGURE_4_2, ComplexType("Trip", (Attribute("status", "ProductStatusEvent"),)))
    assert decisions(types, ["Position"], "Trip") == {
        "status.position": "Position",
        "status.position(PositionWithHeight)": "Position",
    }


def test_the_last_type_of_a_pattern_matches_at_any_depth_below_the_first() -> None:
    types = nested("T0", "T1", "T2", "T3")
    assert decisions(types, ["T0.T3"], "T0") == {"a1.a2.a3": "T0.T3"}
    assert decisions(types, ["T0.T2.a3"], "T0") == {"a1.a2.a3": "T0.T2.a3"}


def test_only_the_last_type_of_a_pattern_matches_at_any_depth() -> None:
    types = (
        ComplexType("V", (Attribute("v", "number"),)),
        ComplexType("U", (Attribute("inner", "V"),)),
        ComplexType("Mid", (Attribute("u", "U"),)),
        ComplexType("T", (Attribute("near", "U"), Attribute("far", "Mid"))),
    )
    assert decisions(types, ["T.U.V"], "T") == {"near.inner": "T.U.V"}


def test_position_rules_of_danger_checks_are_an_exception_from_the_general_rule() -> None:
    patterns = ["Position", "DangerCheck.Position"]
    assert decisions(FIGURE_4_2, patterns, "DangerCheck")["pos"] == "DangerCheck.Position"
    assert decisions(FIGURE_4_2, patterns, "ProductStatusEvent")["position"] == "Position"


def test_dynamic_cost_of_figure_4_2_is_an_exception_from_the_rule_for_money() -> None:
    patterns = ["ProductStatusEvent.dynamicCost", "Money"]
    expected = {"dynamicPrice": "Money", "dynamicCost": "ProductStatusEvent.dynamicCost"}
    assert decisions(FIGURE_4_2, patterns, "ProductStatusEvent") == expected


def test_dynamic_cost_counts_more_than_the_type_inside_the_same_event() -> None:
    patterns = ["ProductStatusEvent.dynamicCost", "ProductStatusEvent.Money"]
    found = decisions(FIGURE_4_2, patterns, "ProductStatusEvent")
    assert found["dynamicCost"] == "ProductStatusEvent.dynamicCost"
    assert found["dynamicPrice"] == "ProductStatusEvent.Money"


def test_a_rule_for_position_with_height_applies_only_to_values_of_that_type() -> None:
    patterns = ["ProductStatusEvent.position(PositionWithHeight)", "ProductStatusEvent.position"]
    found = decisions(FIGURE_4_2, patterns, "ProductStatusEvent")
    assert found["position(PositionWithHeight)"] == patterns[0]
    assert found["position"] == patterns[1]


# --- the list


def test_p1_a_deeper_nesting_level_takes_precedence() -> None:
    types = nested("T0", "T1")
    for patterns in (["T0.T1", "T1"], ["T1", "T0.T1"]):
        assert decisions(types, patterns, "T0") == {"a1": "T0.T1"}


def test_p2_instances_take_precedence_over_types() -> None:
    types = nested("T0", "T1")
    for patterns in (["T0.a1(T1)", "T0.T1"], ["T0.T1", "T0.a1(T1)"]):
        assert decisions(types, patterns, "T0") == {"a1": "T0.a1(T1)"}


def derived() -> tuple[Type, ...]:
    """T1b is a strict subtype of T1; T0 declares a1 as T1."""
    return (
        ComplexType("T1", (Attribute("v", "number"),)),
        ComplexType("T1b", (Attribute("w", "number"),), ("T1",)),
        ComplexType("T0", (Attribute("a1", "T1"),)),
    )


def test_p3_the_most_derived_type_takes_precedence() -> None:
    for patterns in (["T0.a1(T1b)", "T0.a1(T1)"], ["T0.a1(T1)", "T0.a1(T1b)"]):
        found = decisions(derived(), patterns, "T0")
        assert found == {"a1": "T0.a1(T1)", "a1(T1b)": "T0.a1(T1b)"}


def two_supers(first: str, second: str) -> tuple[Type, ...]:
    return (
        ComplexType("Left"),
        ComplexType("FarLeft"),
        ComplexType("LeftBelow", (), ("FarLeft",)),
        ComplexType("Right"),
        ComplexType("T1", (), (first, second)),
        ComplexType("T0", (Attribute("a1", "T1"),)),
    )


def test_p4_equal_levels_are_decided_by_the_order_of_declaration() -> None:
    for patterns in (["T0.Left", "T0.Right"], ["T0.Right", "T0.Left"]):
        assert decisions(two_supers("Left", "Right"), patterns, "T0") == {"a1": "T0.Left"}
        assert decisions(two_supers("Right", "Left"), patterns, "T0") == {"a1": "T0.Right"}


def test_p4_where_levels_differ_p3_takes_over() -> None:
    for patterns in (["T0.FarLeft", "T0.Right"], ["T0.Right", "T0.FarLeft"]):
        assert decisions(two_supers("LeftBelow", "Right"), patterns, "T0") == {"a1": "T0.Right"}


def test_p4_a_derived_type_is_nearer_even_if_its_super_type_is_declared_directly_too() -> None:
    types = (
        ComplexType("B"),
        ComplexType("A", (), ("B",)),
        ComplexType("T1", (), ("B", "A")),
        ComplexType("T0", (Attribute("a1", "T1"),)),
    )
    assert decisions(types, ["T0.B", "T0.A"], "T0") == {"a1": "T0.A"}


def test_p5_an_instance_near_the_root_takes_precedence_over_a_deeper_nesting_level() -> None:
    types = nested("T0", "T1", "T2", "T3")
    for patterns in (["T0.a1(T1).T3", "T0.T1.T2.T3"], ["T0.T1.T2.T3", "T0.a1(T1).T3"]):
        assert decisions(types, patterns, "T0") == {"a1.a2.a3": "T0.a1(T1).T3"}


def test_p6_a_strict_subtype_takes_precedence_over_an_instance() -> None:
    for patterns in (["T0.T1b", "T0.a1(T1)"], ["T0.a1(T1)", "T0.T1b"]):
        found = decisions(derived(), patterns, "T0")
        assert found == {"a1(T1b)": "T0.T1b", "a1": "T0.a1(T1)"}


def test_p6_without_a_strict_subtype_the_instance_takes_precedence() -> None:
    types = two_supers("LeftBelow", "Right")
    patterns = ["T0.Right", "T0.a1(T1)"]
    assert decisions(types, patterns, "T0") == {"a1": "T0.a1(T1)"}


def test_p6_a_strict_subtype_near_the_root_takes_precedence_over_a_deeper_nesting_level() -> None:
    types = (
        ComplexType("T3"),
        ComplexType("T2", (Attribute("a3", "T3"),)),
        ComplexType("T1", (Attribute("a2", "T2"),)),
        ComplexType("T1b", (), ("T1",)),
        ComplexType("T0", (Attribute("a1", "T1"),)),
    )
    for patterns in (["T0.T1b.T3", "T0.T1.T2.T3"], ["T0.T1.T2.T3", "T0.T1b.T3"]):
        root = decisions(types, patterns, "T0")
        assert root["a1.a2.a3"] in patterns
    both = Interpretation(
        name="root",
        parent="",
        types=types,
        rules=(Rule("T0.T1.T2.T3", "deep"), Rule("T0.T1b.T3", "derived")),
        conversions=tuple(converts(n, "json", "json", Call("f")) for n in ("deep", "derived")),
    )
    step = CheckedInterpretation((both,)).resolver("out").resolve("T0")
    assert isinstance(step, ObjectStep)
    variants = step.parts[0].step
    assert isinstance(variants, VariantsStep)
    chosen = {case.type: _first_rule(case.step) for case in variants.cases}
    assert chosen == {"T1": "T0.T1.T2.T3 -> deep", "T1b": "T0.T1b.T3 -> derived"}


def _first_rule(step: Step) -> str:
    while isinstance(step, ObjectStep):
        step = step.parts[0].step
    assert isinstance(step, ConvertStep)
    return step.rule


def test_as_one_order_saying_something_at_the_root_counts_before_a_derived_type_below() -> None:
    found = decisions(derived(), ["T1b", "T0.T1"], "T0")
    assert found == {"a1": "T0.T1", "a1(T1b)": "T0.T1"}


def test_a_mixture_that_would_go_round_in_circles_is_decided_position_by_position() -> None:
    types = (
        ComplexType("A0"),
        ComplexType("A", (), ("A0",)),
        ComplexType("B"),
        ComplexType("T1", (), ("B", "A")),
        ComplexType("T0", (Attribute("a1", "A0"), Attribute("b", "T1"))),
    )
    # a1(A0) gives way to A (P6), and then B is declared before A (P4)
    patterns = ["T0.a1(A0)", "T0.A", "T0.B"]
    assert decisions(types, patterns, "T0")["a1(T1)"] == "T0.B"


def test_of_identical_patterns_the_last_applies_with_a_warning() -> None:
    root = Interpretation(
        name="root",
        parent="",
        types=nested("T0", "T1"),
        rules=(Rule("T0.a1", "first"), Rule("T0.a1(T1)", "second")),
        conversions=tuple(converts(n, "T1", "T1", Call("f")) for n in ("first", "second")),
    )
    checked = CheckedInterpretation((root,))
    assert _first_rule(checked.resolver("out").resolve("T0")) == "T0.a1(T1) -> second"
    found = [each for each in checked.problems if each.code == "rule.duplicate"]
    assert [each.severity for each in found] == ["warning"]
    assert "T0.a1 -> first and T0.a1(T1) -> second" in found[0].message


def test_exploration_stops_at_the_first_path_that_a_rule_matches() -> None:
    types = nested("T0", "T1", "T2", "T3")
    found = decisions(types, ["T0.a1.a2.a3", "T2", "T3"], "T0")
    assert found == {"a1.a2": "T2"}


def test_a_rule_for_the_event_itself_takes_the_whole_event() -> None:
    types = nested("T0", "T1")
    assert decisions(types, ["T0", "T0.T1"], "T0") == {"": "T0"}


def test_elements_of_lists_are_matched_by_their_type_and_the_list_by_its_own() -> None:
    types = (
        ComplexType("Line", (Attribute("price", "number"),)),
        ComplexType("Order", (Attribute("lines", "[Line]"),)),
    )
    assert decisions(types, ["Line"], "Order") == {"lines[]": "Line"}
    assert decisions(types, ["Order.lines(Line)"], "Order") == {"lines[]": "Order.lines(Line)"}
    assert decisions(types, ["Order.lines", "Line"], "Order") == {"lines": "Order.lines"}
    assert decisions(types, ["Order.[Line]", "Line"], "Order") == {"lines": "Order.[Line]"}
    assert decisions(types, ["Order.lines.price"], "Order") == {
        "lines[].price": "Order.lines.price"
    }
