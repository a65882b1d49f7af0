"""Calls: pieces of work that a host hands out and takes back. [EN-1, EN-2]

A call looks at the knowledge when it is run, works on copies, and gives back what is to change; so
it may run at once, or in a thread while others go on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

from rapport.core.errors import InvalidInput, nearest_names
from rapport.ensemble.model.component import Component, changes_in, checked, scratch
from rapport.ensemble.model.faults import Fault, fault_of
from rapport.ensemble.model.processes import ProcessPlan
from rapport.ensemble.model.role import plan_of
from rapport.kernel.clock import Now

RAISED = (Exception, SystemExit)
"""What code of components may raise without ending the node."""


class Change(NamedTuple):
    """New values of some fields of a component, and all values that they were made from."""

    of: Component
    """Not of another one that has the same id since."""
    before: Mapping[str, Any]
    values: dict[str, Any]


class Looked(NamedTuple):
    """A pair that an evaluation looked at."""

    local: str
    """The coordinator, where both live here."""
    other: str
    version: int
    """Of the other's replica; 0: it lives here too."""
    is_formed: bool


class Outcome(NamedTuple):
    """What a call found."""

    changes: dict[str, Change]
    """By component id."""
    faults: tuple[Fault, ...] = ()
    pairs: int = 0
    """How many pairs an evaluation looked at."""
    formed: tuple[tuple[str, str], ...] = ()
    """Coordinator and member of each pair whose knowledge was exchanged."""
    looked_at: tuple[Looked, ...] = ()
    """Every pair, if that was asked for."""


class Call(ABC):
    """Something to be run by `run_call`, once."""

    __slots__ = ("component", "depth", "name", "now")

    def __init__(self, component: str, name: str, now: Now, depth: int) -> None:
        self.component, self.name, self.now, self.depth = component, name, now, depth
        """Whose, which process or ensemble, since when, and how many changes in a row led to it."""

    @abstractmethod
    def run(self) -> Outcome:
        """Works; may raise whatever the component's code raises."""


class ProcessCall(Call):
    """One run of a process."""

    __slots__ = ("of", "plan")

    def __init__(self, of: Component, plan: ProcessPlan, now: Now, depth: int) -> None:
        super().__init__(of.id, plan.name, now, depth)
        self.of, self.plan = of, plan

    def run(self) -> Outcome:
        plan, cls = self.plan, type(self.of)
        before = self.of.__dict__.copy()
        worked_on = scratch(before, cls, self.now.wall_ms, plan.reads)
        answer = getattr(cls, plan.name)(worked_on)
        if answer is not None:
            raise InvalidInput(
                f"the process {plan.name} returned {answer!r:.60}",
                code="ensemble.odd_answer",
                hint="a process returns nothing: it assigns to fields",
            )
        changed = changes_in(worked_on, before)
        _check_writes(cls, plan, changed)
        return Outcome({self.component: Change(self.of, before, checked_values(cls, changed))})


def run_call(call: Call) -> Outcome:
    """Runs it here and now; whatever its code raises is a fault in the outcome."""
    try:
        return call.run()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return failed(call, error)


def failed(call: Call, error: BaseException) -> Outcome:
    """The outcome of a call that raised."""
    fault = fault_of(
        error,
        "ensemble.raised",
        component=call.component,
        name=call.name,
        hint="nothing that it did was taken; it runs again when it is due",
    )
    return Outcome({}, (fault,))


def checked_values(cls: type[Component], changed: Mapping[str, Any]) -> dict[str, Any]:
    """New values as their types want them; raises InvalidInput for one that is of another type, or
    no field.
    """
    plan = plan_of(cls)
    values = {}
    for name, value in changed.items():
        field = plan.fields.get(name)
        if field is None:
            raise _no_field(cls, name)
        values[name] = checked(value, field, plan.name)
    return values


def _check_writes(cls: type[Component], plan: ProcessPlan, changed: Mapping[str, Any]) -> None:
    for name in changed:
        if name in plan.writes:
            continue
        if name not in plan_of(cls).fields:
            raise _no_field(cls, name)
        raise InvalidInput(
            f"the process {plan.name} changed {name!r}, which it does not declare",
            code="ensemble.undeclared_write",
            hint=f'add it: writes=(..., "{name}")',
        )


def _no_field(cls: type[Component], name: str) -> InvalidInput:
    near = nearest_names(name, plan_of(cls).fields)
    return InvalidInput(
        f"{cls.__name__} has no field {name!r} to write to",
        code="ensemble.unknown_field",
        hint=f"did you mean {near[0]!r}?"
        if near
        else "what processes and exchanges keep is declared as a field, perhaps Local",
    )
