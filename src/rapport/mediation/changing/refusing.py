"""Why a change of interpretations is not made. [ME-6, ME-7]"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from rapport.core.errors import InterpretationError, Problem
from rapport.mediation.binding import SourceBinding
from rapport.mediation.fits_source import source_problems
from rapport.mediation.in_force import InForce
from rapport.mediation.interpretation import Place
from rapport.mediation.resolve import check_binding

_CONFLICTS = ("interpretation.in_use",)


class ChangeRefused(InterpretationError):
    """A change that fails its checks; everything is as it was. `problems` lists every fault."""

    code = "change.refused"
    status = 422

    def __init__(self, problems: Iterable[Problem], *, code: str | None = None) -> None:
        super().__init__(problems, code=code)
        errors = [each for each in self.problems if each.severity == "error"]
        if errors and all(each.code in _CONFLICTS for each in errors):
            self.status = 409
        if errors and code is None:
            self.code = errors[0].code


def in_use(removed: Iterable[str], bindings: Iterable[SourceBinding]) -> Iterator[Problem]:
    """What speaks against removing interpretations: a source that speaks one."""
    names = set(removed)
    for binding in bindings:
        if binding.interpretation in names:
            yield Problem(
                code="interpretation.in_use",
                message=f"{binding.interpretation} cannot be removed: "
                f"source {binding.source!r} speaks it",
                hint="let the source speak another one first",
            )


def newly_wrong(
    bindings: Iterable[SourceBinding], before: InForce, after: InForce
) -> Iterator[Problem]:
    """What a change keeps from sources that were understood; it is made all the same."""
    for binding in bindings:
        known = _misfits(binding, before)
        for problem in _misfits(binding, after):
            if problem not in known:
                yield msgspec.structs.replace(problem, severity="warning")


def _misfits(binding: SourceBinding, in_force: InForce) -> list[Problem]:
    """Of either form; wherever it stands, so that a misfit known before is known again."""
    found = source_problems(binding, in_force)
    said = in_force.fields.get(binding.interpretation)
    if said is not None and not found:
        found = check_binding(msgspec.structs.replace(said, place=Place()), binding)
    return found
