"""A generated transformer, ready to be called. [ME-8]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rapport.mediation.model import runtime
from rapport.mediation.model.generator import generate
from rapport.mediation.model.interpretation import Direction
from rapport.mediation.model.interpretations import Interpretations
from rapport.mediation.model.plan import Plan
from rapport.mediation.model.runtime import Functions, Memory, callable_of
from rapport.mediation.model.types import Types
from rapport.mediation.rejection import Rejected

_NAMES = ("number", "finite", "an_object", "a_list", "missing", "null", "unknown_type")


def make_transformer(
    interpretations: Interpretations,
    name: str,
    type_name: str,
    direction: Direction,
    functions: Functions | None = None,
    memory: Memory | None = None,
) -> Transformer:
    """The transformer for events of a type between an interpretation and root.

    Raises InterpretationError when the type cannot be passed or a function is not there. Takes
    some milliseconds; keep it for as long as the interpretations are in force.
    """
    plan = interpretations.plan(name, type_name, direction)
    return Transformer(plan, interpretations.types_met(name), functions, memory)


class BatchResult(msgspec.Struct):
    """Results in order, and what was rejected with its place in the batch."""

    results: list[Any]
    rejected: list[tuple[int, Rejected]]


class Transformer:
    """Turns events of one type in one direction; values in, values out, nothing shared is changed.

    Holds no state of its own: stateful conversions keep theirs in `memory`.
    """

    def __init__(
        self,
        plan: Plan,
        types: Types,
        functions: Functions | None = None,
        memory: Memory | None = None,
    ) -> None:
        """Raises InterpretationError when a function of the site is not there."""
        self.plan = plan
        generated = generate(plan)
        self.source = generated.source
        names: dict[str, Any] = {name: getattr(runtime, name) for name in _NAMES}
        memory = memory if memory is not None else Memory()
        for number, conversion in enumerate(generated.conversions):
            names[f"convert_{number}"] = callable_of(conversion, functions or {}, memory, types)
        place = f"<{plan.interpretation} {plan.direction} {plan.type}>"
        exec(compile(self.source, place, "exec"), names)
        self._transform = names["transform"]

    def __call__(self, value: Any) -> Any:
        """The value on the other side, a list of them if the plan gives several; or Rejected."""
        return self._transform(value)

    def batch(self, values: Sequence[Any]) -> BatchResult:
        """All values; one that is rejected does not stop the others."""
        transform = self._transform
        results: list[Any] = []
        rejected: list[tuple[int, Rejected]] = []
        append = results.extend if self.plan.several else results.append
        for index, value in enumerate(values):
            try:
                append(transform(value))
            except Rejected as rejection:
                rejected.append((index, rejection))
        return BatchResult(results, rejected)
