"""Schedules the processes and ensembles of a host: due times, running calls, applied outcomes.
[EN-1, EN-2]
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from rapport.core.errors import InvalidInput
from rapport.ensemble.model.calls import (
    Call,
    Candidates,
    Change,
    EvaluationCall,
    Outcome,
    ProcessCall,
)
from rapport.ensemble.model.component import Component, ProcessPlan
from rapport.ensemble.model.ensemble import EnsemblePlan
from rapport.ensemble.model.faults import Fault
from rapport.ensemble.model.replicas import Replicas
from rapport.ensemble.model.role import RoleType, copied, is_same, plan_of
from rapport.ensemble.protocol import MAX_DEPTH, MAX_MESSAGE
from rapport.kernel.clock import Chance, Now

ScheduleKey = TypeVar("ScheduleKey", bound=Hashable)


class ScheduleEntry(NamedTuple):
    """A periodic task."""

    due_ms: float
    order: int
    key: Any
    period_ms: float
    offset_ms: float


def next_slot(offset_ms: float, period_ms: float, after_ms: float) -> float:
    """The first offset + n x period after a time.

    >>> next_slot(300, 1000, 5200), next_slot(300, 1000, 5300)
    (5300, 6300)
    """
    slot = offset_ms + (math.floor((after_ms - offset_ms) / period_ms) + 1) * period_ms
    return slot if slot > after_ms else slot + period_ms


class Schedule(Generic[ScheduleKey]):
    """Due times of periodic tasks; missed periods are skipped."""

    def __init__(self) -> None:
        self._heap: list[ScheduleEntry] = []
        self._live: dict[ScheduleKey, int] = {}
        self._order = 0
        self._last_ms = -math.inf

    def add(self, key: ScheduleKey, period_ms: float, offset_ms: float, now_ms: float) -> None:
        """From now on; a key has one schedule."""
        self._push(key, period_ms, offset_ms, now_ms)

    def remove(self, key: ScheduleKey) -> None:
        """No more."""
        self._live.pop(key, None)

    def due(self, now_ms: float) -> list[ScheduleKey]:
        """The keys that are due, in order of time; each once, however many periods have passed."""
        if now_ms < self._last_ms:
            self._start_again(now_ms)
        self._last_ms = now_ms
        found: list[ScheduleKey] = []
        while self._heap and self._heap[0].due_ms <= now_ms:
            entry = heapq.heappop(self._heap)
            if self._live.get(entry.key) == entry.order:
                found.append(entry.key)
                self._push(entry.key, entry.period_ms, entry.offset_ms, now_ms)
        return found

    def next_due_ms(self) -> float | None:
        """When the next thing is due."""
        while self._heap and self._live.get(self._heap[0].key) != self._heap[0].order:
            heapq.heappop(self._heap)
        return self._heap[0].due_ms if self._heap else None

    def _push(self, key: ScheduleKey, period_ms: float, offset_ms: float, now_ms: float) -> None:
        self._order += 1
        self._live[key] = self._order
        due_ms = next_slot(offset_ms, period_ms, now_ms)
        heapq.heappush(self._heap, ScheduleEntry(due_ms, self._order, key, period_ms, offset_ms))

    def _start_again(self, now_ms: float) -> None:
        """The steady clock went back, as after a restart of a simulation."""
        entries = [entry for entry in self._heap if self._live.get(entry.key) == entry.order]
        self._heap.clear()
        for entry in sorted(entries, key=lambda entry: entry.order):
            self._push(entry.key, entry.period_ms, entry.offset_ms, now_ms)


Key = tuple[str, str]


class RunningCalls:
    """The calls that were started and have not returned; at most one per process or ensemble."""

    def __init__(self, process_ms: int) -> None:
        self._process_ms = process_ms
        self._calls: dict[Key, Call] = {}
        self._hanging: set[Key] = set()
        self._retries: dict[Key, int] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._calls

    def __len__(self) -> int:
        return len(self._calls)

    def begin(self, call: Call) -> None:
        self._calls[(call.component, call.name)] = call

    def end(self, call: Call) -> bool:
        """The call returned; False if it is too late, or no longer wanted."""
        key = (call.component, call.name)
        if self._calls.get(key) is not call:
            return False
        del self._calls[key]
        if key in self._hanging:
            self._hanging.discard(key)
            return False
        return True

    def hanging(self, now: Now) -> list[Fault]:
        """A fault for each that hangs since the last time."""
        faults = []
        for key, call in self._calls.items():
            if key not in self._hanging and self._due_ms(call) <= now.steady_ms:
                self._hanging.add(key)
                faults.append(_hangs(call, self._process_ms))
        return faults

    def next_due_ms(self) -> float | None:
        """When the next may hang."""
        return min(
            (self._due_ms(call) for key, call in self._calls.items() if key not in self._hanging),
            default=None,
        )

    def may_retry(self, call: Call, most: int) -> bool:
        """Whether it is to be made once more; counts."""
        key = (call.component, call.name)
        self._retries[key] = self._retries.get(key, 0) + 1
        if self._retries[key] <= most:
            return True
        del self._retries[key]
        return False

    def settled(self, call: Call) -> None:
        """What it found was taken."""
        self._retries.pop((call.component, call.name), None)

    def forget(self, component: str) -> None:
        for key in [key for key in self._calls if key[0] == component]:
            del self._calls[key]
            self._hanging.discard(key)
        for key in [key for key in self._retries if key[0] == component]:
            del self._retries[key]

    def _due_ms(self, call: Call) -> float:
        return call.now.steady_ms + self._process_ms


def _hangs(call: Call, process_ms: int) -> Fault:
    what = "process" if call.component else "evaluation"
    return Fault(
        code="ensemble.hangs",
        message=f"the {what} {call.name} did not end within {process_ms} ms",
        hint="is it waiting for something? it is not started again before it ends",
        component=call.component,
        name=call.name,
    )


_NOTHING = object()


class HostedComponent:
    """A component and the state of its processes."""

    def __init__(self, component: Component) -> None:
        self.component = component
        self.processes = component.process_plans
        self.is_changed = False
        self.cause = 0
        """Whether something was changed since `look`, and how many calls in a row led to it."""
        self.waiting: dict[str, int] = {}
        """Processes to run as soon as they do not, with the length of their cascade."""
        self._local = plan_of(type(component)).local
        self._watched = {path for plan in self.processes for path in plan.on_change}
        self._last = {path: self._kept(path, self._found(path)) for path in self._watched}
        """Each value as it was, and a copy of it, as it may be changed in place."""

    def look(self) -> None:
        """Marks the processes that a change triggers, whatever caused the change."""
        self.is_changed = False
        if not self._watched:
            return
        changed = {path for path in self._watched if self._has_changed(path)}
        if changed:
            for plan in self.processes:
                if not changed.isdisjoint(plan.on_change):
                    self.waiting[plan.name] = max(self.cause, self.waiting.get(plan.name, 0))
        self.cause = 0

    def changed(self, values: dict[str, Any], cause: int) -> None:
        """Takes over new values, all at once."""
        self.component.__dict__.update(values)
        if self._watched:
            self.is_changed, self.cause = True, max(self.cause, cause)

    def plan(self, name: str) -> ProcessPlan:
        return next(plan for plan in self.processes if plan.name == name)

    def _has_changed(self, path: tuple[str, ...]) -> bool:
        value, (was, copy) = self._found(path), self._last[path]
        same = is_same(value, copy)
        if same is None:
            same = value is was  # what cannot be compared has changed when it is another one
        if not same:
            self._last[path] = self._kept(path, value)
        return not same

    def _kept(self, path: tuple[str, ...], value: Any) -> tuple[Any, Any]:
        if value is _NOTHING or path[0] in self._local:
            return value, value
        try:
            copy = copied(value)
        except Exception:  # of the value's own class, or nested without end
            return value, value
        # What does not even equal its copy (not a number, ...) would change at every look.
        return (value, copy) if is_same(value, copy) else (value, value)

    def _found(self, path: tuple[str, ...]) -> Any:
        value: Any = self.component.__dict__.get(path[0], _NOTHING)
        for step in path[1:]:
            value = _below(value, step)
        return value


def _below(value: Any, step: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(step, _NOTHING)
    if isinstance(value, Sequence) and step.isdecimal():
        return value[int(step)] if int(step) < len(value) else _NOTHING
    try:
        return getattr(value, step, _NOTHING)
    except Exception:  # of the value's own class
        return _NOTHING


_HIGHEST = {"most_bytes": MAX_MESSAGE - 131_072, "most_levels": MAX_DEPTH}
"""Limits of a message, less room for roles and groups; larger knowledge could not be sent."""


class HostSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a node allows its components, and how long it believes others."""

    replica_ms: int = 60_000
    """A replica that was not renewed for so long is dropped. Shorter: the dead are forgotten
    sooner; at least three publishing periods, or the living are forgotten too.
    """
    process_ms: int = 10_000
    """A process or evaluation that takes longer hangs: it is a fault, what it does then is not
    taken, and it is not started again before it ends.
    """
    most_bytes: int = 65_536
    """Of one component's published knowledge, in msgpack."""
    most_levels: int = 32
    """How deeply knowledge may be nested."""
    most_replicas: int = 100_000
    """Others' components that are remembered; more are refused until some are dropped."""
    longest_cascade: int = 16
    """How many processes in a row may run because the one before changed something."""
    most_retries: int = 3
    """How often in a row a call is repeated because another one wrote to its fields."""
    offset_ms: float | None = None
    """Periodic processes and ensembles are due at offset + n x period; none: each has an offset of
    its own, drawn, so that nodes started together do not act together.
    """

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and name != "offset_ms" and value < 1:
                raise InvalidInput(
                    f"{name} cannot be {value}", code="ensemble.bad_settings", hint="at least 1"
                )
            if value is not None and value > _HIGHEST.get(name, value):
                raise InvalidInput(
                    f"{name} cannot be {value}: no message carries that",
                    code="ensemble.bad_settings",
                    hint=f"at most {_HIGHEST[name]}",
                )


