"""Calls: runs of processes and evaluations of ensembles, as a host schedules them. [EN-1, EN-2]

A call reads the knowledge when it runs, works on copies and returns the changes. It can run at
once, or in a thread while the host goes on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from rapport.core.errors import InvalidInput, nearest_names
from rapport.ensemble.model.component import (
    Component,
    ProcessPlan,
    changes_in,
    checked,
    scratch,
    values_of,
)
from rapport.ensemble.model.ensemble import EnsemblePlan
from rapport.ensemble.model.faults import Fault, fault_of
from rapport.ensemble.model.replicas import ReplicaReading, View, reset
from rapport.ensemble.model.role import RoleType, plan_of
from rapport.kernel.clock import Now

RAISED = (Exception, SystemExit)
"""Exceptions of components' code that do not end the node."""


class Change(NamedTuple):
    """New values of some fields of a component, and all values that they were made from."""

    of: Component
    """Not of another one that has the same id since."""
    before: Mapping[str, Any]
    values: dict[str, Any]


class EvaluatedPair(NamedTuple):
    """A pair of components that an evaluation considered."""

    local: str
    """The coordinator, where both live here."""
    other: str
    version: int
    """Of the other's replica; 0: it lives here too."""
    is_formed: bool


class Outcome(NamedTuple):
    """The result of a call."""

    changes: dict[str, Change]
    """By component id."""
    faults: tuple[Fault, ...] = ()
    pairs: int = 0
    """How many pairs an evaluation looked at."""
    formed: tuple[tuple[str, str], ...] = ()
    """Coordinator and member of each pair whose knowledge was exchanged."""
    looked_at: tuple[EvaluatedPair, ...] = ()
    """Every evaluated pair, if tracing is on."""


class Call(ABC):
    """A piece of work for `run_call`, to be run once."""

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


Pair = tuple["_Side", "_Side"]


class Candidates:
    """Candidates for a role: components of this node, and replicas that list the role."""

    __slots__ = ("local", "remote")

    def __init__(self, local: Sequence[Component], remote: Sequence[ReplicaReading]) -> None:
        self.local, self.remote = local, remote


class EvaluationCall(Call):
    """One evaluation; costs (local x known) memberships, and one copy of each local component that
    exchanges.
    """

    __slots__ = ("_coordinators", "_faults", "_looked_at", "_members", "plan")

    def __init__(
        self,
        plan: EnsemblePlan,
        coordinators: Candidates,
        members: Candidates,
        now: Now,
        *,
        is_traced: bool = False,
    ) -> None:
        """With `is_traced` the outcome lists every evaluated pair."""
        super().__init__("", plan.name, now, 0)
        self.plan = plan
        self._looked_at: list[Pair] | None = [] if is_traced else None
        self._coordinators, self._members = coordinators, members
        self._faults: list[Fault] = []

    def run(self) -> Outcome:
        locals_ = self._local_sides()
        pairs, looked_at = self._members_found(locals_)
        try:
            changes = self._exchanged_together(pairs)
            formed = pairs
        except RAISED:
            for side in locals_.values():
                side.start_over()
            changes, formed = self._exchanged_one_by_one(pairs)
        return Outcome(
            changes,
            tuple(self._faults),
            looked_at,
            tuple((coordinator.id, member.id) for coordinator, member in formed),
            self._evaluated_pairs(formed) if self._looked_at else (),
        )

    # Membership

    def _local_sides(self) -> dict[str, _Side]:
        both = (*self._coordinators.local, *self._members.local)
        return {component.id: _Side(component, self.now.wall_ms) for component in both}

    def _members_found(self, locals_: dict[str, _Side]) -> tuple[list[Pair], int]:
        plan, pairs, looked_at = self.plan, [], 0
        coordinators = [locals_[component.id] for component in self._coordinators.local]
        members = [locals_[component.id] for component in self._members.local]
        if coordinators:
            remote = self._remote_sides(self._members.remote, plan.member, "member")
            for coordinator in coordinators:
                others = [one for one in members + remote if one is not coordinator]
                looked_at += len(others)
                pairs += [(coordinator, one) for one in self._chosen(coordinator, others)]
        if members:
            remote = self._remote_sides(self._coordinators.remote, plan.coordinator, "coordinator")
            for coordinator in remote:
                looked_at += len(members)
                pairs += [(coordinator, one) for one in self._chosen(coordinator, members)]
        return pairs, looked_at

    def _remote_sides(
        self, readings: Iterable[ReplicaReading], role: RoleType, side: str
    ) -> list[_Side]:
        """None, if nothing but that side, which is not here, is written to."""
        sides: list[_Side] = []
        if self.plan.writes == side:
            return sides
        now_ms = self.now.wall_ms
        for reading in readings:
            shape = reading.as_role(role)
            if shape is not None:
                sides.append(_RemoteSide(reading, View(reading, role, shape, now_ms)))
            elif role in reading.why_not:
                self._not_of_role(reading, role, reading.why_not.pop(role, ""))
        return sides

    def _chosen(self, coordinator: _Side, members: Sequence[_Side]) -> list[_Side]:
        membership, seen, chosen = self.plan.membership, coordinator.seen, []
        if self._looked_at is not None:
            self._looked_at += [(coordinator, member) for member in members]
        for member in members:
            try:
                answer = membership(seen, member.seen)
            except RAISED as error:
                self._raised("membership", error, coordinator, member)
                continue
            if answer is True or (answer is not False and self._is_yes(answer)):
                chosen.append(member)
        return chosen

    def _is_yes(self, answer: Any) -> bool:
        """Accepts numpy's booleans; any other value is a fault and counts as false."""
        if type(answer).__name__ in ("bool_", "bool"):
            return bool(answer)
        self._faults.append(odd_answer(self.plan.name, "membership", answer))
        return False

    # Exchanges

    def _exchanged_together(self, pairs: Sequence[Pair]) -> dict[str, Change]:
        """All on one copy of each component; raises when one fails."""
        exchange, writes = self.plan.exchange, self.plan.writes
        touched: dict[str, _Side] = {}
        for coordinator, member in pairs:
            exchange(
                coordinator.trial() if writes == "member" else coordinator.worked_on(),
                member.trial() if writes == "coordinator" else member.worked_on(),
            )
            coordinator.settle(touched)
            member.settle(touched)
        return {name: change for name, side in touched.items() if (change := side.change()).values}

    def _exchanged_one_by_one(self, pairs: Sequence[Pair]) -> tuple[dict[str, Change], list[Pair]]:
        """Each on copies of its own, so that one that fails leaves nothing behind."""
        formed: list[Pair] = []
        touched: dict[str, _Side] = {}
        for coordinator, member in pairs:
            try:
                self.plan.exchange(coordinator.trial(), member.trial())
                coordinator.check_trial()
                member.check_trial()
            except RAISED as error:
                self._raised("exchange", error, coordinator, member)
                continue
            if self.plan.writes != "member":
                coordinator.adopt_trial()
            if self.plan.writes != "coordinator":
                member.adopt_trial()
            coordinator.settle(touched)
            member.settle(touched)
            formed.append((coordinator, member))
        changes = {name: side.change() for name, side in touched.items()}
        return {name: change for name, change in changes.items() if change.values}, formed

    def _evaluated_pairs(self, formed: Sequence[Pair]) -> tuple[EvaluatedPair, ...]:
        exchanged = {(coordinator.id, member.id) for coordinator, member in formed}
        pairs = []
        for coordinator, member in self._looked_at or ():
            is_formed = (coordinator.id, member.id) in exchanged
            local, other = (member, coordinator) if coordinator.version else (coordinator, member)
            pairs.append(EvaluatedPair(local.id, other.id, other.version, is_formed))
        return tuple(pairs)

    # Faults

    def _raised(self, what: str, error: BaseException, coordinator: _Side, member: _Side) -> None:
        local = member if coordinator.version else coordinator
        fault = fault_of(
            error,
            f"ensemble.{what}_raised",
            component=local.id,
            name=self.name,
            hint="this pair was left out; the others were not touched by it",
        )
        message = f"{what} of {coordinator.id} and {member.id}: {fault.message}"[:300]
        self._faults.append(msgspec.structs.replace(fault, message=message))

    def _not_of_role(self, reading: ReplicaReading, role: RoleType, why: str) -> None:
        self._faults.append(
            Fault(
                code="ensemble.not_of_role",
                message=f"{reading.component} on {reading.node} lists {role.__name__}: {why}",
                hint="its fields differ from those of the role here; is it of another release?",
                component=reading.component,
                name=self.name,
            )
        )


