"""Generated transformers do what a direct reading of the rules does. [ME-8]"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rapport.mediation.codegen import transformer as generator
from rapport.mediation.codegen.json_fast_path import EventFunction, compile_event_path
from rapport.mediation.codegen.transformer import MAX_FUNCTION_LINES, Transformer, make_transformer
from rapport.mediation.conversion.conversions import (
    Call,
    Chain,
    Conversion,
    Enumeration,
    Formula,
    How,
    Identity,
    Lookup,
    UnitChange,
    converts,
)
from rapport.mediation.conversion.lookups import ConversionEnvironment, TableLookup
from rapport.mediation.conversion.notations import ParseNumber, WriteNumber
from rapport.mediation.interpretations.model import (
    DIRECTIONS,
    CreateAttribute,
    DropAttribute,
    Interpretation,
    RenameAttribute,
    Rule,
    TypeMapping,
)
from rapport.mediation.interpretations.type_changes import load_all
from rapport.mediation.plans import Plan
from rapport.mediation.rejections import RejectedValue
from rapport.mediation.types import Attribute, ComplexType, PrimitiveType, Type
from support.examples import examples
from support.judge.mediation import Judge
from support.judge.mediation_conversions import World

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("RAPPORT_MEDIATION_EXAMPLES", examples(300)))
NAMES = ("a", "b", "c")
PRIMITIVES: tuple[Type, ...] = (
    PrimitiveType("Metre", "number", ("number",)),
    PrimitiveType("Tall", "number", ("Metre",)),
)
SCALARS = ("text", "number", "Metre", "Tall", "boolean")
NUMBERS = ("Feet", "Metres")


def marker(number: int) -> Any:
    """A conversion of objects that shows which rule was chosen."""
    return lambda value: {**value, "marked": (number, value.get("marked"))}


def refuse(value: dict[str, Any]) -> dict[str, Any]:
    if "a" in value:
        raise ValueError("has an a")
    return value


def turner(number: int) -> Any:
    return lambda value: value[::-1] * (number % 3 + 1)


FUNCTIONS = {
    "refuse": refuse,
    **{f"mark{number}": marker(number) for number in range(30)},
    **{f"turn{number}": turner(number) for number in range(30)},
}


@st.composite
def type_systems(draw: st.DrawFn) -> tuple[Type, ...]:
    """Types in layers: each contains and extends only earlier ones, so nothing is recursive."""
    types: list[Type] = list(PRIMITIVES)
    complex_types: list[ComplexType] = []
    layers: dict[str, int] = {}
    for number in range(draw(st.integers(2, 6))):
        above = draw(
            st.lists(st.sampled_from(complex_types), max_size=2, unique_by=_name)
            if complex_types
            else st.just([])
        )
        above = [each for each in above if layers[each.name] == layers[above[0].name]]
        taken = {name for each in above for name in _all_names(each, complex_types)}
        if len(taken) < sum(len(_all_names(each, complex_types)) for each in above):
            above = above[:1]
            taken = _all_names(above[0], complex_types)
        layer = max((layers[each.name] for each in above), default=draw(st.integers(0, 2)))
        inner = [each.name for each in complex_types if layers[each.name] < layer]
        attributes = []
        for name in draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=3)):
            if name in taken:
                continue
            kind = draw(st.sampled_from((*SCALARS, *inner, *inner)))
            kind = draw(st.sampled_from((kind, kind, f"[{kind}]", f"[[{kind}]]")))
            attributes.append(Attribute(name, kind, draw(st.booleans())))
        made = ComplexType(f"T{number}", tuple(attributes), tuple(each.name for each in above))
        complex_types.append(made)
        layers[made.name] = layer
        types.append(made)
    return tuple(types)


@st.composite
def diamonds(draw: st.DrawFn) -> tuple[Type, ...]:
    """Types with several ways up, contained in one that is contained in another."""
    side = draw(st.permutations(("A", "B")))
    deep = draw(st.permutations(("C", "A0")))
    return (
        *PRIMITIVES,
        ComplexType("A0", (Attribute("a", "number"),)),
        ComplexType("A", (), ("A0",)),
        ComplexType("B"),
        ComplexType("C", (), tuple(side)),
        ComplexType("D", (Attribute("b", "text", optional=True),), tuple(deep)),
        ComplexType("In", (Attribute("a", "A0"), Attribute("b", draw(st.sampled_from("BCD"))))),
        ComplexType("Inner", (), ("In",)),
        ComplexType("Out", (Attribute("a", "[D]"), Attribute("c", "In"))),
    )


@st.composite
def diamond_patterns(draw: st.DrawFn) -> tuple[str, str]:
    """Many that meet in the same places."""
    at_end = draw(st.sampled_from(("A0", "A", "B", "C", "D")))
    named = draw(st.sampled_from(("A0", "A", "C", "D")))
    middle = draw(st.sampled_from(("*In", "c", "c(Inner)", "*Inner")))
    end, kind = draw(st.sampled_from(((f"*{at_end}", at_end), (f"a({named})", named), ("a", "A0"))))
    form = draw(st.integers(0, 3))
    if form == 0:
        return at_end, at_end
    if form == 1 and end != "a" and named == "D":
        return f"Out.{end}", kind
    if form == 2:
        return f"{draw(st.sampled_from(('In', 'Inner')))}.{end}", kind
    return f"Out.{middle}.{end}", kind


def _name(each: ComplexType) -> str:
    return each.name


def _all_names(each: ComplexType, known: list[ComplexType]) -> set[str]:
    found = {attribute.name for attribute in each.attributes}
    for above in each.super_types:
        found |= _all_names(next(one for one in known if one.name == above), known)
    return found


@st.composite
def patterns(draw: st.DrawFn, types: tuple[Type, ...]) -> tuple[str, str]:
    """A pattern along some path, and the type at its end."""
    table = {each.name: each for each in types if isinstance(each, ComplexType)}

    def attributes(name: str) -> dict[str, Attribute]:
        found: dict[str, Attribute] = {}
        if name in table:
            for above in table[name].super_types:
                found |= attributes(above)
            found |= {each.name: each for each in table[name].attributes}
        return found

    here = draw(st.sampled_from(tuple(table)))
    text = here
    for _ in range(draw(st.integers(0, 3))):
        below = attributes(here.strip("[]"))
        if not below:
            break
        attribute = below[draw(st.sampled_from(sorted(below)))]
        end = attribute.type
        while end.startswith("[") and draw(st.booleans()):
            end = end[1:-1]
        subs = [each for each in table if _extends(each, end, table)]
        form = draw(st.sampled_from(("name", "typed", "type", "type")))
        if form == "name":
            text, here = f"{text}.{attribute.name}", attribute.type
        else:
            here = draw(st.sampled_from((end, *subs)))
            text += f".{attribute.name}({here})" if form == "typed" else f".*{here}"
    if draw(st.integers(0, 4)) == 0:
        here = text = draw(st.sampled_from((*SCALARS, *table)))
    return text, here


def _extends(one: str, other: str, table: dict[str, ComplexType]) -> bool:
    return one == other or any(_extends(up, other, table) for up in table[one].super_types)


def conversion_for(kind: str, number: int, choice: int) -> Conversion:
    """Keeps the type, so that any rule may stand anywhere."""
    name = f"{kind.strip('[]')}-{kind.count('[')}-{number}-{choice}"
    if choice == 0:
        return converts(name, kind, kind, Identity())
    if kind.startswith("["):
        return converts(name, kind, kind, Call(f"turn{number}"))
    if kind in ("number", "Metre", "Tall"):
        step = converts(name, kind, kind, Formula(2.0, float(number), 3.0))
        if choice == 1:
            return converts(name, kind, kind, Chain((step, step)))
        return step
    if kind == "text":
        return converts(name, kind, kind, text_conversion(name, number, choice))
    if kind == "boolean":
        return converts(name, kind, kind, Lookup(((True, False), (False, True))))
    return converts(name, kind, kind, Call("refuse" if choice == 1 else f"mark{number}"))


def text_conversion(name: str, number: int, choice: int) -> How:
    """Kinds that read and write texts, or look them up."""
    if choice == 1:
        read = converts(f"{name} read", "text", "number", ParseNumber("comma"))
        written = converts(f"{name} written", "number", "text", WriteNumber(digits=number % 4))
        return Chain((read, written))
    if choice == 2:
        return Enumeration((("x", f"x{number}"), ("y", "y"), ("x", "twice")), "other")
    if choice == 3:
        return TableLookup("words", ("meaning",), otherwise=(f"word {number}",))
    return Lookup((("x", f"x{number}"), ("y", "y")), "other")


class Words:
    """A table of one row."""

    revision = 0

    def lookup(self, table: str, key: str, column: str) -> str | None:
        return "ex" if key == "x" else None

    def rows(self, table: str, columns: Any) -> list[tuple[str, ...]]:
        return []


WORLD = World({"words": ("word", [{"word": "x", "meaning": "ex"}])})


@st.composite
def families(draw: st.DrawFn) -> list[Interpretation]:
    """Root and two or three generations below it, each with rules of its own."""
    diamond = draw(st.booleans())
    types = draw(diamonds() if diamond else type_systems())
    texts = diamond_patterns() if diamond else patterns(types)
    found = []
    parent = ""
    for number, name in enumerate(("root", "europe", "german")[: draw(st.integers(2, 3))]):
        rules, conversions = [], []
        for index in range(draw(st.integers(0, 6))):
            text, end = draw(texts)
            conversion = conversion_for(end, 10 * number + index, draw(st.integers(0, 4)))
            conversions.append(conversion)
            direction = draw(st.sampled_from(("both", "both", "in", "out")))
            rules.append(Rule(text, conversion.name, direction))
        found.append(
            Interpretation(
                name=name,
                parent=parent,
                types=types if not parent else (),
                rules=tuple(rules),
                conversions=tuple(conversions),
            )
        )
        parent = name
    return found


def values_of(draw: st.DrawFn, reference: str, judge: Judge, *, faulty: bool) -> Any:
    """A value of a type; sometimes not quite."""
    if faulty and draw(st.integers(0, 30)) == 0:
        return draw(st.sampled_from((None, "text", 3, True, [], {}, float("nan"), 1e308, 10**400)))
    if reference.startswith("["):
        length = draw(st.integers(0, 2))
        return [values_of(draw, reference[1:-1], judge, faulty=faulty) for _ in range(length)]
    if reference in SCALARS + NUMBERS:
        pool = {"text": ("x", "y", "z", "1,5"), "boolean": (True, False)}
        return draw(st.sampled_from(pool.get(reference, (0, 1, -2.5, 1e6))))
    dynamic = draw(st.sampled_from(judge.dynamic(reference)))
    value: dict[str, Any] = {}
    for name, (declared, optional) in judge.attributes(dynamic).items():
        if optional and draw(st.integers(0, 3)) == 0:
            if draw(st.booleans()):
                value[name] = None
            continue
        if faulty and draw(st.integers(0, 30)) == 0:
            continue
        value[name] = values_of(draw, declared, judge, faulty=faulty)
    if dynamic != reference or draw(st.integers(0, 3)) == 0:
        wrong = faulty and draw(st.integers(0, 20)) == 0
        value["@type"] = "T99" if wrong else dynamic
    if draw(st.integers(0, 5)) == 0:
        value["unheard_of"] = 1
    return value


@st.composite
def events(draw: st.DrawFn, name: str, judge: Judge, faulty: bool) -> Any:
    """A value for exactly this type."""
    value = {
        attribute: values_of(draw, declared, judge, faulty=faulty)
        for attribute, (declared, optional) in judge.attributes(name).items()
        if not optional or draw(st.booleans())
    }
    return None if faulty and draw(st.integers(0, 50)) == 0 else value


@contextmanager
def long_functions(data: st.DataObject) -> Iterator[None]:
    """Or each attribute in a function of its own, as some of them are in wide types."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            generator, "MAX_FUNCTION_LINES", data.draw(st.sampled_from((0, MAX_FUNCTION_LINES)))
        )
        yield


