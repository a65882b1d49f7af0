"""A batch gives what its events give one by one. [ME-8]"""

import math
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.mediation.codegen.transformer import (
    MAX_FUNCTION_LINES,
    Transformer,
    generate,
    generate_batch,
    split_functions,
)
from rapport.mediation.conversion.conversions import (
    Call,
    Chain,
    Conversion,
    Formula,
    Identity,
    Lookup,
    Stateful,
    UnitChange,
    converts,
)
from rapport.mediation.interpretations.model import (
    CreateAttribute,
    DropAttribute,
    RenameAttribute,
    ShapeStep,
)
from rapport.mediation.memory import ConversionMemory
from rapport.mediation.plans import ConvertStep, EachStep, ObjectPart, ObjectStep, Plan, Step
from rapport.mediation.rejections import RejectedValue
from rapport.mediation.types import Types

NAMES = ("a", "b", "c", "d")
HOWS = (
    Formula(5.0, -160.0, 9.0),
    Formula(),
    Formula(1e300, 0.0, 1.0),
    UnitChange("ft", "m"),
    Identity(),
    Lookup((("x", "y"), (1, 2)), "other"),
    Call("odd"),
    Chain((converts("half", "number", "number", Formula(0.5)),)),
)
NUMBERS: tuple[Any, ...] = (0, 1, -7, 2**53 + 1, -(2**63) - 1, 0.0, -0.0, 21.5, 5e-324, 1e308)
ODD: tuple[Any, ...] = (
    *(math.nan, math.inf, -math.inf, 10**400, None, True, False, "x", "21.5", "", [], {}, [1.0]),
    {"a": 1.0},
)


def odd(value: Any) -> float:
    if value == 1:
        raise ValueError("one")
    return 2.0 if isinstance(value, float) else math.nan


def count(state: int, value: Any) -> tuple[int, float]:
    return state + 1, float(state)


def named(number: int, how: Any) -> Conversion:
    return converts(f"f{number}", "number", "number", how)


@st.composite
def objects(draw: st.DrawFn, path: str, depth: int) -> ObjectStep:
    parts = []
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4)):
        below = f"{path}.{name}"
        form = draw(st.integers(0, 5 if depth else 3))
        how = draw(st.integers(0, len(HOWS) - 1))
        step: Step = ConvertStep(below, "number", "number -> f", named(how, HOWS[how]))
        if form == 4:
            step = draw(objects(below, depth - 1))
        elif form == 5:
            step = EachStep(below, draw(objects(f"{below}[]", depth - 1)))
        parts.append(ObjectPart(name, draw(st.booleans()), step))
    shapes: list[tuple[ShapeStep, None]] = []
    for shape in draw(
        st.lists(
            st.sampled_from(
                (RenameAttribute("a", "e"), DropAttribute("b"), CreateAttribute("f", "text", "up"))
            ),
            max_size=2,
        )
    ):
        shapes.append((shape, None))
    only = draw(st.sampled_from((None, None, ("a", "c", "e"))))
    return ObjectStep(path, "T", tuple(parts), only=only, shape=tuple(shapes))


@st.composite
def values(draw: st.DrawFn, step: Step) -> Any:
    """Mostly fitting, at some places not."""
    chance = draw(st.integers(0, 11))
    if chance == 0:
        return draw(st.sampled_from(ODD))
    if isinstance(step, ObjectStep):
        found = {
            part.attribute: draw(values(part.step))
            for part in step.parts
            if draw(st.integers(0, 15)) > 0
        }
        return {**found, "z": "kept"} if draw(st.booleans()) else found
    if isinstance(step, EachStep):
        return draw(st.lists(values(step.step), max_size=2))
    return draw(st.sampled_from(NUMBERS))


def one_by_one(transformer: Transformer, given_values: list[Any]) -> tuple[list[Any], list[Any]]:
    results, rejected = [], []
    for index, value in enumerate(given_values):
        try:
            results.append(transformer(value))
        except RejectedValue as found:
            rejected.append((index, found.code, found.message, found.hint))
    return results, rejected


