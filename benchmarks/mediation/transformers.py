"""Transformers by themselves: how fast they turn batches, how fast they are made, what an
interpretation weighs. [ME-8]
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from benchmarks.mediation.column_expressions import ColumnPath, Numbers, apply_formulas, column_plan
from benchmarks.mediation.events import (
    ATTRIBUTES,
    PRODUCER,
    SENT,
    Form,
    interpretations,
    producer,
    values,
)
from benchmarks.mediation.reflective import Reflective
from rapport.kernel.clock import SystemClock
from rapport.mediation.codegen.json_fast_path import compile_event_path
from rapport.mediation.codegen.transformer import Transformer, make_transformer
from rapport.mediation.conversion.conversions import Formula, converts
from rapport.mediation.interpretation_checks import CheckedInterpretation
from rapport.mediation.interpretations.model import Interpretation, Rule
from rapport.mediation.interpretations.registry import InterpretationRegistry
from rapport.mediation.interpretations.type_changes import load_all
from rapport.mediation.types import Attribute, ComplexType

TYPES = 100
_CLOCK = SystemClock()


class Speeds(msgspec.Struct):
    """Events a second through one transformer, in the several ways; bytes are JSON."""

    given_away: float
    """A batch whose values the transformer may write into."""
    batch: float
    one_by_one: float
    columns: float
    from_bytes: float
    batch_of_few: float
    """The same few values as the two below."""
    reflective: float
    remembering: float


def speeds(form: Form, affected: int, count: int, rounds: int) -> Speeds:
    """The best of some rounds each; all ways give the same, which is looked at first."""
    held, _ = interpretations(form, affected=affected)
    turn = make_transformer(held, PRODUCER, SENT, "in")
    walk = Reflective(held, PRODUCER, "in")
    known = Reflective(held, PRODUCER, "in", remembering=True)
    given = values(form, affected, count)
    few = given[: max(count // 20, 50)]
    assert [walk(each, SENT) for each in few] == turn.batch(few).results
    assert [known(each, SENT) for each in few] == turn.batch(few).results
    columns, numbers = column_plan(turn.plan), _columns(given, form, affected)
    encode, decode = msgspec.json.Encoder().encode, msgspec.json.Decoder().decode
    texts = [encode(each) for each in given]
    through = compile_event_path([(turn.plan, held.types_met(PRODUCER))])
    assert through is not None
    whole = [encode(each) for each in turn.batch([decode(text) for text in texts]).results]
    assert [through(text) for text in texts] == whole
    using_up = make_transformer(held, PRODUCER, SENT, "in", own=True)
    fresh = iter([[decode(text) for text in texts] for _ in range(rounds)])
    return Speeds(
        given_away=count / best(lambda: using_up.batch(next(fresh)), rounds),
        batch=count / best(lambda: turn.batch(given), rounds),
        one_by_one=count / best(lambda: [turn(each) for each in given], rounds),
        columns=count / best(lambda: apply_formulas(columns, numbers), rounds),
        from_bytes=count / best(lambda: [through(text) for text in texts], rounds),
        batch_of_few=len(few) / best(lambda: turn.batch(few), rounds),
        reflective=len(few) / best(lambda: [walk(each, SENT) for each in few], rounds),
        remembering=len(few) / best(lambda: [known(each, SENT) for each in few], rounds),
    )


def _columns(given: list[Any], form: Form, affected: int) -> dict[ColumnPath, Numbers]:
    found: dict[ColumnPath, Numbers] = {}
    for number in range(affected):
        path = (f"a{number}",) if form == "flat" else (*("below",) * number, f"a{number}")
        found[path] = np.array([_at(value, path) for value in given])
    return found


def _at(value: Any, path: ColumnPath) -> Any:
    for name in path:
        value = value[name]
    return value


def own_types(rules: int, share: float) -> InterpretationRegistry:
    """A hundred event types of fifteen attributes, and one rule for them all; every further rule
    is about a type of its own and has to be looked at for all of them (figure 4.16 of the source).
    """
    affected = max(1, round(ATTRIBUTES * share))
    attributes = tuple(
        Attribute(f"a{n}", "number" if n < affected else "text") for n in range(ATTRIBUTES)
    )
    types = tuple(ComplexType(f"T{number}", attributes) for number in range(TYPES))
    further = (Rule(f"T{number}.number", "f") for number in range(rules - 1))
    return _child(types, (Rule("number", "f"), *further))


def one_type(rules: int) -> InterpretationRegistry:
    """A type with as many attributes as rules, each of which meets its own attribute: what is made
    grows with the rules.
    """
    attributes = tuple(Attribute(f"a{number}", "number") for number in range(rules))
    declared = tuple(Rule(f"T0.a{number}", "f") for number in range(rules))
    return _child((ComplexType("T0", attributes),), declared)


def _child(types: tuple[ComplexType, ...], rules: tuple[Rule, ...]) -> InterpretationRegistry:
    doubled = converts("f", "number", "number", Formula(2.0))
    held, found = load_all(
        [Interpretation(name="child", types=types, rules=rules, conversions=(doubled,))]
    )
    assert "child" in held, found
    return held


def generation_ms(held: InterpretationRegistry, meeting: int, count: int) -> float:
    """Milliseconds per thousand: binding all rules, then for the first `meeting` types in turn
    resolving, fitting, writing and compiling; nothing is known before, and again after each turn.
    """
    chain = held.chain("child")

    def make() -> None:
        for made in range(count):
            if made % meeting == 0:
                checked = CheckedInterpretation(chain)
            plan = checked.plan(f"T{made % meeting}", "in")
            assert plan is not None
            Transformer(plan, checked.scope.types)

    return best(make, 1) * 1_000 * 1_000 / count


class Weight(msgspec.Struct):
    """Bytes per interpretation of one event type with fifteen attributes, a mapping and a rule."""

    declared: float
    checked: float
    ready: float
    """With the transformer made."""


def weight(count: int) -> Weight:
    """By tracemalloc, in a process that does nothing else meanwhile."""
    base = msgspec.json.encode(interpretations("flat")[1][0])
    copies = [
        msgspec.json.encode(msgspec.structs.replace(producer("flat", 5), name=f"p{n}"))
        for n in range(count)
    ]
    tracemalloc.start()
    try:
        before = _traced()
        declared = [msgspec.json.decode(text, type=Interpretation) for text in copies]
        after_declared = _traced()
        root = msgspec.json.decode(base, type=Interpretation)
        held, _ = load_all([root, *declared])
        after_checked = _traced()
        made = [make_transformer(held, each.name, SENT, "in") for each in declared]
        after_made = _traced()
    finally:
        tracemalloc.stop()
    assert len(made) == count
    return Weight(
        (after_declared - before) / count,
        (after_checked - before) / count,
        (after_made - before) / count,
    )


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def best(work: Callable[[], object], rounds: int) -> float:
    """Seconds of the best round; what a round gave lives on until the next one is done, as a batch
    does while it is being passed on.
    """
    found, kept = [], None
    for _ in range(rounds):
        began = _CLOCK.steady_ns()
        kept = work()
        found.append((_CLOCK.steady_ns() - began) / 1e9)
    del kept
    return min(found)
