"""A change somebody wants, considered before anything is done. [ME-6, ME-7]

Pure, and done beside the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from rapport.core.errors import Problem, StaleVersion
from rapport.mediation.binding import SourceBinding
from rapport.mediation.changing.keeping import Changed, Kept, KeptChange
from rapport.mediation.changing.refusing import ChangeRefused, in_use, newly_wrong
from rapport.mediation.changing.standing import Standing, Together
from rapport.mediation.changing.wanting import Wanted
from rapport.mediation.in_force import has_errors
from rapport.mediation.model.changes import Remove


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What a change did. Nothing is changed when everything was so already."""

    changed: bool
    id: str = ""
    number: int = 0
    versions: dict[str, str] = {}
    """Stamps of the interpretations that mean something else now, by name; "" for removed ones."""
    problems: tuple[Problem, ...] = ()
    """Warnings and hints."""


class Considered(msgspec.Struct, frozen=True):
    """A change that may be made, and what follows from it."""

    changed: Changed
    standing: Standing
    problems: tuple[Problem, ...]


def considered(
    now: Together, kept: Kept, wanted: Wanted, bindings: Iterable[SourceBinding], by: str
) -> Done | Considered:
    """What would be in force; `Done` when everything is so already, or was just asked.

    Raises ChangeRefused with every problem, or StaleVersion when something is not as expected.
    """
    standing, last = now.standing, kept.last_change()
    _check_expected(standing.in_force.stamps, wanted.expects)
    changed = _as_written(
        Changed(
            number=kept.next_number(),
            after=last.id if last is not None else "",
            changes=wanted.changes,
            formats=dict(wanted.formats),
            by=by,
            node=kept.node,
        )
    )
    if last is not None and _is_repeated(changed, last, now):
        return Done(changed=False, id=last.id, number=last.changed.number)
    bound = list(bindings)
    removed = [each.name for each in changed.changes if isinstance(each, Remove)]
    spoken = [*in_use(removed, bound)]
    new, problems = standing.tried(changed)
    if has_errors(problems) or spoken:
        raise ChangeRefused([*spoken, *problems])
    if new is standing:
        return Done(changed=False, problems=problems)
    wrong = newly_wrong(bound, standing.in_force, new.in_force)
    return Considered(changed, new, (*problems, *wrong))


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """The stamps that are others now, by name; "" for what is gone."""
    names = before.keys() | after.keys()
    return {
        name: after.get(name, "") for name in sorted(names) if before.get(name) != after.get(name)
    }


def _check_expected(stamps: Mapping[str, str], expects: Mapping[str, str]) -> None:
    for name, stamp in expects.items():
        if stamps.get(name, "") != stamp:
            now = stamps.get(name) or "not there"
            message = f"{name[:100]!r} is {now[:120]}, not {stamp[:120]!r}"
            raise StaleVersion(message, hint="look at it again, then ask again")


def _as_written(changed: Changed) -> Changed:
    """As it will be read from the log: a number written as 5 is then 5.0."""
    return msgspec.json.decode(msgspec.json.encode(changed), type=Changed)


def _is_repeated(changed: Changed, last: KeptChange, now: Together) -> bool:
    """One that a file overtook meanwhile is made again; one in force is not made twice."""
    same = (changed.changes, changed.formats) == (last.changed.changes, last.changed.formats)
    return same and now.outcomes[last.id].state == "in force"
