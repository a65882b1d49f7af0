"""Types and their faults. [ME-1]"""

from rapport.mediation.types import Attribute, ComplexType, PrimitiveType, Types, check_types


def codes(*types: ComplexType | PrimitiveType) -> list[str]:
    return [problem.code for problem in check_types(types)]


def test_attributes_are_those_of_all_super_types_then_the_own() -> None:
    types = Types(
        (
            ComplexType("A", (Attribute("a", "text"),)),
            ComplexType("B", (Attribute("b", "text"),)),
            ComplexType("C", (Attribute("c", "[A]"),), ("B", "A")),
        )
    )
    assert list(types.attributes("C")) == ["b", "a", "c"]
    assert types.is_subtype("[C]", "[A]")
    assert not types.is_subtype("[C]", "A")
    assert types.subtypes("A") == ("A", "C")


def test_an_integer_is_a_number_and_a_unit_is_no_other_unit() -> None:
    types = Types((PrimitiveType("Celsius", "number"), PrimitiveType("Fahrenheit", "number")))
    assert types.is_subtype("integer", "number")
    assert not types.is_subtype("Celsius", "Fahrenheit")


def test_unknown_types_are_named_with_the_nearest_known_one() -> None:
    found = check_types(
        (ComplexType("A", (Attribute("a", "[Position2]"),)), ComplexType("Position"))
    )
    assert [(each.code, each.hint) for each in found] == [
        ("type.unknown", "did you mean 'Position'?")
    ]


def test_all_faults_of_names_are_listed_at_once() -> None:
    found = codes(
        ComplexType("a[b"),
        ComplexType("A"),
        ComplexType("A"),
        ComplexType("B", (Attribute("x", "[A"),), ("Nobody",)),
        ComplexType("C", (Attribute("@type", "text"),), ("number",)),
    )
    assert sorted(found) == [
        "type.bad_name",
        "type.bad_name",
        "type.bad_reference",
        "type.bad_super_type",
        "type.duplicate",
        "type.unknown",
    ]


def test_types_that_extend_themselves_are_refused() -> None:
    assert codes(ComplexType("A", (), ("B",)), ComplexType("B", (), ("A",))) == ["type.cycle"]


def test_types_that_contain_themselves_are_refused_also_through_a_subtype() -> None:
    assert codes(ComplexType("A", (Attribute("a", "[A]"),))) == ["type.recursive"]
    group = ComplexType("Group", (Attribute("members", "[Member]"),), ("Member",))
    assert codes(ComplexType("Member"), group) == ["type.recursive"]


def test_an_attribute_inherited_with_two_types_must_be_redeclared() -> None:
    left = ComplexType("Left", (Attribute("a", "number"),))
    right = ComplexType("Right", (Attribute("a", "text"),))
    narrow = ComplexType("Narrow", (Attribute("a", "integer"),))
    assert codes(left, right, ComplexType("C", (), ("Left", "Right"))) == [
        "type.ambiguous_attribute"
    ]
    assert codes(left, narrow, ComplexType("C", (), ("Left", "Narrow"))) == [
        "type.ambiguous_attribute"
    ]
    again = ComplexType("C", (Attribute("a", "integer"),), ("Left", "Narrow"))
    assert codes(left, narrow, again) == []


def test_an_attribute_declared_again_may_only_be_narrower() -> None:
    left = ComplexType("Left", (Attribute("a", "integer"),))
    assert codes(left, ComplexType("C", (Attribute("a", "number"),), ("Left",))) == [
        "type.wrong_override"
    ]


def test_a_diamond_is_no_ambiguity() -> None:
    top = ComplexType("Top", (Attribute("a", "number"),))
    sides = (ComplexType("Left", (), ("Top",)), ComplexType("Right", (), ("Top",)))
    assert codes(top, *sides, ComplexType("Bottom", (), ("Left", "Right"))) == []


def test_types_nested_or_derived_too_deep_are_refused_without_a_crash() -> None:
    nested = [ComplexType("L0")]
    derived = [ComplexType("D0")]
    for level in range(1, 3000):
        nested.append(ComplexType(f"L{level}", (Attribute("a", f"[L{level - 1}]"),)))
        derived.append(ComplexType(f"D{level}", (), (f"D{level - 1}",)))
    assert codes(*nested) == ["type.too_deep"]
    assert codes(*derived) == ["type.too_deep"]
