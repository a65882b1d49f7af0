"""The work of a host: what is due, what runs, and what its outcome changes. [EN-1, EN-2]"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rapport.ensemble.model.calls import Call, Change, Outcome, ProcessCall
from rapport.ensemble.model.component import Component
from rapport.ensemble.model.ensemble import EnsemblePlan
from rapport.ensemble.model.evaluation import Candidates, EvaluationCall
from rapport.ensemble.model.faults import Fault
from rapport.ensemble.model.host_settings import HostSettings
from rapport.ensemble.model.hosted import Hosted
from rapport.ensemble.model.replicas import Replicas
from rapport.ensemble.model.role import RoleType
from rapport.ensemble.model.running import Running
from rapport.ensemble.model.schedule import Schedule
from rapport.kernel.chance import Chance
from rapport.kernel.clock import Now

Key = tuple[str, str]
"""A component and its process, or nobody and an ensemble."""


class Work:
    """Processes and evaluations: scheduled, given out as calls, taken back."""

    def __init__(
        self,
        plans: Sequence[EnsemblePlan],
        components: Mapping[str, Component],
        replicas: Replicas,
        chance: Chance,
        settings: HostSettings,
        note: Callable[[Fault], None],
        *,
        is_traced: bool,
    ) -> None:
        self._plans = {plan.name: plan for plan in plans}
        self._components, self._replicas = components, replicas
        self._chance, self._settings, self._note = chance, settings, note
        self._is_traced = is_traced
        self._hosted: dict[str, Hosted] = {}
        self._schedule: Schedule[Key] = Schedule()
        self._running = Running(settings.process_ms)
        self._again: dict[str, None] = {}
        """Ensembles to be evaluated once more."""
        self._has_ensembles = False
        self.is_waiting = False
        """Whether something is to be run, or looked at, at once."""

    def add(self, component: Component, now: Now) -> None:
        """Its processes run from now on; raises InvalidInput for a process that cannot be meant."""
        hosted = self._hosted[component.id] = Hosted(component)
        if not self._has_ensembles:
            self._has_ensembles = True
            for ensemble in self._plans.values():
                self._schedule_one(("", ensemble.name), ensemble.every_ms, now)
        for process in hosted.processes:
            if process.every_ms:
                self._schedule_one((component.id, process.name), process.every_ms, now)

    def remove(self, component_id: str) -> None:
        """Its processes run no more."""
        hosted = self._hosted.pop(component_id)
        self._running.forget(component_id)
        self._look_who_waits()
        for process in hosted.processes:
            self._schedule.remove((component_id, process.name))

    def tick(self, now: Now) -> list[Call]:
        """The calls to run now."""
        for fault in self._running.hanging(now):
            self._note(fault)
        calls: list[Call | None] = []
        again, self._again = self._again, {}
        calls += [self._evaluation(self._plans[name], now) for name in again]
        for component_id, name in self._schedule.due(now.steady_ms):
            if component_id:
                calls.append(self._periodic(self._hosted[component_id], name, now))
            elif name not in again:
                calls.append(self._evaluation(self._plans[name], now))
        for hosted in self._hosted.values():
            hosted.look()
            if hosted.waiting:
                calls += self._triggered(hosted, now)
        self._look_who_waits()
        return [call for call in calls if call is not None]

    def next_due_ms(self) -> float | None:
        """The steady time of what is due next."""
        due = self._schedule.next_due_ms()
        if not len(self._running):  # the usual case, and shells ask often
            return due
        hangs = self._running.next_due_ms()
        if due is None or hangs is None:
            return hangs if due is None else due
        return min(due, hangs)

    def ended(self, call: Call) -> bool:
        """Whether anybody still waits for what it found."""
        is_wanted = self._running.end(call)
        self._look_who_waits()
        return is_wanted

    def assign(self, component_id: str, values: dict[str, Any]) -> None:
        """Takes over values from outside."""
        self._hosted[component_id].changed(values, 0)
        self._look_who_waits()

    def take_over(self, call: Call, outcome: Outcome) -> None:
        """Changes the components as the call wants it, or has it made again."""
        if not self._is_contended(outcome.changes):
            self._running.settled(call)
            self._apply(outcome.changes, call.depth + 1 if call.component else 0)
        elif self._running.may_retry(call, self._settings.most_retries):
            self._make_again(call)
        else:
            self._note(_contended(call))
        self._look_who_waits()

    # What is given out

    def _periodic(self, hosted: Hosted, name: str, now: Now) -> Call | None:
        if (hosted.component.id, name) in self._running:
            self._note(_overran(hosted.component.id, name))
            return None
        return self._process(hosted, name, 0, now)

    def _triggered(self, hosted: Hosted, now: Now) -> list[Call]:
        calls: list[Call] = []
        for name, depth in list(hosted.waiting.items()):
            if (hosted.component.id, name) in self._running:
                continue
            if depth > self._settings.longest_cascade:
                del hosted.waiting[name]
                self._note(_endless(hosted.component.id, name, depth))
                continue
            calls.append(self._process(hosted, name, depth, now))
        return calls

    def _process(self, hosted: Hosted, name: str, depth: int, now: Now) -> Call:
        hosted.waiting.pop(name, None)
        call = ProcessCall(hosted.component, hosted.plan(name), now, depth)
        self._running.begin(call)
        return call

    def _evaluation(self, plan: EnsemblePlan, now: Now) -> Call | None:
        if ("", plan.name) in self._running:
            self._note(_overran("", plan.name))
            return None
        coordinators, members = self._candidates(plan.coordinator), self._candidates(plan.member)
        if not (coordinators.local or members.local):
            return None
        call = EvaluationCall(plan, coordinators, members, now, is_traced=self._is_traced)
        self._running.begin(call)
        return call

    def _candidates(self, role: RoleType) -> Candidates:
        local = [one for one in self._components.values() if isinstance(one, role)]
        return Candidates(local, self._replicas.with_role(role))

    def _schedule_one(self, key: Key, period_ms: int, now: Now) -> None:
        offset_ms = self._settings.offset_ms
        if offset_ms is None:
            offset_ms = self._chance.random() * period_ms
        self._schedule.add(key, period_ms, offset_ms, now.steady_ms)

    # What comes back

    def _is_contended(self, changes: Mapping[str, Change]) -> bool:
        """Whether a field that is to be changed is no longer what the change was made from."""
        for component_id, change in changes.items():
            hosted = self._hosted.get(component_id)
            if hosted is None or hosted.component is not change.of:
                continue
            values = hosted.component.__dict__
            if any(values.get(name) is not change.before.get(name) for name in change.values):
                return True
        return False

    def _apply(self, changes: Mapping[str, Change], cause: int) -> None:
        for component_id, change in changes.items():
            hosted = self._hosted.get(component_id)
            if hosted is not None and hosted.component is change.of and change.values:
                hosted.changed(change.values, cause)

    def _look_who_waits(self) -> None:
        """Done when something may have changed, as the shell asks after each message."""
        self.is_waiting = bool(self._again) or any(
            hosted.is_changed
            or any((component_id, name) not in self._running for name in hosted.waiting)
            for component_id, hosted in self._hosted.items()
        )

    def _make_again(self, call: Call) -> None:
        if not call.component:
            self._again[call.name] = None
        elif call.component in self._hosted:
            self._hosted[call.component].waiting[call.name] = call.depth


def _overran(component_id: str, name: str) -> Fault:
    return Fault(
        code="ensemble.overran",
        message=f"{name} was due again before it had ended; it was left out",
        hint="give it a longer period, or less to do",
        component=component_id,
        name=name,
    )


def _endless(component_id: str, name: str, depth: int) -> Fault:
    return Fault(
        code="ensemble.endless_cascade",
        message=f"{name} was triggered by {depth} processes in a row; it was left out",
        hint="does it change what it waits for? a change that leaves the value as it is ends that",
        component=component_id,
        name=name,
    )


def _contended(call: Call) -> Fault:
    return Fault(
        code="ensemble.contended",
        message=f"{call.name}: others kept writing to the same fields; what it found was dropped",
        hint="let one process or exchange write to a field",
        component=call.component,
        name=call.name,
    )
