"""What the files of a site say of interpretations, and which functions they use. [ME-7, ME-12]"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import msgspec

from rapport.core.errors import Problem
from rapport.core.ids import content_id
from rapport.mediation.concepts import Concepts
from rapport.mediation.in_force import InForce, take_in_each
from rapport.mediation.interpretation import FormatChoice
from rapport.mediation.interpretation import Interpretation as FieldsForm
from rapport.mediation.model.conversions import functions_of
from rapport.mediation.model.interpretation import Interpretation as TypedForm
from rapport.mediation.rules import TableColumns

ProblemsByName = list[tuple[str, tuple[Problem, ...]]]
"""By the name of the interpretation that they are about, in the order they were found."""


class FromFiles(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """All that is declared in files; a value.

    `said` has a digest of each interpretation as the files say it, before anything is derived
    from units: by it a changed file is told from a changed ontology. `unread` are those that could
    not be read at all, with the reasons.
    """

    fields: Mapping[str, FieldsForm] = {}
    typed: Mapping[str, TypedForm] = {}
    formats: Mapping[str, FormatChoice] = {}
    concepts: Concepts = {}
    said: Mapping[str, str] = {}
    unread: Mapping[str, tuple[Problem, ...]] = {}
    tables: TableColumns | None = None
    """Tables of the site with their columns, for changes that name some; None: not checked."""

    @cached_property
    def functions(self) -> frozenset[str]:
        """Names of the site's functions that its files use: changes may use these and no others,
        since who may change a meaning must not thereby run any function there is.
        """
        typed = (one for each in self.typed.values() for one in each.conversions)
        named = {name for conversion in typed for name in functions_of(conversion)}
        plain = (rule for each in self.fields.values() for rule in each.conversions)
        return frozenset(named | {rule.call for rule in plain})

    def taken_in(self) -> tuple[InForce, ProblemsByName]:
        """Everything checked together, with the problems by name; what was not read is refused."""
        in_force, problems = take_in_each(
            self.fields, self.typed.values(), concepts=self.concepts, formats=self.formats
        )
        refused = {**self.unread, **in_force.refused}
        return in_force.with_parts(in_force.typed, in_force.formats, refused), problems


def digest_of(interpretation: TypedForm | FieldsForm, *more: object) -> str:
    """What an interpretation says, in few digits; `more` is what belongs to it besides."""
    return content_id(*(_text(part) for part in (interpretation, *more)))[:16]


def _text(part: object) -> str:
    return msgspec.json.encode(part, order="deterministic").decode()
