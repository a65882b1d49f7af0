"""Bytes to bytes gives what decoding, transforming and encoding gives, or leaves it to that.
[ME-8]
"""

import json
import operator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rapport.mediation.codegen.json_fast_path import (
    FILTERED_OUT,
    Comparison,
    NumberCondition,
    compile_batch_path,
    compile_event_path,
    compile_reading_path,
)
from rapport.mediation.codegen.transformer import Transformer, make_transformer
from rapport.mediation.concepts import canonical_value
from rapport.mediation.conversion.conversions import (
    Call,
    Conversion,
    Cut,
    Formula,
    Identity,
    Join,
    Lookup,
    UnitChange,
    converts,
)
from rapport.mediation.interpretations.model import (
    CreateAttribute,
    DropAttribute,
    Interpretation,
    MergeAttributes,
    RenameAttribute,
    Rule,
    SplitAttribute,
    TypeMapping,
)
from rapport.mediation.interpretations.registry import InterpretationRegistry
from rapport.mediation.interpretations.type_changes import load_all
from rapport.mediation.rejections import RejectedValue
from rapport.mediation.types import Attribute, ComplexType, PrimitiveType, Type

FEET, METRES, YARDS = (PrimitiveType(name, "number") for name in ("Feet", "Metres", "Yards"))
KINDS = ("Feet", "Feet", "text", "boolean", "number", "integer", "json", "[Feet]", "[text]", "Word")
WORD, WORT = PrimitiveType("Word", "text"), PrimitiveType("Wort", "text")
TO_METRES = converts("metres", "Feet", "Metres", UnitChange("ft", "m"))
TO_YARDS = converts("yards", "Metres", "Yards", Formula(1.0936, 0.25))
TO_WORT = converts("wort", "Word", "Wort", Lookup((("one", "eins"), ("two", "zwei"))))
HUGE, BAD = 10**400, "\ud800"


def in_root(kind: str) -> str:
    return kind.replace("Feet", "Metres").replace("Word", "Wort").replace("In", "Root")


def at_reader(kind: str) -> str:
    return kind.replace("Metres", "Yards").replace("Root", "Out")


@st.composite
def attributes(draw: st.DrawFn, kinds: tuple[str, ...]) -> tuple[Attribute, ...]:
    names = draw(st.lists(st.sampled_from(("a", "b", "c", "@x", "é")), unique=True, max_size=4))
    return tuple(
        Attribute(name, draw(st.sampled_from(kinds)), draw(st.booleans())) for name in names
    )


@st.composite
def layers(draw: st.DrawFn) -> list[ComplexType]:
    """What a producer says: types that contain those before them."""
    kinds = KINDS
    found = []
    for name in ("In0", "In1", "In2")[: draw(st.integers(1, 3))]:
        found.append(ComplexType(name, draw(attributes(kinds))))
        kinds = (*kinds, name, name, f"[{name}]")
    return found


@st.composite
def shaped(
    draw: st.DrawFn, given_attributes: tuple[Attribute, ...], made: str
) -> tuple[list[Any], tuple[Attribute, ...]]:
    """Changes of shape, and the attributes that are there after them."""
    shape: list[Any] = []
    after: list[Attribute] = []
    for attribute in given_attributes:
        fate = draw(st.sampled_from(("stay", "stay", "stay", "rename", "drop")))
        if fate == "drop":
            shape.append(DropAttribute(attribute.name))
        elif fate == "rename":
            shape.append(RenameAttribute(attribute.name, f"{attribute.name}2"))
            after.append(msgspec.structs.replace(attribute, name=f"{attribute.name}2"))
        else:
            after.append(attribute)
    if draw(st.booleans()):
        shape.append(CreateAttribute(made, "text", "up"))
        after.append(Attribute(made, "text"))
    return shape, tuple(after)


def retyped(given_attributes: tuple[Attribute, ...], kind: Any) -> tuple[Attribute, ...]:
    return tuple(msgspec.structs.replace(one, type=kind(one.type)) for one in given_attributes)


