"""A compiled transformer for events of one type. [ME-8]"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from rapport.mediation.codegen.generator import (
    GeneratedCode,
    generate,
    generate_batch,
    split_functions,
)
from rapport.mediation.codegen.runtime import GENERATED_NAMES, callable_of
from rapport.mediation.conversion.lookups import ConversionEnvironment
from rapport.mediation.interpretations.model import Direction
from rapport.mediation.interpretations.registry import InterpretationRegistry
from rapport.mediation.memory import ConversionMemory, Functions
from rapport.mediation.plans import Plan
from rapport.mediation.rejections import Rejected
from rapport.mediation.types import Types

BatchTransform = Callable[[Sequence[Any], list[Any], list[tuple[int, Rejected]]], None]
"""Takes a batch and two empty lists for results and rejections."""


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
    """Builds the transformer for events of a type between an interpretation and the canonical
    model. `own`: the transformer may modify its input; copying costs as much as five formulas.
    Raises InterpretationError if the type cannot be passed or a function is missing. Takes some
    milliseconds; keep it as long as the interpretations are in force.
    """
    plan = interpretations.plan(name, type_name, direction)
    types = interpretations.types_met(name)
    return Transformer(plan, types, functions, memory, surroundings, own=own)


class BatchResult(msgspec.Struct):
    """Results in order, and rejections with their index in the batch."""

    results: list[Any]
    rejected: list[tuple[int, Rejected]]


class Transformer:
    """Converts values of one type in one direction. The input is not modified unless it is
    owned (`own`), then even if it is rejected. Stateless: stateful conversions keep their state
    in `memory`.
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
        """Raises InterpretationError if a site function is missing."""
        self.plan, self._own = plan, own
        self._types, self._functions = types, functions or {}
        self._memory = memory if memory is not None else ConversionMemory()
        self._surroundings = surroundings if surroundings is not None else ConversionEnvironment()
        generated = generate(plan, own=own)
        self.source = generated.source
        self.conversions = generated.conversions
        """The called conversions; formulas are inlined."""
        self._transform: Callable[[Any], Any] = self._compiled(generated)["transform"]
        self._transform_all: BatchTransform | None = None

    def __call__(self, value: Any) -> Any:
        """Returns the converted value, a list if the plan gives several; raises Rejected."""
        return self._transform(value)

    def batch(self, values: Sequence[Any]) -> BatchResult:
        """Converts all values; a rejection does not stop the others. The first call
        compiles a function of its own, in about the time the transformer took.
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
        """Executes the text and returns its names."""
        names = dict(GENERATED_NAMES)
        for number, conversion in enumerate(generated.conversions):
            names[f"convert_{number}"] = callable_of(
                conversion, self._functions, self._memory, self._types, self._surroundings
            )
        place = f"<{self.plan.interpretation} {self.plan.direction} {self.plan.type}>"
        for text in split_functions(
            generated.source
        ):  # one by one, to release the interpreter lock in between
            exec(compile(text, place, "exec"), names)
        return names
