"""The components of one node and its replicas of others: a pure state machine.
[EN-1, EN-2, EN-3, EN-6]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rapport.core.errors import DuplicateName, InvalidInput, UnknownName
from rapport.core.knowledge import Knowledge
from rapport.ensemble.model.boundaries import Boundaries
from rapport.ensemble.model.calls import Call, Outcome, checked_values, failed, run_call
from rapport.ensemble.model.component import Component
from rapport.ensemble.model.ensemble import Ensemble, EnsemblePlan, plan_of_ensemble
from rapport.ensemble.model.faults import Fault, Faults, fault_of
from rapport.ensemble.model.replicas import NodeKnowledge, Replica, ReplicaReading, Replicas
from rapport.ensemble.model.snapshots import Snapshot, WithheldKnowledge, snapshot_of
from rapport.ensemble.model.work_scheduler import HostSettings, WorkScheduler
from rapport.ensemble.protocol import PublishedKnowledge
from rapport.ensemble.trace import Kind, TraceEvent, Tracing
from rapport.kernel.clock import Chance, Now


def trace_outcome(node: str, call: Call, outcome: Outcome, trace: Tracing) -> None:
    """One event for a process; one or two for each pair of an evaluation."""
    wall_ms, steady_ms = call.now
    if call.component:
        fault = f": {outcome.faults[0].code}" if outcome.faults else ""
        trace(
            TraceEvent(
                steady_ms,
                wall_ms,
                Kind.PROCESS_RAN,
                node,
                component=call.component,
                detail=f"{call.name}{fault}",
            )
        )
        return
    for looked in outcome.looked_at:
        for kind in (Kind.EVALUATED, Kind.EXCHANGED)[: 1 + looked.is_formed]:
            trace(
                TraceEvent(
                    steady_ms,
                    wall_ms,
                    kind,
                    node,
                    component=looked.other,
                    version=looked.version,
                    other=looked.local,
                    detail=call.name,
                )
            )


class Host:
    """The components and replicas of one node.

    `tick` returns calls to run: at once (`run`), or in threads. `finished` takes their outcomes, in
    the thread that ticks. No method raises because of faulty components, ensembles or replicas; see
    `faults`.
    """

    def __init__(
        self,
        node: str,
        ensembles: Sequence[type[Ensemble]],
        chance: Chance,
        settings: HostSettings | None = None,
        *,
        trace: Tracing | None = None,
    ) -> None:
        """Raises InvalidInput for an ensemble that cannot be meant."""
        self.node, self.settings = node, settings or HostSettings()
        self.faults = Faults()
        self.formed: dict[str, tuple[tuple[str, str], ...]] = {}
        """For each ensemble the coordinators and members that its last evaluation found."""
        self.pairs = 0
        """How many pairs were looked at so far."""
        self.ensembles = plans = _plans(ensembles)
        self._components: dict[str, Component] = {}
        asked_for = [role for plan in plans for role in (plan.coordinator, plan.member)]
        self._replicas = Replicas(asked_for, self.settings.most_replicas)
        self._boundaries = Boundaries(plans, NodeKnowledge(node, self._components), self._note)
        self._work = WorkScheduler(
            plans,
            self._components,
            self._replicas,
            chance,
            self.settings,
            self._note,
            is_traced=trace is not None,
        )
        self.withheld: dict[str, WithheldKnowledge] = {}
        """Components whose knowledge cannot be published now, and why, by id."""
        self._judged: tuple[object, ReplicaReading] | None = None
        """The knowledge that was judged last, and its reading."""
        self._trace = trace
        self._last = Now(0, 0.0)

    @property
    def components(self) -> Mapping[str, Component]:
        """Those of this node, by id."""
        return MappingProxyType(self._components)

    @property
    def replicas(self) -> Mapping[str, Replica]:
        """The replicas of components on other nodes, by component id."""
        return self._replicas

    # Components

    def add(self, component: Component, now: Now) -> None:
        """A component lives here from now on; raises InvalidInput, DuplicateName."""
        self._last = now
        if not isinstance(component, Component) or type(component) is Component:
            raise InvalidInput(
                f"{component!r:.60} is not a component",
                code="ensemble.not_a_component",
                hint="class Mine(Component, SomeRole): ...",
            )
        if component.id in self._components:
            raise DuplicateName(
                f"there is a component {component.id!r} on {self.node} already",
                code="ensemble.duplicate_component",
                hint="ids are unique in the whole system",
            )
        self._work.add(component, now)
        self._components[component.id] = component
        self._replicas.remove(component.id)

    def remove(self, component_id: str) -> None:
        """It lives here no more; what its processes still do is not taken."""
        if self._components.pop(component_id, None) is not None:
            self.withheld.pop(component_id, None)
            self._work.remove(component_id)
            self.faults.forget(component_id)
            for name, pairs in self.formed.items():
                self.formed[name] = tuple(pair for pair in pairs if component_id not in pair)

    def assign(self, component_id: str, values: Mapping[str, Any], now: Now) -> None:
        """Sets fields of a component from outside, in one piece; processes that wait for a change
        run at the next tick. Raises InvalidInput, UnknownName.
        """
        self._last = now
        component = self._components.get(component_id)
        if component is None:
            raise UnknownName(
                "component", component_id, list(self._components), code="ensemble.unknown_component"
            )
        self._work.assign(component_id, checked_values(type(component), values))

    def snapshot(self, component_id: str) -> Snapshot | None:
        """What the component publishes now; none while its knowledge cannot be published, which
        `withheld` then explains. An earlier value is never given out as a present one (rule 6).
        """
        component = self._components.get(component_id)
        if component is None:
            return None
        groups = self._boundaries.groups_of(component, self._last.wall_ms)
        settings = self.settings
        try:
            found = snapshot_of(
                component,
                groups,
                most_bytes=settings.most_bytes,
                most_levels=settings.most_levels,
            )
        except InvalidInput as error:
            self._withhold(component_id, error)
            return None
        self.withheld.pop(component_id, None)
        return found

    def note_outside_groups(self, component_id: str) -> None:
        """Notes a fault for each ensemble whose groups leave the component out; to be called where
        knowledge goes by groups.
        """
        component = self._components[component_id]
        for plan in self._boundaries.leave_out(component):
            self._note(_outside_groups(component_id, plan))

    # Replicas

    def replace(self, knowledge: Knowledge | PublishedKnowledge, now: Now) -> bool:
        """Takes a newer version of another node's component; False: it was none, or cannot be."""
        self._last = now
        component = knowledge.component
        if component in self._components:
            self._note(_is_local(component, knowledge.node))
            return False
        judged = self._judged
        is_judged = judged is not None and judged[0] is knowledge
        reading = judged[1] if judged is not None and is_judged else ReplicaReading(knowledge)
        taken = self._replicas.put(reading, now.steady_ms)
        if not taken and component not in self._replicas:
            self._note(_is_full(self.settings.most_replicas))
        return taken

    def drop_stale(self, now: Now) -> list[str]:
        """Forgets replicas that were not renewed for `replica_ms`; costs as many as there are."""
        return self._replicas.drop_before(now.steady_ms - self.settings.replica_ms)

    def forget_node(self, node: str) -> list[str]:
        """Drops and names the replicas of a node that is known to be dead."""
        dead = [name for name, held in self._replicas.items() if held.reading.node == node]
        for name in dead:
            self._replicas.remove(name)
        return dead

    def may_pass_on(self, knowledge: Knowledge | PublishedKnowledge) -> bool:
        """Whether the boundaries let it be passed on here; see `Boundaries.allow`."""
        if self._boundaries.is_unbounded:
            return True
        reading = ReplicaReading(knowledge)
        self._judged = (knowledge, reading)  # `replace` usually gets the same one next
        return self._boundaries.allow(reading, self._last.wall_ms)

    # Work

    def tick(self, now: Now) -> list[Call]:
        """The calls to run now; each has to be passed to `finished`, however late."""
        self._last = now
        return self._work.tick(now)

    def run(self, now: Now) -> int:
        """Runs whatever is to be run, here and now, with all that follows from it: for simulators
        and tests. How many calls it took.
        """
        count = 0
        for _round in range(self.settings.longest_cascade + self.settings.most_retries + 2):
            calls = self.tick(now)
            if not calls:
                break
            for call in calls:
                self.finished(call, run_call(call), now)
            count += len(calls)
        return count

    def next_due_ms(self) -> float | None:
        """The steady time of the next tick; none: nothing to do before something changes."""
        return self._last.steady_ms if self._work.is_waiting else self._work.next_due_ms()

    def finished(self, call: Call, outcome: Outcome | BaseException, now: Now) -> None:
        """Takes over what a call found, in one piece for each component, unless it hung, its
        component is gone, or another call wrote to the same fields meanwhile: then it is made
        again.
        """
        self._last = now
        found = failed(call, outcome) if isinstance(outcome, BaseException) else outcome
        if not self._work.ended(call):
            return
        for fault in found.faults:
            self._note(fault)
        if self._trace is not None:
            trace_outcome(self.node, call, found, self._trace)
        if not call.component:
            self.pairs += found.pairs
            self.formed[call.name] = found.formed
        self._work.take_over(call, found)

    def _withhold(self, component_id: str, error: InvalidInput) -> None:
        self._note(fault_of(error, error.code, component=component_id))
        before = self.withheld.get(component_id)
        self.withheld[component_id] = WithheldKnowledge(
            component=component_id,
            code=error.code,
            message=error.message,
            hint=error.hint,
            since_ms=before.since_ms if before is not None else self._last.wall_ms,
        )

    def _note(self, fault: Fault) -> None:
        self.faults.add(fault, self._last.wall_ms)