@st.composite
def ways(draw: st.DrawFn) -> tuple[InterpretationRegistry, str, str]:
    """A producer, root and a consumer; the types of an event at the producer and in root."""
    result = draw(layers())
    shape_in, attributes_in = draw(shaped(result[-1].attributes, "made"))
    top = len(result) - 1
    root = [ComplexType(in_root(one.name), retyped(one.attributes, in_root)) for one in result[:-1]]
    root.append(ComplexType(f"Root{top}", retyped(attributes_in, in_root)))
    shape_out, attributes_out = draw(shaped(root[-1].attributes, "more"))
    wanted = [
        ComplexType(at_reader(one.name), retyped(one.attributes, at_reader)) for one in root[:-1]
    ]
    wanted.append(ComplexType(f"Out{top}", retyped(attributes_out, at_reader)))
    types: tuple[Type, ...] = (FEET, METRES, YARDS, WORD, WORT)
    held, found = load_all(
        [
            Interpretation(name="root", parent="", types=(*types, *root)),
            Interpretation(
                name="producer",
                types=tuple(result),
                mappings=(TypeMapping(f"In{top}", f"Root{top}", "in", tuple(shape_in)),),
                rules=(Rule("Feet", "metres"), Rule("Word", "wort")),
                conversions=(TO_METRES, TO_WORT),
            ),
            Interpretation(
                name="consumer",
                types=tuple(wanted),
                mappings=(TypeMapping(f"Root{top}", f"Out{top}", "out", tuple(shape_out)),),
                rules=(Rule("Metres", "yards"),),
                conversions=(TO_YARDS,),
            ),
        ]
    )
    assert {"producer", "consumer"} <= set(held.names), found
    return held, f"In{top}", f"Root{top}"


ODD = (None, "text", 3, True, [], {}, {"@type": "In0"}, 1e308, -0.0, HUGE, float("nan"), BAD)


def value_for(draw: st.DrawFn, kind: str, types: dict[str, ComplexType], odd: bool) -> Any:
    if odd and draw(st.integers(0, 15)) == 0:
        return draw(st.sampled_from(ODD))
    if kind.startswith("["):
        return [value_for(draw, kind[1:-1], types, odd) for _ in range(draw(st.integers(0, 2)))]
    if kind in types:
        value = {
            one.name: value_for(draw, one.type, types, odd)
            for one in draw(st.permutations(types[kind].attributes))
            if not (one.optional and draw(st.booleans()))
        }
        for one in types[kind].attributes:
            if odd and draw(st.integers(0, 15)) == 0:
                value[one.name] = None
        if odd and draw(st.integers(0, 10)) == 0:
            value[draw(st.sampled_from(("unheard of", "@type", "a2", "made")))] = kind
        return value
    pool: dict[str, Any] = {
        "text": ("x", "é\n", ""),
        "Word": ("one", "two"),
        "boolean": (True, False),
        "integer": (0, 7),
        "json": (None, {"x": [1]}, 5),
    }
    return draw(st.sampled_from(pool.get(kind, (0, 1, -2.5, 1e6, -0.0, 2**63))))


@st.composite
def texts(draw: st.DrawFn, kind: str, types: dict[str, ComplexType]) -> bytes:
    """JSON of a value as it should be, or nearly; sometimes no JSON at all."""
    value = value_for(draw, kind, types, draw(st.booleans()))
    compact = draw(st.booleans())
    text = json.dumps(value, ensure_ascii=compact, separators=(",", ":") if compact else None)
    data = text.encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 8)) == 0:
        place = draw(st.integers(0, len(data)))
        data = data[:place] + draw(st.sampled_from((b"", b"\xff", b",", b'"', b"}", b"1e999")))
    return data


def plainly(data: bytes, *transformers: Transformer) -> str | None:
    """What comes out in the plain way, as text that tells 1 from 1.0; None: it is refused."""
    try:
        value = msgspec.json.decode(data)
        for transform in transformers:
            value = transform(value)
        return canonical(msgspec.json.encode(value))
    except (RejectedValue, msgspec.DecodeError, UnicodeError, TypeError, OverflowError):
        return None


def canonical(data: bytes) -> str:
    return json.dumps(msgspec.json.decode(data), sort_keys=True)


@pytest.mark.slow
@given(ways(), st.data())
@settings(suppress_health_check=list(HealthCheck))
def test_the_fast_path_equals_the_transformers_and_gives_none_where_they_reject(
    way: tuple[InterpretationRegistry, str, str], data: st.DataObject
) -> None:
    held, result, root = way
    arrive = make_transformer(held, "producer", result, "in")
    leave = make_transformer(held, "consumer", root, "out")
    first = (arrive.plan, held.types_met("producer"))
    second = (leave.plan, held.types_met("consumer"))
    to_root, through = compile_event_path([first]), compile_event_path([first, second])
    arriving, leaving = compile_batch_path([first]), compile_batch_path([second])
    assert to_root is not None
    assert through is not None
    assert arriving is not None
    assert leaving is not None
    types = {one.name: one for one in held.named("producer").types if isinstance(one, ComplexType)}
    for _ in range(4):
        sent = data.draw(texts(result, types))
        for new, expected in (
            (to_root(sent), plainly(sent, arrive)),
            (through(sent), plainly(sent, arrive, leave)),
            (_by_halves(arriving, leaving, sent), plainly(sent, arrive, leave)),
        ):
            assert new is None or canonical(new) == expected, (sent, new, expected)


