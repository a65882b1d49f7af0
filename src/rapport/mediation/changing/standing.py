"""What is in force after the files of a site and all changes, in their order. [ME-6, ME-7, ME-12]

Pure, and slow enough to be done beside the event loop. A file that was changed later wins over
changes of the same interpretation: what it says now is what people read. Root only grows: of what
was added to it at run time, that stays which the files do not contradict.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Literal

import msgspec

from rapport.core.errors import InvalidInput, Problem
from rapport.mediation.changing.fields_change import (
    AnyChange,
    DeclareFields,
    other_form,
    read_fields,
    same_meaning,
)
from rapport.mediation.changing.keeping import (
    Changed,
    Kept,
    KeptChange,
    kind_of,
    target_of,
    targets,
)
from rapport.mediation.changing.limits import check_changes, check_formats, unknown_function
from rapport.mediation.from_files import FromFiles, ProblemsByName
from rapport.mediation.in_force import InForce, has_errors
from rapport.mediation.interpretation import FormatChoice
from rapport.mediation.interpretation import Interpretation as FieldsForm
from rapport.mediation.model.changes import Augment, Change, Declare, Remove, apply_change
from rapport.mediation.model.interpretation import ROOT
from rapport.mediation.model.interpretation import Interpretation as TypedForm
from rapport.mediation.model.interpretations import Interpretations

State = Literal["in force", "lost", "refused"]


class Outcome(msgspec.Struct, frozen=True):
    """What became of a change; `lost` to a file that was changed later."""

    state: State
    problems: tuple[Problem, ...] = ()


class Standing:
    """One state of everything; a change gives the next. Ask from one thread at a time."""

    def __init__(
        self, files: FromFiles, in_force: InForce, waiting: Mapping[str, TypedForm]
    ) -> None:
        """`waiting`: of the files, refused so far; a change may bring what they lack."""
        self.files, self.in_force, self._waiting = files, in_force, waiting

    @property
    def waiting(self) -> tuple[str, ...]:
        """Names of those in files that wait for what they lack."""
        return tuple(self._waiting)

    @staticmethod
    def from_files(files: FromFiles) -> tuple[Standing, ProblemsByName]:
        """Before any change, and the problems of the files."""
        in_force, problems = files.taken_in()
        waiting = {
            name: form
            for name, form in files.typed.items()
            if name in in_force.refused and name != ROOT
        }
        return Standing(files, in_force, waiting), problems

    def tried(self, changed: Changed) -> tuple[Standing, tuple[Problem, ...]]:
        """The state after changes made together; this one when an error is among the problems, or
        when everything is so already.
        """
        problems = check_changes(changed.changes, self.files.functions)
        problems += check_formats(changed.formats, [*targets(changed)])
        typed, fields = self.in_force.typed, dict(self.in_force.fields)
        for change in _needed(typed, changed.changes):
            if has_errors(problems):
                break
            if isinstance(change, DeclareFields) or _removes(change, fields):
                problems += self._change_fields(change, typed, fields)
                continue
            problems += _form_problems(change, fields)
            typed, found = _applied(typed, change)
            problems += found
        problems = sorted(dict.fromkeys(problems), key=lambda each: each.severity != "error")
        formats = self._formats(typed, changed)
        if has_errors(problems) or self._is_so(typed, formats, fields):
            return self, tuple(problems)
        return self._with(typed, formats, self._waiting, fields)._with_waiting(), tuple(problems)

    def _change_fields(
        self, change: AnyChange, typed: Interpretations, fields: dict[str, FieldsForm]
    ) -> list[Problem]:
        """Puts a declaration of the fields form into `fields`, or takes it out."""
        if not isinstance(change, DeclareFields):
            del fields[target_of(change)]
            return []
        if change.name in typed or change.name in self.files.typed:
            return [other_form(change.name, "typed")]
        found, problems = read_fields(change, self.files.tables)
        allowed = self.files.functions
        for rule in found.conversions if found is not None else ():
            if ":" in rule.call and rule.call not in allowed:
                problems.append(unknown_function(change.name, rule.call))
        if found is not None:
            fields[change.name] = found
        return problems

    def _is_so(
        self,
        typed: Interpretations,
        formats: Mapping[str, FormatChoice],
        fields: Mapping[str, FieldsForm],
    ) -> bool:
        now = self.in_force
        same = _says_the_same(typed, now.typed) and formats == now.formats
        return same and same_meaning(fields, now.fields)

    def after(self, kept: KeptChange, since_files: Mapping[str, int]) -> tuple[Standing, Outcome]:
        """The state after a change of the log, and what became of that."""
        lost = [
            name
            for name in targets(kept.changed)
            if name != ROOT and kept.changed.number < since_files.get(name, 0)
        ]
        if lost:
            said = all(self._is_said_by_file(change) for change in kept.changed.changes)
            return self, Outcome("lost", () if said else (_lost(kept, lost),))
        new, problems = self.tried(kept.changed)
        return new, Outcome("refused" if has_errors(problems) else "in force", problems)

    def _is_said_by_file(self, change: AnyChange) -> bool:
        if isinstance(change, DeclareFields):
            found, own = read_fields(change)[0], self.files.fields.get(change.name)
            return found is not None and own is not None and found.meaning() == own.meaning()
        return (
            isinstance(change, Declare)
            and self.files.typed.get(change.interpretation.name) == change.interpretation
        )

    def _formats(self, typed: Interpretations, changed: Changed) -> dict[str, FormatChoice]:
        formats = {name: one for name, one in self.in_force.formats.items() if name in typed}
        for change in changed.changes:
            if isinstance(change, Declare):
                formats.pop(change.interpretation.name, None)
        named = {
            name: changed.formats[name] for name in targets(changed) if name in changed.formats
        }
        return formats | {name: one for name, one in named.items() if name in typed}

    def _with(
        self,
        typed: Interpretations,
        formats: Mapping[str, FormatChoice],
        waiting: Mapping[str, TypedForm],
        fields: Mapping[str, FieldsForm] | None = None,
    ) -> Standing:
        return Standing(self.files, self.in_force.with_typed(typed, formats, fields), waiting)

    def _with_waiting(self) -> Standing:
        """With those of the files that can be in force now."""
        found: Standing = self
        while (more := found._first_of_waiting()) is not None:
            found = more
        return found

    def _first_of_waiting(self) -> Standing | None:
        for name, form in self._waiting.items():
            if name in self.in_force.typed or name in self.in_force.fields:
                continue
            typed, problems = _applied(self.in_force.typed, Declare(form))
            if not has_errors(problems):
                waiting = {each: one for each, one in self._waiting.items() if each != name}
                said = self.files.formats
                own = {name: said[name]} if name in said else {}
                return self._with(typed, {**self.in_force.formats, **own}, waiting)
        return None


class Together(msgspec.Struct, frozen=True):
    """What files and changes come to."""

    standing: Standing
    outcomes: dict[str, Outcome]
    """What became of each change, by its id."""
    problems: ProblemsByName
    """Of the files."""


def put_together(files: FromFiles, kept: Kept, said: Mapping[str, str]) -> Together:
    """Files, then all changes that they have not overtaken.

    Costs the checks of every interpretation and of every change.
    """
    standing, problems = Standing.from_files(files)
    since_files = kept.since_files(said)
    outcomes: dict[str, Outcome] = {}
    for change in kept.changes():
        standing, outcomes[change.id] = standing.after(change, since_files)
    return Together(standing, outcomes, problems)


def _applied(typed: Interpretations, change: Change) -> tuple[Interpretations, tuple[Problem, ...]]:
    try:
        return apply_change(typed, change)
    except InvalidInput as error:  # a name that nobody knows
        return typed, error.problems_found()


def _removes(change: AnyChange, fields: Collection[str]) -> bool:
    return isinstance(change, Remove) and change.name in fields


def _form_problems(change: AnyChange, fields: Collection[str]) -> list[Problem]:
    """What forbids a change of the typed form because of the name."""
    name = target_of(change)
    return [other_form(name, "fields")] if name in fields else []


def _needed(typed: Interpretations, changes: Iterable[AnyChange]) -> Iterator[AnyChange]:
    """Without what root has already: files may have caught up with what was added to it."""
    known = set(typed.root.types)
    for change in changes:
        if isinstance(change, Augment) and change.name == ROOT:
            new = tuple(one for one in change.types if one not in known)
            yield msgspec.structs.replace(change, types=new)
        else:
            yield change


def _says_the_same(one: Interpretations, other: Interpretations) -> bool:
    return (one.roots, one.replacements, one.held) == (other.roots, other.replacements, other.held)


def _lost(kept: KeptChange, names: Iterable[str]) -> Problem:
    made = ", ".join(f"{kind_of(change)} {target_of(change)}" for change in kept.changed.changes)
    return Problem(
        code="interpretation.change_lost",
        message=f"{made} is not in force: the file of {', '.join(names)} was changed after it",
        hint="what the file says counts; make the change again if it is still wanted",
        severity="warning",
    )
