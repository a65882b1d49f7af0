"""What gives the events of one source their meaning, whichever form its interpretation has. [ME-5,
ME-8, ME-13]
"""

from __future__ import annotations

from rapport.core.errors import InterpretationError, UnknownName
from rapport.mediation.binding import SourceBinding
from rapport.mediation.formatted import FormattedTransformer
from rapport.mediation.in_force import InForce
from rapport.mediation.interpretation import FormatChoice, Interpretation
from rapport.mediation.lane import GivesMeaning
from rapport.mediation.lookups import Lookups
from rapport.mediation.memory import SourceMemory
from rapport.mediation.transformer import Conversions, Transformer
from rapport.mediation.typed import TypedTransformer


def build_meaning(
    binding: SourceBinding,
    in_force: InForce,
    *,
    memory: SourceMemory | None = None,
    lookups: Lookups | None = None,
    conversions: Conversions | None = None,
) -> GivesMeaning:
    """Checks, generates, compiles; raises InterpretationError or UnknownName with the reason."""
    name = binding.interpretation
    if name in in_force.refused:
        raise InterpretationError(in_force.refused[name])
    if name in in_force.typed:
        return TypedTransformer(binding, in_force, memory=memory)
    interpretation = in_force.fields.get(name)
    if name and interpretation is None:
        known = [*in_force.fields, *in_force.typed.names]
        raise UnknownName("interpretation", name, known, code="interpretation.unknown")

    def build(variant: Interpretation | None) -> Transformer:
        return Transformer.build(variant, binding, lookups=lookups, conversions=conversions)

    if interpretation is None or interpretation.format == FormatChoice():
        return build(interpretation)
    return FormattedTransformer(interpretation, build, memory or SourceMemory())
