"""Random typed interpretations, generated and read directly: the third way that Spark's is held
against by `tests/integration/test_spark_mediation.py`. [ME-8, ME-14]
"""

from __future__ import annotations

import json
import math
from random import Random
from typing import Any

import pytest

from rapport.mediation.codegen.transformer import make_transformer
from rapport.mediation.conversion.conversions import Cut, Gather, Join
from rapport.mediation.conversion.lookups import ConversionEnvironment
from rapport.mediation.rejections import RejectedValue
from support.judge.mediation import Judge
from support.judge.mediation_conversions import World
from support.varied.interpretations import TABLES, Case, in_force_of, ontology_of, payload
from support.varied.mediated_rows import meanings_with
from support.varied.typed_form import typed_case

_KEYS = {"tags": "tag", "sensors": "device"}
WORLD = World(
    {
        name: (_KEYS[name], [{**row, _KEYS[name]: key} for key, row in rows.items()])
        for name, rows in TABLES.items()
    }
)


@pytest.mark.slow
def test_generated_python_gives_what_a_direct_reading_gives() -> None:
    chance = Random(99)
    cases = [case for n in range(120) if _can_judge(case := typed_case(f"typed{n}", chance))]
    meanings = meanings_with(in_force_of(cases), cases, ontology_of(cases))
    typed = meanings.in_force.typed
    assert len(cases) > 25
    compared = 0
    for case in cases:
        name = case.binding.source
        around = ConversionEnvironment(meanings.tables)
        transformer = make_transformer(typed, name, "Row", "in", {}, surroundings=around)
        judge = Judge(typed.chain(name), {}, WORLD)
        for _ in range(25):
            value = _object(payload(case, chance))
            if value is None or "@type" in value:
                continue
            try:
                direct = _outcome(lambda each: judge.transform(each, "Row", "in"), value)  # noqa: B023
            except (OverflowError, ValueError):
                continue  # the judge has no words for the last hours, and for faults of tables
            found = _outcome(transformer, value)
            assert _is_close(found, direct, 1e-9 * _largest(value)), (
                value,
                found,
                direct,
                transformer.source,
            )
            compared += 1
    assert compared > 400


def _can_judge(case: Case) -> bool:
    """The judge has no words for joining, cutting and gathering."""
    assert case.typed is not None
    return not any(isinstance(each.how, (Join, Cut, Gather)) for each in case.typed.conversions)


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _outcome(transform: Any, value: Any) -> tuple[str, Any]:
    try:
        return "value", transform(json.loads(json.dumps(value)))
    except RejectedValue as rejected:
        return "rejected", rejected.code


def _largest(value: Any) -> float:
    """Of the numbers in it: where large ones cancel, what is left has errors of their size."""
    if isinstance(value, dict):
        return max(map(_largest, value.values()), default=1.0)
    if isinstance(value, (int, float)):
        return max(1.0, min(abs(value), 1e308))
    return 1.0


def _is_close(one: Any, other: Any, error: float) -> bool:
    """Equal but for the last digits of what is calculated; those are compared between the node and
    Spark.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_close(one[n], other[n], error) for n in one)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return all(_is_close(*each, error) for each in zip(one, other, strict=True))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=error)
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)