def _by_halves(arriving: Any, leaving: Any, sent: bytes) -> Any:
    (between,) = arriving([sent])
    return None if between is None else leaving([between])[0]


@given(ways(), st.data())
@settings(suppress_health_check=list(HealthCheck))
def test_regular_events_never_leave_the_fast_path(
    way: tuple[InterpretationRegistry, str, str], data: st.DataObject
) -> None:
    held, result, root = way
    through = compile_event_path(
        [
            (held.plan("producer", result, "in"), held.types_met("producer")),
            (held.plan("consumer", root, "out"), held.types_met("consumer")),
        ]
    )
    assert through is not None
    types = {one.name: one for one in held.named("producer").types if isinstance(one, ComplexType)}
    value = data.draw(st.composite(lambda draw: value_for(draw, result, types, odd=False))())
    assert through(json.dumps(value).encode()) is not None


STATION = ComplexType("Station", (Attribute("t", "Feet"), Attribute("name", "text")))


def one_mapping(
    shape: tuple[Any, ...], target: ComplexType, *conversions: Conversion
) -> InterpretationRegistry:
    held, found = load_all(
        [
            Interpretation(name="root", parent="", types=(FEET, METRES, target)),
            Interpretation(
                name="local",
                types=(STATION,),
                mappings=(TypeMapping("Station", "Root", "in", shape),),
                rules=(Rule("Feet", "metres"),),
                conversions=(TO_METRES, *conversions),
            ),
        ]
    )
    assert "local" in held.names, found
    return held


def test_attributes_are_merged_and_split_by_pure_conversions() -> None:
    cut = Conversion("cut", ("text",), ("text", "text"), Cut("-"))
    join = Conversion("join", ("text", "text"), ("text",), Join("+"))
    target = ComplexType("Root", (Attribute("t", "Metres"), Attribute("both", "text", True)))
    shape = (SplitAttribute("name", ("x", "y"), "cut"), MergeAttributes(("y", "x"), "both", "join"))
    held = one_mapping(shape, target, cut, join)
    arrive = make_transformer(held, "local", "Station", "in")
    through = compile_event_path([(arrive.plan, held.types_met("local"))])
    assert through is not None
    good = b'{"name":"a-b","t":10}'
    assert through(good) == b'{"t":3.048,"both":"b+a"}'
    assert canonical(b'{"t":3.048,"both":"b+a"}') == plainly(good, arrive)
    for bad in (b'{"name":"ab","t":10}', b'{"t":10}', b'{"name":"a-b"}', b"[]", b""):
        assert through(bad) is None
        assert plainly(bad, arrive) is None


@pytest.mark.parametrize("how", [Call("f"), Identity()])
def test_functions_of_the_site_are_never_called_twice_for_an_event(how: Any) -> None:
    target = ComplexType("Root", (Attribute("t", "Metres"), Attribute("name", "text")))
    held, _ = load_all(
        [
            Interpretation(name="root", parent="", types=(FEET, METRES, target)),
            Interpretation(
                name="local",
                types=(STATION,),
                mappings=(TypeMapping("Station", "Root", "in"),),
                rules=(Rule("Feet", "metres"), Rule("Station.name", "named")),
                conversions=(TO_METRES, converts("named", "text", "text", how)),
            ),
        ]
    )
    plan = held.plan("local", "Station", "in")
    made = compile_event_path([(plan, held.types_met("local"))])
    assert (made is None) == isinstance(how, Call)


def test_types_that_are_many_times_within_each_other_take_no_longer() -> None:
    doubled = [
        ComplexType(f"D{n}", (Attribute("a", f"D{n + 1}", True), Attribute("b", f"D{n + 1}", True)))
        for n in range(25)
    ]
    whole = (Attribute("t", "Feet"), Attribute("d", "D0", True))
    types = (FEET, *doubled, ComplexType("D25"), ComplexType("Whole", whole))
    held, found = load_all(
        [
            Interpretation(name="root", parent="", types=types),
            Interpretation(
                name="local",
                rules=(Rule("Whole.t", "same"),),
                conversions=(converts("same", "Feet", "Feet", Formula(2.0)),),
            ),
        ]
    )
    assert "local" in held.names, found
    arrive = make_transformer(held, "local", "Whole", "in")
    through = compile_event_path([(arrive.plan, held.types_met("local"))])
    assert through is not None
    result = through(b'{"d":{"a":{"b":{}},"b":{"a":null}},"t":1}')
    assert result == b'{"t":2.0,"d":{"a":{"b":{}},"b":{"a":null}}}'
    assert canonical(result) == plainly(result.replace(b"2.0", b"1"), arrive)
    assert through(b'{"t":1,"d":{"more":1}}') is None