def _plans(ensembles: Sequence[type[Ensemble]]) -> tuple[EnsemblePlan, ...]:
    plans: dict[str, EnsemblePlan] = {}
    for ensemble in ensembles:
        plan = plan_of_ensemble(ensemble)
        if plan.name in plans:
            raise DuplicateName(
                f"there are two ensembles {plan.name!r}",
                code="ensemble.duplicate_ensemble",
                hint="an ensemble is known by its name on all nodes",
            )
        plans[plan.name] = plan
    return tuple(plans.values())


def _is_local(component: str, node: str) -> Fault:
    return Fault(
        code="ensemble.equal_ids",
        message=f"the node {node!r} claims the component {component!r}, which lives here",
        hint="ids are unique in the whole system; its knowledge is not taken",
        component=component,
    )


def _outside_groups(component: str, plan: EnsemblePlan) -> Fault:
    role = plan.group_role.__name__
    return Fault(
        code="ensemble.outside_groups",
        message=f"{plan.name}.group is asked of {role}, which {component!r} is not: it is in no "
        "group, and the others of the ensemble receive it on IP only by chance",
        hint="annotate the argument of `group` with a role that coordinators and members have",
        component=component,
        name=plan.name,
    )


def _is_full(most: int) -> Fault:
    return Fault(
        code="ensemble.too_many_replicas",
        message=f"{most} components of other nodes are known; others are not taken",
        hint="raise most_replicas, or bound how far knowledge goes",
    )
