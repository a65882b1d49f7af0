"""A generated transformer, ready to be called. [ME-8]"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from rapport.mediation.codegen import runtime
from rapport.mediation.codegen.generator import (
    GeneratedCode,
    generate,
    generate_batch,
    split_functions,
)
from rapport.mediation.codegen.runtime import callable_of
from rapport.mediation.conversion.lookups import ConversionEnvironment
from rapport.mediation.interpretations.model import Direction
from rapport.mediation.interpretations.registry import InterpretationRegistry
from rapport.mediation.memory import ConversionMemory, Functions
from rapport.mediation.plans import Plan
from rapport.mediation.rejections import Rejected
from rapport.mediation.types import Types

_NAMES = ("number", "finite", "an_object", "a_list", "missing", "null", "unknown_type")

BatchTransform = Callable[[Sequence[Any], list[Any], list[tuple[int, Rejected]]], None]
"""A batch, and two empty lists for its results and its rejections."""


def make_transformer(
    interpretations: InterpretationRegistry,
    name: str,
    type_name: str,
    direction: Direction,
    functions: Functions | None = None,
    memory: ConversionMemory | None = None,
    surroundings: ConversionEnvironment | None = None,
    *,
    own: bool = False,
) -> Transformer:
    """The transformer for events of a type between an interpretation and root.

    `own`: the values it is given are given away, and it may write into them; copying costs as much
    as five formulas.

    Raises InterpretationError when the type cannot be passed or a function is not there. Takes
    some milliseconds; keep it for as long as the interpretations are in force.
    """
    plan = interpretations.plan(name, type_name, direction)
    types = interpretations.types_met(name)
    return Transformer(plan, types, functions, memory, surroundings, own=own)


class BatchResult(msgspec.Struct):
    """Results in order, and what was rejected with its place in the batch."""

    results: list[Any]
    rejected: list[tuple[int, Rejected]]


class Transformer:
    """Turns events of one type in one direction; values in, values out. What it is given is not
    changed, unless it is given away (`own`); then it is used up, even when it is rejected.

    Holds no state of its own: stateful conversions keep theirs in `memory`.
    """

    def __init__(
        self,
        plan: Plan,
        types: Types,
        functions: Functions | None = None,
        memory: ConversionMemory | None = None,
        surroundings: ConversionEnvironment | None = None,
        *,
        own: bool = False,
    ) -> None:
        """Raises InterpretationError when a function of the site is not there."""
        self.plan, self._own = plan, own
        self._types, self._functions = types, functions or {}
        self._memory = memory if memory is not None else ConversionMemory()
        self._surroundings = surroundings if surroundings is not None else ConversionEnvironment()
        generated = generate(plan, own=own)
        self.source = generated.source
        self.conversions = generated.conversions
        """What it calls; formulas are written into the text instead."""
        self._transform: Callable[[Any], Any] = self._compiled(generated)["transform"]
        self._transform_all: BatchTransform | None = None

    def __call__(self, value: Any) -> Any:
        """The value on the other side, a list of them if the plan gives several; or Rejected."""
        return self._transform(value)

    def batch(self, values: Sequence[Any]) -> BatchResult:
        """All values; one that is rejected does not stop the others.

        The first call writes and compiles a function of its own, in about the time that the
        transformer itself took.
        """
        if self._transform_all is None:
            generated = generate_batch(self.plan, own=self._own)
            made = self._compiled(generated)["transform_all"] if generated else self._one_by_one
            self._transform_all = made
        found = BatchResult([], [])
        self._transform_all(values, found.results, found.rejected)
        return found

    def _one_by_one(
        self, values: Sequence[Any], results: list[Any], rejected: list[tuple[int, Rejected]]
    ) -> None:
        append = results.extend if self.plan.several else results.append
        for index, value in enumerate(values):
            try:
                append(self._transform(value))
            except Rejected as rejection:
                rejected.append((index, rejection))

    def _compiled(self, generated: GeneratedCode) -> dict[str, Any]:
        """The names that running the text defines."""
        names: dict[str, Any] = {name: getattr(runtime, name) for name in _NAMES}
        names["Rejected"] = Rejected
        for number, conversion in enumerate(generated.conversions):
            names[f"convert_{number}"] = callable_of(
                conversion, self._functions, self._memory, self._types, self._surroundings
            )
        place = f"<{self.plan.interpretation} {self.plan.direction} {self.plan.type}>"
        for text in split_functions(
            generated.source
        ):  # one by one: others want the interpreter, too
            exec(compile(text, place, "exec"), names)
        return names
