"""One evaluation of an ensemble on what this node knows. [EN-2]

Membership is judged for every pair with a component of this node in it, on what was known when the
evaluation began; then the pairs exchange, one after the other. A component is never its own member.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rapport.core.errors import InvalidInput
from rapport.ensemble.model.calls import RAISED, Call, Change, Looked, Outcome, checked_values
from rapport.ensemble.model.component import Component, changes_in, scratch, values_of
from rapport.ensemble.model.ensemble import EnsemblePlan
from rapport.ensemble.model.faults import Fault, fault_of
from rapport.ensemble.model.reading import Reading
from rapport.ensemble.model.role import RoleType
from rapport.ensemble.model.views import View, reset
from rapport.kernel.clock import Now

Pair = tuple["_Side", "_Side"]


class Candidates:
    """Who may take part: components of this node, and replicas that say they have the role."""

    __slots__ = ("local", "remote")

    def __init__(self, local: Sequence[Component], remote: Sequence[Reading]) -> None:
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
        """Traced, the outcome tells every pair that was looked at."""
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
            self._told(formed) if self._looked_at else (),
        )

    # Who belongs together

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

    def _remote_sides(self, readings: Iterable[Reading], role: RoleType, side: str) -> list[_Side]:
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
        """What numpy says is taken; anything else that is not a boolean is a fault, and no."""
        if type(answer).__name__ in ("bool_", "bool"):
            return bool(answer)
        self._faults.append(odd_answer(self.plan.name, "membership", answer))
        return False

    # What they tell each other

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

    def _told(self, formed: Sequence[Pair]) -> tuple[Looked, ...]:
        exchanged = {(coordinator.id, member.id) for coordinator, member in formed}
        told = []
        for coordinator, member in self._looked_at or ():
            is_formed = (coordinator.id, member.id) in exchanged
            local, other = (member, coordinator) if coordinator.version else (coordinator, member)
            told.append(Looked(local.id, other.id, other.version, is_formed))
        return tuple(told)

    # What went wrong

    def _raised(self, what: str, error: BaseException, coordinator: _Side, member: _Side) -> None:
        local = member if coordinator.version else coordinator
        fault = fault_of(
            error,
            f"ensemble.{what}_raised",
            component=local.id,
            name=self.name,
            hint="this pair was left out; the others were not touched by it",
        )
        told = f"{what} of {coordinator.id} and {member.id}: {fault.message}"[:300]
        self._faults.append(_with_message(fault, told))

    def _not_of_role(self, reading: Reading, role: RoleType, why: str) -> None:
        self._faults.append(
            Fault(
                code="ensemble.not_of_role",
                message=f"{reading.component} on {reading.node} says it is {role.__name__}: {why}",
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

    def __init__(self, reading: Reading, seen: View) -> None:
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
    """A function of an ensemble returned what is no answer."""
    error = InvalidInput(
        f"{what} returned a {type(answer).__name__}",
        code="ensemble.odd_answer",
        hint="a group is a text, a number, or a tuple of these"
        if what == "group"
        else "return True or False",
    )
    return fault_of(error, error.code, name=name)


def _with_message(fault: Fault, message: str) -> Fault:
    return Fault(
        code=fault.code,
        message=message,
        hint=fault.hint,
        component=fault.component,
        name=fault.name,
        place=fault.place,
    )
