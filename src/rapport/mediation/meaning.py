"""What gives the events of one source their meaning, whichever form its interpretation has. [ME-5,
ME-8, ME-13]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

from rapport.core.errors import InterpretationError, UnknownName
from rapport.mediation.binding import SourceBinding
from rapport.mediation.conversions import WorkerConversions
from rapport.mediation.formatted import FormattedTransformer
from rapport.mediation.in_force import InForce
from rapport.mediation.interpretation import FormatChoice, Interpretation
from rapport.mediation.lookups import Lookups, NoTables
from rapport.mediation.memory import SourceMemory
from rapport.mediation.model.references import functions_needed
from rapport.mediation.model.surroundings import Context, SiteTables, Surroundings
from rapport.mediation.site_functions import SiteFunctions
from rapport.mediation.transformer import Transformer
from rapport.mediation.typed import TypedTransformer


class Grounds(NamedTuple):
    """All that the meaning of a source's events follows from."""

    in_force: InForce
    bindings: Mapping[str, SourceBinding]
    lookups: Lookups

    def of(self, source: str) -> tuple[object, ...]:
        """Equal for equal meanings."""
        binding = self.bindings.get(source)
        name = binding.interpretation if binding is not None else ""
        said = self.in_force.stamps.get(name) or self.in_force.refused.get(name)
        return binding, said, self.in_force.concepts, id(self.lookups)


Meaning = Transformer | FormattedTransformer | TypedTransformer
"""Each gives a meaning and can show the code by which it does."""


def build_meaning(
    binding: SourceBinding,
    in_force: InForce,
    *,
    memory: SourceMemory | None = None,
    lookups: Lookups | None = None,
    conversions: WorkerConversions | None = None,
    context: Context | None = None,
) -> Meaning:
    """Checks, generates, compiles; raises InterpretationError or UnknownName with the reason.

    `conversions`: the process that carries out functions of the site; `context`: what is so at
    present, for conversions that ask.
    """
    name = binding.interpretation
    if name in in_force.refused:
        raise InterpretationError(in_force.refused[name])
    if name in in_force.typed:
        needed = functions_needed(in_force.typed, name)
        return TypedTransformer(
            binding,
            in_force,
            memory=memory,
            functions=SiteFunctions(needed, conversions) if conversions else None,
            surroundings=Surroundings(cast("SiteTables", lookups or NoTables()), context),
        )
    interpretation = in_force.fields.get(name)
    if name and interpretation is None:
        known = [*in_force.fields, *in_force.typed.names]
        raise UnknownName("interpretation", name, known, code="interpretation.unknown")

    def build(variant: Interpretation | None) -> Transformer:
        return Transformer.build(variant, binding, lookups=lookups, conversions=conversions)

    if interpretation is None or interpretation.format == FormatChoice():
        return build(interpretation)
    return FormattedTransformer(interpretation, build, memory or SourceMemory())