"""A component and its process, or an empty text and an ensemble."""


class WorkScheduler:
    """Schedules processes and evaluations, and applies their outcomes."""

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
        self._hosted: dict[str, HostedComponent] = {}
        self._schedule: Schedule[Key] = Schedule()
        self._running = RunningCalls(settings.process_ms)
        self._again: dict[str, None] = {}
        """Ensembles to be evaluated once more."""
        self._has_ensembles = False
        self.is_waiting = False
        """Whether something is to be run, or looked at, at once."""

    def add(self, component: Component, now: Now) -> None:
        """Its processes run from now on; raises InvalidInput for a process that cannot be meant."""
        hosted = self._hosted[component.id] = HostedComponent(component)
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
        """Whether the outcome of the call is still wanted."""
        is_wanted = self._running.end(call)
        self._look_who_waits()
        return is_wanted

    def assign(self, component_id: str, values: dict[str, Any]) -> None:
        self._hosted[component_id].changed(values, 0)
        self._look_who_waits()

    def take_over(self, call: Call, outcome: Outcome) -> None:
        """Applies the outcome of a call, or repeats the call if its fields changed meanwhile."""
        if not self._is_contended(outcome.changes):
            self._running.settled(call)
            self._apply(outcome.changes, call.depth + 1 if call.component else 0)
        elif self._running.may_retry(call, self._settings.most_retries):
            self._make_again(call)
        else:
            self._note(_contended(call))
        self._look_who_waits()

    # Started calls

    def _periodic(self, hosted: HostedComponent, name: str, now: Now) -> Call | None:
        if (hosted.component.id, name) in self._running:
            self._note(_overran(hosted.component.id, name))
            return None
        return self._process(hosted, name, 0, now)

    def _triggered(self, hosted: HostedComponent, now: Now) -> list[Call]:
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

    def _process(self, hosted: HostedComponent, name: str, depth: int, now: Now) -> Call:
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

    # Finished calls

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
        """Updates `is_waiting` after a possible change; the shell reads it after each message."""
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