@pytest.mark.slow
@given(st.data())
@settings(derandomize=True)
def test_a_batch_gives_the_same_results_and_rejections_bit_for_bit(data: st.DataObject) -> None:
    step = data.draw(objects("T", 2))
    transformer = Transformer(Plan("i", "T", "in", "T", (step,)), Types(()), {"odd": odd})
    given_values = data.draw(st.lists(values(step), max_size=6))
    before = repr(given_values)
    found = transformer.batch(given_values)
    results, rejected = one_by_one(transformer, given_values)
    assert repr(found.results) == repr(results)  # also tells 1 from 1.0, and -0.0 from 0.0
    assert [(i, r.code, r.message, r.hint) for i, r in found.rejected] == rejected
    assert repr(given_values) == before, "what came in was changed"
    using_up = Transformer(transformer.plan, Types(()), {"odd": odd}, own=True)
    used = using_up.batch(deepcopy(given_values))
    assert repr(used.results) == repr(results)
    assert [(i, r.code, r.message, r.hint) for i, r in used.rejected] == rejected


def test_a_batch_calls_a_stateful_conversion_once_per_event() -> None:
    conversion = named(0, Stateful("count", b"0"))
    step = ObjectStep(
        "T", "T", (ObjectPart("a", False, ConvertStep("T.a", "number", "r", conversion)),)
    )
    memory = ConversionMemory()
    plan = Plan("i", "T", "in", "T", (step,))
    transformer = Transformer(plan, Types(()), {"count": count}, memory)
    found = transformer.batch([{"a": 1}, {}, {"a": 1}])
    assert found.results == [{"a": 0.0}, {"a": 1.0}]
    assert [index for index, _ in found.rejected] == [1]
    assert transformer({"a": 1}) == {"a": 2.0}


@pytest.mark.parametrize(
    "stages",
    [
        (),
        (ObjectStep("T", "T", ()), ObjectStep("T", "T", ())),
        (ObjectStep("T", "T", (), each="a"),),
        (ConvertStep("T", "T", "r", named(0, Identity())),),
    ],
)
def test_plans_that_are_no_single_object_go_one_by_one(stages: tuple[Step, ...]) -> None:
    several = any(isinstance(step, ObjectStep) and step.each for step in stages)
    plan = Plan("i", "T", "in", "T", stages, several)
    assert generate_batch(plan) is None
    transformer = Transformer(plan, Types(()))
    found = transformer.batch([{"a": [1, 2]}])
    assert found.results == ([{"a": 1}, {"a": 2}] if several else [{"a": [1, 2]}])
    assert not found.rejected


def test_the_text_for_batches_grows_by_the_same_lines_per_attribute() -> None:
    def lines(attributes: int) -> int:
        parts = tuple(
            ObjectPart(
                f"a{n}", False, ConvertStep(f"T.a{n}", "number", "r", named(0, Formula(2.0)))
            )
            for n in range(attributes)
        )
        generated = generate_batch(Plan("i", "T", "in", "T", (ObjectStep("T", "T", parts),)))
        assert generated is not None
        return generated.source.count("\n")

    assert lines(100) - lines(50) == lines(50) - lines(0)


@pytest.mark.parametrize("attributes", [10, 100, 1_000])
def test_no_function_is_long_however_many_attributes_there_are(attributes: int) -> None:
    parts = tuple(
        ObjectPart(f"a{n}", False, ConvertStep(f"T.a{n}", "number", "r", named(0, Formula(2.0))))
        for n in range(attributes)
    )
    renames = tuple((RenameAttribute(f"a{n}", f"b{n}"), None) for n in range(attributes))
    plan = Plan("i", "T", "in", "T", (ObjectStep("T", "T", parts, shape=renames),))
    generated = generate_batch(plan)
    assert generated is not None
    for source in (generated.source, generate(plan).source):
        functions = split_functions(source)
        assert "".join(functions) == source
        assert max(text.count("\n") for text in functions) < 2 * MAX_FUNCTION_LINES + 50
    value = {f"a{n}": float(n) for n in range(attributes)}
    expected = {f"b{n}": 2.0 * n for n in range(attributes)}
    made = Transformer(plan, Types(()))
    assert made(value) == expected
    assert made.batch([value]).results == [expected]