class _Side:
    """A component of this node in one evaluation."""

    __slots__ = (
        "_before",
        "_cls",
        "_now_ms",
        "_of",
        "_trial",
        "_worked_on",
        "id",
        "seen",
        "version",
    )

    def __init__(self, component: Component, now_ms: int) -> None:
        self.id, self._cls, self._now_ms = component.id, type(component), now_ms
        self._of, self.version = component, 0
        self._before = component.__dict__.copy()
        self.seen: Any = scratch(self._before, self._cls, now_ms)
        """What membership sees."""
        self._worked_on: Component | None = None
        self._trial: Component | None = None

    def worked_on(self) -> Any:
        """What exchanges change."""
        if self._worked_on is None:
            self._worked_on = scratch(self._before, self._cls, self._now_ms)
        return self._worked_on

    def settle(self, touched: dict[str, _Side]) -> None:
        """An exchange is over."""
        touched[self.id] = self

    def change(self) -> Change:
        """What the exchanges changed; raises InvalidInput for what cannot be a field's value."""
        changed = changes_in(self.worked_on(), self._before)
        return Change(self._of, self._before, checked_values(self._cls, changed))

    def trial(self) -> Any:
        """A copy for one exchange alone."""
        self._trial = scratch(values_of(self.worked_on()), self._cls, self._now_ms)
        return self._trial

    def check_trial(self) -> None:
        """Raises InvalidInput for what cannot be a field's value."""
        assert self._trial is not None
        checked_values(self._cls, changes_in(self._trial, self._before))

    def adopt_trial(self) -> None:
        """The exchange went well."""
        self._worked_on = self._trial

    def start_over(self) -> None:
        """Forgets what exchanges did."""
        self._worked_on = None


class _RemoteSide(_Side):
    """A replica in one evaluation: whatever is done to it is gone."""

    __slots__ = ()

    def __init__(self, reading: ReplicaReading, seen: View) -> None:
        self.id, self.version, self.seen = reading.component, reading.version or 1, seen

    def worked_on(self) -> Any:
        return self.seen

    def settle(self, touched: dict[str, _Side]) -> None:
        reset(self.seen)

    def trial(self) -> Any:
        reset(self.seen)
        return self.seen

    def check_trial(self) -> None:
        return

    def adopt_trial(self) -> None:
        return


def odd_answer(name: str, what: str, answer: Any) -> Fault:
    """The fault of an ensemble's function that returned a value of the wrong type."""
    error = InvalidInput(
        f"{what} returned a {type(answer).__name__}",
        code="ensemble.odd_answer",
        hint="a group is a text, a number, or a tuple of these"
        if what == "group"
        else "return True or False",
    )
    return fault_of(error, error.code, name=name)
