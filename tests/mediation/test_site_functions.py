"""Functions of the site in typed interpretations: in a worker, one bad event costs one. [ME-4]"""

from typing import Any

import pytest

from rapport.kernel.clock import SystemClock
from rapport.mediation.codegen.transformer import Transformer, make_transformer
from rapport.mediation.conversion.conversions import Call, Chain, Conversion, Stateful, converts
from rapport.mediation.interpretations.model import Interpretation, Rule
from rapport.mediation.interpretations.registry import InterpretationRegistry
from rapport.mediation.interpretations.type_changes import load_all
from rapport.mediation.memory import ConversionMemory
from rapport.mediation.rejections import RejectedValue
from rapport.mediation.site_functions import SiteFunctions, site_functions
from rapport.mediation.types import Attribute, ComplexType

pytestmark = pytest.mark.slow

FUNCTIONS = '''
import os, time

def double(value):
    return value * 2

def reverse(value):
    return value[::-1]

def moody(value):
    """Well-behaved but for a few values."""
    if value == 3:
        raise ValueError("not three")
    if value == 4:
        time.sleep(60)
    if value == 5:
        os._exit(7)
    if value == 6:
        return "six"
    if value == 7:
        return float("nan")
    if value == 8:
        return object()
    return value + 0.5

def count(state, value):
    return state + 1, value + state

def moved(state, event):
    return event["x"]

def who(value):
    return {"seen": value, "process": os.getpid()}
'''
NAMES = ("double", "reverse", "moody", "count", "moved", "who")
POINT = ComplexType("Point", (Attribute("x", "number"),))


@pytest.fixture
def functions(tmp_path):
    (tmp_path / "site_plugins.py").write_text(FUNCTIONS)
    made = site_functions(
        [f"site_plugins:{name}" for name in NAMES], SystemClock(), [str(tmp_path)], deadline_ms=400
    )
    yield made
    made.close()


def held(conversion: Conversion, kind: str) -> InterpretationRegistry:
    event = ComplexType("Event", (Attribute("value", kind),))
    child = Interpretation(
        name="c",
        types=(POINT, event),
        rules=(Rule("Event.value", conversion.name),),
        conversions=(conversion,),
    )
    found, outcomes = load_all([child])
    assert "c" in found, outcomes
    return found


def transformer(functions: SiteFunctions, *names: str, kind: str = "number") -> Transformer:
    steps = [converts(name, kind, kind, Call(f"site_plugins:{name}")) for name in names]
    whole = steps[0] if len(steps) == 1 else converts("all", kind, kind, Chain(tuple(steps)))
    return make_transformer(held(whole, kind), "c", "Event", "in", functions)


def events(*values: Any) -> list[Any]:
    return [{"value": value} for value in values]


def test_one_bad_event_of_a_batch_costs_only_itself(functions):
    moody = transformer(functions, "moody")
    found = moody.batch(events(1, 2, 3, 4, 5, 6, 7, 8, 10**30, "x", 9))
    assert [each["value"] for each in found.results] == [1.5, 2.5, 9.5]
    assert [(index, rejected.code) for index, rejected in found.rejected] == [
        (2, "conversion.raised"),
        (3, "conversion.timeout"),
        (4, "conversion.died"),
        (5, "conversion.bad_result"),
        (6, "conversion.bad_result"),
        (7, "conversion.raised"),
        (8, "value.not_sendable"),
        (9, "conversion.raised"),
    ]


def test_one_event_at_a_time_gives_the_same_as_a_batch(functions):
    moody = transformer(functions, "moody")
    for value, code in (
        (3, "conversion.raised"),
        (4, "conversion.timeout"),
        (6, "conversion.bad_result"),
    ):
        with pytest.raises(RejectedValue) as caught:
            moody({"value": value})
        assert caught.value.code == code
    assert moody({"value": 1}) == {"value": 1.5}


def test_a_chain_of_functions_and_a_list_go_through_in_batches(functions):
    chain = transformer(functions, "double", "moody", "double")
    found = chain.batch(events(*range(5, 50)))
    assert [each["value"] for each in found.results] == [4 * n + 1.0 for n in range(5, 50)]
    listed = transformer(functions, "reverse", kind="[number]")
    assert listed.batch(events([1, 2], [3])).results == events([2, 1], [3])


def test_elements_of_lists_are_converted_one_by_one(functions):
    event = ComplexType("Event", (Attribute("values", "[number]"),))
    child = Interpretation(
        name="c",
        types=(event,),
        rules=(Rule("Event.number", "double"),),
        conversions=(converts("double", "number", "number", Call("site_plugins:double")),),
    )
    found, _ = load_all([child])
    each = make_transformer(found, "c", "Event", "in", functions)
    batch = [{"values": list(range(start, start + 9))} for start in range(3)]
    doubled = each.batch(batch).results
    assert doubled == [{"values": [2 * n for n in one["values"]]} for one in batch]


def test_a_function_with_a_state_runs_in_the_worker_event_by_event(functions):
    how = Stateful("site_plugins:count", b"0", feed="Point", update="site_plugins:moved")
    conversion = converts("count", "number", "number", how)
    memory = ConversionMemory()
    counting = make_transformer(held(conversion, "number"), "c", "Event", "in", functions, memory)
    assert counting.batch(events(10, 10, "x", 10)).results == events(10, 11, 12)
    assert memory.feed(conversion, {"x": 100}, functions)
    assert counting({"value": 1}) == {"value": 101}
    with pytest.raises(RejectedValue):
        memory.feed(conversion, {}, functions)
    assert memory.states == {"count": 101}


def test_a_function_that_cannot_be_loaded_rejects_events(tmp_path):
    (tmp_path / "site_plugins.py").write_text(FUNCTIONS)
    names = ["site_plugins:double", "site_plugins:doubling", "no_such_module:f"]
    made = site_functions(names, SystemClock(), [str(tmp_path)])
    try:
        missing = converts("d", "number", "number", Call("site_plugins:doubling"))
        change = make_transformer(held(missing, "number"), "c", "Event", "in", made)
        found = change.batch(events(1, 2))
        assert [each.code for _, each in found.rejected] == ["conversion.unavailable"] * 2
    finally:
        made.close()


def test_after_closing_events_are_rejected_and_nothing_hangs(functions):
    double = transformer(functions, "double")
    assert double({"value": 2}) == {"value": 4}
    functions.close()
    found = double.batch(events(1, 2, 3))
    assert {each.code for _, each in found.rejected} == {"conversion.unavailable"}
