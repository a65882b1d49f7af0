"""Boundaries and groups of ensembles: how far knowledge spreads. [EN-6, EN-7]"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from rapport.ensemble.model.calls import RAISED, odd_answer
from rapport.ensemble.model.component import Component, scratch
from rapport.ensemble.model.ensemble import EnsemblePlan
from rapport.ensemble.model.faults import Fault, fault_of
from rapport.ensemble.model.replicas import NodeKnowledge, ReplicaReading, View
from rapport.ensemble.model.role import RoleType, is_named

LONGEST_GROUP = 256
_GROUP_PARTS = (str, int, float, bool)


class Boundaries:
    """The boundaries and groups of a host's ensembles."""

    def __init__(
        self,
        plans: Sequence[EnsemblePlan],
        node: NodeKnowledge,
        report: Callable[[Fault], None],
    ) -> None:
        self._plans, self._node, self._report = plans, node, report
        self._any = any(plan.boundary is not None for plan in plans)
        self._grouping = [plan for plan in plans if plan.group is not None]

    @property
    def is_unbounded(self) -> bool:
        """Whether no ensemble has a boundary, so that everything is passed on."""
        return not self._any

    def allow(self, reading: ReplicaReading, now_ms: int) -> bool:
        """Whether knowledge may be passed on: an ensemble that it has a role in allows it or has no
        boundary, or it has a role in none.
        """
        concerned = False
        for plan in self._plans:
            if plan.boundary is None:
                if _has_role(reading, plan.member) or _has_role(reading, plan.coordinator):
                    return True
                continue
            for role in plan.boundary_roles:
                shape = reading.as_role(role)
                if shape is not None:
                    concerned = True
                    if self._asked(plan, plan.boundary, View(reading, role, shape, now_ms)):
                        return True
                    break
        return not concerned

    def groups_of(self, component: Component, now_ms: int) -> tuple[str, ...]:
        """The groups that ensembles put the component into."""
        if not self._grouping:
            return ()
        found: list[str] = []
        for plan in self._grouping:
            if isinstance(component, plan.group_role):
                text = self._group(plan, component, now_ms)
                if text:
                    found.append(text)
        return tuple(found)

    def leave_out(self, component: Component) -> list[EnsemblePlan]:
        """The ensembles with groups that the component takes part in, but whose `group` is defined
        on a role that it does not have: it is in no group of theirs.
        """
        return [
            plan
            for plan in self._grouping
            if isinstance(component, (plan.coordinator, plan.member))
            and not isinstance(component, plan.group_role)
        ]

    def _asked(self, plan: EnsemblePlan, boundary: Callable[[Any, Any], bool], seen: View) -> bool:
        """A boundary that fails allows: it only saves messages."""
        try:
            answer = boundary(seen, self._node)
        except RAISED as error:
            hint = "knowledge is passed on as if there were no boundary"
            self._report(fault_of(error, "ensemble.boundary_raised", name=plan.name, hint=hint))
            return True
        if type(answer).__name__ in ("bool", "bool_"):
            return bool(answer)
        self._report(odd_answer(plan.name, "boundary", answer))
        return True

    def _group(self, plan: EnsemblePlan, component: Component, now_ms: int) -> str:
        assert plan.group is not None
        try:
            value = plan.group(scratch(component.__dict__.copy(), type(component), now_ms))
        except RAISED as error:
            self._report(
                fault_of(
                    error,
                    "ensemble.group_raised",
                    component=component.id,
                    name=plan.name,
                    hint="it is in no group of this ensemble",
                )
            )
            return ""
        if value is None:
            return ""
        text = _group_text(plan.name, value)
        if not text:
            self._report(odd_answer(plan.name, "group", value))
        return text


def _has_role(reading: ReplicaReading, role: RoleType) -> bool:
    return not is_named(role) or role.__name__ in reading.roles


def _group_text(name: str, value: Any) -> str:
    """The same on every node for the same value; empty: it cannot name a group."""
    is_plain = isinstance(value, _GROUP_PARTS) or (
        isinstance(value, tuple) and all(isinstance(part, _GROUP_PARTS) for part in value)
    )
    if not is_plain:
        return ""
    try:
        shown = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        text = f"{name}:{shown}"
        return text if len(text.encode()) <= LONGEST_GROUP else ""
    except (TypeError, ValueError):
        return ""
