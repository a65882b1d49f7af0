"""A component on its node: its processes, what they wait for, and which of them run. [EN-1]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rapport.ensemble.model.component import Component
from rapport.ensemble.model.copying import copied, is_same
from rapport.ensemble.model.processes import ProcessPlan
from rapport.ensemble.model.role import plan_of

_NOTHING = object()


class Hosted:
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
        """Notes which processes are to run because of a change, whoever made it."""
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
        """The process of that name."""
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