def outcome(transform: Any, value: Any) -> Any:
    try:
        return "value", transform(value)
    except RejectedValue as rejected:
        return "rejected", rejected.code


@given(families(), st.data())
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=examples(300) == EXAMPLES,
    suppress_health_check=list(HealthCheck),
)
def test_a_generated_transformer_equals_a_direct_application_of_the_rules(
    family: list[Interpretation], data: st.DataObject
) -> None:
    interpretations, found = load_all(family)
    last = family[-1].name
    errors = [p for _, problems in found.values() for p in problems if p.severity == "error"]
    assert not errors, errors
    judge = Judge(family, FUNCTIONS, WORLD)
    complex_names = [each.name for each in family[0].types if isinstance(each, ComplexType)]
    name = data.draw(st.sampled_from((*complex_names, complex_names[-1], complex_names[-1])))
    for direction in DIRECTIONS:
        checked = interpretations.checked(last)
        # Taken before it is fitted to a promise: a conversion to a super-type may stand anywhere.
        step = checked.resolver(direction).resolve(name)
        plan = Plan(last, name, direction, name, (step,))
        around = ConversionEnvironment(Words())
        with long_functions(data):
            transformer = Transformer(plan, checked.scope.types, FUNCTIONS, surroundings=around)
        for faulty in (False, True):
            value = data.draw(events(name, judge, faulty))
            before = repr(value)
            direct = outcome(lambda each, way=direction: judge.transform(each, name, way), value)
            assert outcome(transformer, value) == direct, transformer.source
            assert repr(value) == before, "what came in was changed"
            fast = compile_event_path([(plan, checked.scope.types)], around)
            if fast is not None:
                check_fast_path(fast, transformer, json.dumps(value).encode())