PASSES = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def as_batch(
    held: InterpretationRegistry, result: str, root: str, wanted: NumberCondition | None = None
) -> Any:
    """From the producer to the consumer, as far as root lets pass."""
    first = (held.plan("producer", result, "in"), held.types_met("producer"))
    second = (held.plan("consumer", root, "out"), held.types_met("consumer"))
    batch = compile_batch_path([first, second], wanted)
    assert batch is not None
    return batch


@pytest.mark.slow
@given(ways(), st.data())
@settings(suppress_health_check=list(HealthCheck))
def test_a_batch_gives_each_event_the_result_of_a_single_call(
    way: tuple[InterpretationRegistry, str, str], data: st.DataObject
) -> None:
    held, result, root = way
    first = (held.plan("producer", result, "in"), held.types_met("producer"))
    second = (held.plan("consumer", root, "out"), held.types_met("consumer"))
    through = compile_event_path([first, second])
    assert through is not None
    types = {one.name: one for one in held.named("producer").types if isinstance(one, ComplexType)}
    sent = data.draw(st.lists(texts(result, types), max_size=6))
    assert as_batch(held, result, root)(sent) == [through(each) for each in sent]


@given(
    st.booleans(),
    st.sampled_from(("<", "<=", ">", ">=")),
    st.sampled_from((-3.048, 0.0, 3.048, 6.096)),
    st.lists(st.sampled_from((b"10", b"20", b"-10", b"0", b"null", b'"x"', b"1e308", b"9e999"))),
)
@settings(deadline=None)
def test_the_condition_is_tested_on_the_canonical_event_between_the_plans(
    optional: bool, comparison: Comparison, number: float, numbers: list[bytes]
) -> None:
    """An attribute that may be missing is written into its struct by each plan."""
    held = there_and_back(optional=optional)
    to_root = make_transformer(held, "producer", "In", "in")
    sent = [b'{"t":%b}' % each for each in numbers] + [b"{}", b"[]", b""]
    alone = as_batch(held, "In", "Root")(sent)
    results = as_batch(held, "In", "Root", NumberCondition("t", comparison, number))(sent)
    for data, whole, found in zip(sent, alone, results, strict=True):
        in_root = plainly(data, to_root)
        seen = json.loads(in_root).get("t") if in_root else None
        if found is None:
            assert whole is None or seen is None  # somebody else has to decide
        else:
            assert seen is not None
            passes = PASSES[comparison](seen, number)
            assert found == (whole if passes else FILTERED_OUT)


def there_and_back(*, optional: bool) -> InterpretationRegistry:
    """Feet at the producer, metres in root, yards at the consumer."""
    root = ComplexType("Root", (Attribute("t", "Metres", optional),))
    held, found = load_all(
        [
            Interpretation(name="root", parent="", types=(FEET, METRES, YARDS, root)),
            Interpretation(
                name="producer",
                types=(ComplexType("In", (Attribute("t", "Feet", optional),)),),
                mappings=(TypeMapping("In", "Root", "in"),),
                rules=(Rule("Feet", "metres"),),
                conversions=(TO_METRES,),
            ),
            Interpretation(
                name="consumer",
                types=(ComplexType("Out", (Attribute("t", "Yards", optional),)),),
                mappings=(TypeMapping("Root", "Out", "out"),),
                rules=(Rule("Metres", "yards"),),
                conversions=(TO_YARDS,),
            ),
        ]
    )
    assert {"producer", "consumer"} <= set(held.names), found
    return held


@pytest.mark.parametrize(
    "wanted",
    [
        NumberCondition("height", ">", 1.0),
        NumberCondition("t", ">", float("nan")),
        NumberCondition("t", "> 0 or", 1.0),  # type: ignore[arg-type]
    ],
    ids=["no such attribute", "not a number", "not a comparison"],
)
def test_a_bound_that_means_nothing_is_not_made_into_code(wanted: NumberCondition) -> None:
    held = there_and_back(optional=False)
    first = (held.plan("producer", "In", "in"), held.types_met("producer"))
    assert compile_batch_path([first], wanted) is None


