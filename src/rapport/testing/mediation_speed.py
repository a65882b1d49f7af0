"""How fast transformers are made and how fast they work; not one of the product's benchmarks yet.
[ME-8]

`measure(clock)` gives plain figures for flat and deep types of fifteen attributes (figures 4.14 and
4.16 of the source).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec
import numpy as np

from rapport.kernel.clock import Clock
from rapport.mediation.model.changes import load
from rapport.mediation.model.checking import Checked
from rapport.mediation.model.columns import ColumnPath, Numbers, apply_formulas, columns_of
from rapport.mediation.model.conversions import Formula, UnitChange, converts
from rapport.mediation.model.interpretation import Interpretation, Mapping, Rule
from rapport.mediation.model.interpretations import Interpretations
from rapport.mediation.model.transformer import Transformer, make_transformer
from rapport.mediation.model.types import Attribute, ComplexType, PrimitiveType
from rapport.testing.mediation import Judge

ATTRIBUTES = 15
TYPES_PER_INTERPRETATION = 100
Form = Literal["flat", "deep"]


def family(form: Form, affected: int) -> list[Interpretation]:
    """Root, and one that says Fahrenheit in `affected` of fifteen attributes."""
    units = (PrimitiveType("Celsius", "number"), PrimitiveType("Fahrenheit", "number"))
    kinds = ["Fahrenheit" if number < affected else "text" for number in range(ATTRIBUTES)]
    local = _types("Local", form, kinds)
    world = _types("World", form, [kind.replace("Fahrenheit", "Celsius") for kind in kinds])
    to_celsius = converts("to-celsius", "Fahrenheit", "Celsius", UnitChange("degF", "degC"))
    return [
        Interpretation(name="root", parent="", types=(*units, *world)),
        Interpretation(
            name="local",
            types=local,
            mappings=(Mapping("Local0", "World0", "in"),),
            rules=(Rule("Fahrenheit", "to-celsius"),),
            conversions=(to_celsius,),
        ),
    ]


def _types(name: str, form: Form, kinds: list[str]) -> tuple[ComplexType, ...]:
    if form == "flat":
        attributes = tuple(Attribute(f"a{n}", kind) for n, kind in enumerate(kinds))
        return (ComplexType(f"{name}0", attributes),)
    types = []
    for number, kind in enumerate(kinds):
        below = (Attribute("below", f"{name}{number + 1}"),) if number + 1 < len(kinds) else ()
        types.append(ComplexType(f"{name}{number}", (Attribute(f"a{number}", kind), *below)))
    return tuple(types)


def event(form: Form, affected: int, seed: int) -> dict[str, Any]:
    """An event of the type."""
    values: list[Any] = [
        float(seed % 97 + n) if n < affected else f"text {n}" for n in range(ATTRIBUTES)
    ]
    if form == "flat":
        return {f"a{n}": value for n, value in enumerate(values)}
    found: dict[str, Any] = {}
    for n in range(ATTRIBUTES - 1, -1, -1):
        found = {f"a{n}": values[n], **({"below": found} if found else {})}
    return found


def many_rules(rules: int, share: float) -> Interpretations:
    """A hundred event types of fifteen attributes, and rules of which each meets its own."""
    affected = max(1, round(ATTRIBUTES * share))
    types = []
    for number in range(TYPES_PER_INTERPRETATION):
        attributes = tuple(
            Attribute(f"a{n}", "number" if n < affected else "text") for n in range(ATTRIBUTES)
        )
        types.append(ComplexType(f"T{number}", attributes))
    declared = tuple(Rule(f"T{number}.number", "f") for number in range(rules))
    child = Interpretation(
        name="child",
        types=tuple(types),
        rules=declared,
        conversions=(converts("f", "number", "number", Formula(2.0)),),
    )
    held, found = load([child])
    assert "child" in held, found
    return held


class Figures(msgspec.Struct):
    """What was measured; rates are events a second."""

    events_per_second: dict[str, float]
    generation_ms_per_1000: dict[str, float]


def measure(clock: Clock, *, events: int = 10_000, generations: int = 1_000) -> Figures:
    """Takes about ten seconds at the default sizes."""
    rates: dict[str, float] = {}
    forms: tuple[Form, ...] = ("flat", "deep")
    for form in forms:
        for affected in (1, 5, 15):
            rates |= _rates(clock, form, affected, events)
    times = {
        f"{rules} rules, {share:.0%} affected": _generation_ms(clock, rules, share, generations)
        for rules in (1, 10, 50, 100)
        for share in (0.1, 0.5, 1.0)
    }
    return Figures(rates, times)


def _rates(clock: Clock, form: Form, affected: int, events: int) -> dict[str, float]:
    given = family(form, affected)
    held, found = load(given)
    assert "local" in held, found
    change = make_transformer(held, "local", "Local0", "in")
    values = [event(form, affected, number) for number in range(events)]
    label = f"{form}, {affected} of {ATTRIBUTES}"
    judge = Judge(given, {})
    few = values[: max(events // 100, 10)]
    columns = columns_of(change.plan)
    numbers = _columns(values, form, affected)
    return {
        f"generated: {label}": events / _seconds(clock, lambda: change.batch(values)),
        f"reflective: {label}": len(few)
        / _seconds(clock, lambda: [judge.transform(each, "Local0", "in") for each in few], 1),
        f"columns: {label}": events / _seconds(clock, lambda: apply_formulas(columns, numbers)),
    }


def _columns(values: list[Any], form: Form, affected: int) -> dict[ColumnPath, Numbers]:
    found: dict[ColumnPath, Numbers] = {}
    for n in range(affected):
        path = (f"a{n}",) if form == "flat" else (*("below",) * n, f"a{n}")
        found[path] = np.array([_at(value, path) for value in values])
    return found


def _at(value: Any, path: ColumnPath) -> Any:
    for name in path:
        value = value[name]
    return value


def _seconds(clock: Clock, work: Callable[[], object], rounds: int = 3) -> float:
    """The best of some rounds."""
    found = []
    for _ in range(rounds):
        before = clock.steady_ns()
        work()
        found.append((clock.steady_ns() - before) / 1e9)
    return min(found)


def _generation_ms(clock: Clock, rules: int, share: float, generations: int) -> float:
    """Resolving, fitting, writing and compiling, per thousand."""
    held = many_rules(rules, share)
    chain = held.chain("child")

    def work() -> None:
        for made in range(generations):
            if made % TYPES_PER_INTERPRETATION == 0:
                checked = Checked(chain)  # nothing resolved yet
            plan = checked.plan(f"T{made % rules}", "in")
            assert plan is not None
            Transformer(plan, checked.scope.types)

    return _seconds(clock, work, 1) * 1_000 * 1_000 / generations