def check_fast_path(fast: EventFunction, transformer: Transformer, sent: bytes) -> None:
    """From bytes to bytes comes what the transformer gives, or nothing."""
    found = fast(sent)
    if found is not None:
        plain = msgspec.json.encode(transformer(msgspec.json.decode(sent)))
        results, expected = map(msgspec.json.decode, (found, plain))
        assert json.dumps(results, sort_keys=True) == json.dumps(expected, sort_keys=True), sent


@st.composite
def typed_changes(draw: st.DrawFn) -> tuple[list[Interpretation], str]:
    """An event whose attributes change their types, and a mapping that promises the outcome."""
    feet, metres = PrimitiveType("Feet", "number"), PrimitiveType("Metres", "number")
    kinds = st.sampled_from(("Feet", "Feet", "text", "[Feet]", "Inner", "[Inner]"))
    inner_names = draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1))
    names = draw(st.lists(st.sampled_from(("p", "q", "r", "s")), unique=True, min_size=1))
    scalars = st.sampled_from(("Feet", "text", "[Feet]"))
    inner = [Attribute(name, draw(scalars), draw(st.booleans())) for name in inner_names]
    outer = [Attribute(name, draw(kinds), draw(st.booleans())) for name in names]
    keep = draw(st.sampled_from(("", *names)))
    rules = [Rule("Feet", "metres")]
    if keep:
        rules.append(Rule(f"Local.{keep}", "same"))
    shape: list[Any] = []
    promised = []
    for attribute in outer:
        kind = attribute.type
        if attribute.name != keep:
            kind = kind.replace("Feet", "Metres").replace("Inner", "Inside")
        fate = draw(st.sampled_from(("stay", "stay", "rename", "drop")))
        if fate == "drop":
            shape.append(DropAttribute(attribute.name))
            continue
        name = attribute.name
        if fate == "rename":
            name = f"{name}2"
            shape.append(RenameAttribute(attribute.name, name))
        promised.append(Attribute(name, kind, attribute.optional))
    if draw(st.booleans()):
        shape.append(CreateAttribute("made", "text", "up"))
        promised.append(Attribute("made", "text"))
    inside = [Attribute(a.name, a.type.replace("Feet", "Metres"), a.optional) for a in inner]
    root = Interpretation(
        name="root",
        parent="",
        types=(
            metres,
            ComplexType("Inside", tuple(inside)),
            feet,
            ComplexType("Inner", tuple(inner)),
            ComplexType("World", tuple(promised)),
        ),
        conversions=(converts("same", "json", "json", Identity()),),
    )
    local = Interpretation(
        name="local",
        types=(ComplexType("Local", tuple(outer)),),
        rules=tuple(rules),
        mappings=(TypeMapping("Local", "World", "in", tuple(shape)),),
        conversions=(converts("metres", "Feet", "Metres", UnitChange("ft", "m")),),
    )
    return [root, local], "Local"


@given(typed_changes(), st.data())
@settings(
    max_examples=max(EXAMPLES // 3, examples(100)),
    deadline=None,
    derandomize=examples(300) == EXAMPLES,
    suppress_health_check=list(HealthCheck),
)
def test_types_and_shapes_change_as_by_direct_application_of_rules_and_mapping(
    given_family: tuple[list[Interpretation], str], data: st.DataObject
) -> None:
    family, name = given_family
    interpretations, found = load_all(family)
    assert "local" in interpretations, found["local"][1]
    judge = Judge(family, FUNCTIONS)
    with long_functions(data):
        transformer = make_transformer(interpretations, "local", name, "in", FUNCTIONS)
    value = data.draw(events(name, judge, data.draw(st.booleans())))
    direct = outcome(lambda each: judge.transform(each, name, "in"), value)
    assert outcome(transformer, value) == direct, transformer.source