@pytest.mark.parametrize("count", [1, 4, 12])
def test_a_struct_with_many_changes_is_built_anew_with_the_same_result(count: int) -> None:
    names = [f"a{number}" for number in range(14)]
    kinds = ["Feet" if number < count else "text" for number in range(14)]
    result = ComplexType("In", tuple(map(Attribute, names, kinds)))
    root = ComplexType("Root", retyped(result.attributes, in_root))
    held, _ = load_all(
        [
            Interpretation(name="root", parent="", types=(FEET, METRES, root)),
            Interpretation(
                name="local",
                types=(result,),
                mappings=(TypeMapping("In", "Root", "in"),),
                rules=(Rule("Feet", "metres"),),
                conversions=(TO_METRES,),
            ),
        ]
    )
    arrive = make_transformer(held, "local", "In", "in")
    through = compile_event_path([(arrive.plan, held.types_met("local"))])
    assert through is not None
    value = {name: 10 if kind == "Feet" else "é" for name, kind in zip(names, kinds, strict=True)}
    del value["a13"]
    data = json.dumps(value).encode()
    result_again = through(data)
    assert result_again is not None
    assert canonical(result_again) == plainly(data, arrive)
    assert "a13" not in msgspec.json.decode(result_again)


@pytest.mark.parametrize("optional", [False, True], ids=["required", "optional"])
@pytest.mark.parametrize(
    ("factor", "numbers", "is_regular", "is_converted"),
    [
        (1.0, (1e99, 1e99), True, True),
        (1.0, (1e308, 1e308), False, True),
        (1e250, (1e50, 1.0), True, True),
        (1e250, (1e58, 1e58), True, True),
        (1e250, (1e90, 1.0), False, False),
        (1e250, (1e90, -1e90), False, False),
    ],
    ids=["small", "large", "larger after", "large as a sum", "too large", "cancelling out"],
)
def test_numbers_that_are_very_large_are_left_to_the_transformer_which_decides(
    factor: float,
    numbers: tuple[float, float],
    is_regular: bool,
    is_converted: bool,
    optional: bool,
) -> None:
    wide = ComplexType("Wide", tuple(Attribute(name, "Feet", optional) for name in "ab"))
    root = ComplexType("Root", retyped(wide.attributes, in_root))
    held, _ = load_all(
        [
            Interpretation(name="root", parent="", types=(FEET, METRES, root)),
            Interpretation(
                name="local",
                types=(wide,),
                mappings=(TypeMapping("Wide", "Root", "in"),),
                rules=(Rule("Feet", "same"),),
                conversions=(converts("same", "Feet", "Metres", Formula(factor)),),
            ),
        ]
    )
    arrive = make_transformer(held, "local", "Wide", "in")
    through = compile_event_path([(arrive.plan, held.types_met("local"))])
    data = msgspec.json.encode(dict(zip("ab", numbers, strict=True)))
    assert through is not None
    plain, fast = plainly(data, arrive), through(data)
    assert (plain is not None) == is_converted
    assert fast is None or canonical(fast) == plain
    assert (fast is not None) == is_regular


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"key":"s1","value":[10]}', b'{"key":"s1","time":5,"t":3.048}'),
        (b'{"key":"s1","value":[10],"more":1}', b'{"key":"s1","time":5,"t":3.048}'),
        (b'{"key":"s1","value":["10"]}', None),
        (b'{"key":"s1","value":[10,11]}', None),
        (b'{"key":1,"value":[10]}', None),
        (b'{"value":[10]}', None),
        (b"null", None),
    ],
)
def test_readings_are_converted_from_bytes_to_bytes(data: bytes, expected: bytes | None) -> None:
    results = ComplexType(
        "Told", (Attribute("key", "text"), Attribute("time", "integer", True),
                 Attribute("t", "Metres", True))
    )  # fmt: skip
    concept = msgspec.structs.replace(
        results, name="station", attributes=(*results.attributes[:2], Attribute("t", "Feet", True))
    )
    held, found = load_all(
        [
            Interpretation(name="root", parent="", types=(FEET, METRES, concept)),
            Interpretation(
                name="desk",
                types=(results,),
                mappings=(TypeMapping("station", "Told", "out"),),
                rules=(Rule("Feet", "metres"),),
                conversions=(TO_METRES,),
            ),
        ]
    )
    leave = make_transformer(held, "desk", "station", "out")
    through = compile_reading_path(leave.plan, held.types_met("desk"), "t", "number")
    assert through is not None, found
    assert through(data, 5) == expected
    if expected is not None:
        value = canonical_value("t", "number", msgspec.json.decode(data), 5)
        assert msgspec.json.encode(leave(value)) == expected
