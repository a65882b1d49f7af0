"""Replicas: knowledge of components on other nodes, and the views of it that ensembles get.
[EN-2, EN-6]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from rapport.core.errors import nearest_names
from rapport.core.knowledge import Knowledge
from rapport.ensemble.model.component import Component, NoSuchField
from rapport.ensemble.model.role import RoleType, copied, is_fixed, is_named, plan_of
from rapport.ensemble.protocol import PublishedKnowledge

_FAULTS = (msgspec.DecodeError, RecursionError, ValueError, TypeError)


class ReplicaReading:
    """One version of a component's knowledge. Each role is judged once, at first use; a role's
    fields are decoded straight from the body, so that others cost nothing.
    """

    __slots__ = (
        "_body",
        "_shapes",
        "component",
        "created_ms",
        "node",
        "roles",
        "version",
        "why_not",
    )

    def __init__(self, knowledge: Knowledge | PublishedKnowledge) -> None:
        self.component, self.node = knowledge.component, knowledge.node
        self.roles, self.version = knowledge.roles, knowledge.version
        self.created_ms = knowledge.created_ms
        self._body: Any = (
            knowledge.body if isinstance(knowledge, PublishedKnowledge) else knowledge.values
        )
        self._shapes: dict[RoleType, Any] = {}
        self.why_not: dict[RoleType, str] = {}
        """The roles that it lists, but whose fields it lacks."""

    def as_role(self, role: RoleType) -> Any:
        """The role's fields as a struct; none: it is not of that role."""
        try:
            return self._shapes[role]
        except KeyError:
            shape = self._shapes[role] = self._judged(role)
            return shape

    def values(self) -> dict[str, Any]:
        """The plain values; empty if the body cannot be read."""
        body = self._body
        if type(body) is bytes:
            try:
                body = msgspec.msgpack.decode(body)
            except _FAULTS:
                return {}
        return body if type(body) is dict else {}

    def knowledge(self) -> Knowledge:
        """The same as the shape that travels through channels."""
        return Knowledge(
            self.component, self.node, self.roles, self.version, self.created_ms, self.values()
        )

    def _judged(self, role: RoleType) -> Any:
        if is_named(role) and role.__name__ not in self.roles:
            return None
        plan, body = plan_of(role), self._body
        try:
            if type(body) is bytes:
                try:
                    return plan.decoder.decode(body)
                except msgspec.ValidationError:  # keys of dictionaries travel as texts
                    body = msgspec.msgpack.decode(body)
            return msgspec.convert(body, plan.shape, str_keys=True)
        except _FAULTS as error:
            self.why_not[role] = str(error)[:200]
            return None


class View:
    """A replica as one evaluation sees it. It has the fields and methods of the role that it was
    taken for, and of those for which `isinstance` was true. `reset` discards values written to it.
    """

    __slots__ = ("__dict__", "_now_ms", "_reading", "_roles", "_shapes")

    def __init__(self, reading: ReplicaReading, role: RoleType, shape: Any, now_ms: int) -> None:
        """`shape` is what `reading.as_role(role)` gave."""
        self._reading, self._now_ms = reading, now_ms
        self._roles: tuple[RoleType, ...] = (role,)
        self._shapes: tuple[Any, ...] = (shape,)

    def __repr__(self) -> str:
        return f"<replica of {self._reading.component}>"

    def is_replica_of(self, cls: RoleType) -> bool:
        """The result of `isinstance(view, cls)`."""
        if cls in self._roles:
            return True
        shape = self._reading.as_role(cls)
        if shape is None:
            return False
        self._roles, self._shapes = (*self._roles, cls), (*self._shapes, shape)
        return True

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            value = self.__dict__[name] = _looked_up(self, name)
            return value


def reset(view: View) -> None:
    """Forgets what was written."""
    view.__dict__.clear()


class NodeKnowledge:
    """The node that evaluates a boundary: its name and its own components, read-only."""

    __slots__ = ("_components", "node")

    def __init__(self, node: str, components: dict[str, Component]) -> None:
        self.node, self._components = node, components

    @property
    def components(self) -> tuple[Component, ...]:
        return tuple(self._components.values())


def _looked_up(view: View, name: str) -> Any:
    if name == "id":
        return view._reading.component
    for shape in view._shapes:
        if name in shape.__struct_fields__:
            value = getattr(shape, name)
            return value if is_fixed(value) else copied(value)
    if name == "created_ms":
        return view._reading.created_ms
    if name == "now_ms":
        return view._now_ms
    for role in view._roles:
        for base in role.__mro__:
            found = vars(base).get(name)
            if found is not None and hasattr(found, "__get__") and not name.startswith("__"):
                return found.__get__(view, role)
    raise _no_view_field(view, name)


def _no_view_field(view: View, name: str) -> NoSuchField:
    reading = view._reading
    taken_for = " and ".join(role.__name__ for role in view._roles)
    known = {field for role in view._roles for field in plan_of(role).published}
    local = any(name in plan_of(role).local for role in view._roles)
    near = nearest_names(name, known)
    if local:
        hint = "Local fields stay on their node"
    elif near:
        hint = f"did you mean {near[0]!r}?"
    else:
        hint = "ask isinstance(...) first for a role or component that has it"
    return NoSuchField(
        f"the replica of {reading.component} is taken for {taken_for}, which has no {name!r}",
        "ensemble.unknown_field",
        hint,
    )


_EVERYBODY = ""


class Replica:
    """The newest knowledge of a component elsewhere that arrived here."""

    __slots__ = ("reading", "received_ms")

    def __init__(self, reading: ReplicaReading, received_ms: float) -> None:
        self.reading, self.received_ms = reading, received_ms
        """`received_ms` is steady time."""

    @property
    def knowledge(self) -> Knowledge:
        """Decoded at each call."""
        return self.reading.knowledge()

    @property
    def values(self) -> dict[str, Any]:
        """The plain values, decoded at each call."""
        return self.reading.values()

    @property
    def version(self) -> int:
        return self.reading.version


class Replicas(Mapping[str, Replica]):
    """Replicas by component id. One of a role that no ensemble here asks for costs evaluations
    nothing.
    """

    def __init__(self, roles: Iterable[RoleType], most: int) -> None:
        """`roles` are those that ensembles ask for."""
        self._replicas: dict[str, Replica] = {}
        self._by_role: dict[str, dict[str, Replica]] = {_key(role): {} for role in roles}
        self._renewed: dict[str, float] = {}
        self._most = most

    def __getitem__(self, component: str) -> Replica:
        return self._replicas[component]

    def __iter__(self) -> Iterator[str]:
        return iter(self._replicas)

    def __len__(self) -> int:
        return len(self._replicas)

    @property
    def is_full(self) -> bool:
        """Whether no further component is remembered."""
        return len(self._replicas) >= self._most

    def put(self, reading: ReplicaReading, now_ms: float) -> bool:
        """Takes a newer version; False: it is none, or there is no room."""
        component = reading.component
        held = self._replicas.get(component)
        if held is None:
            if self.is_full:
                return False
            held = self._replicas[component] = Replica(reading, now_ms)
            self._enter(component, held, reading.roles)
        else:
            before = held.reading
            if reading.version <= before.version:
                return False
            held.reading, held.received_ms = reading, now_ms
            if reading.roles != before.roles:
                self._leave(component, before.roles)
                self._enter(component, held, reading.roles)
            del self._renewed[component]
        self._renewed[component] = now_ms  # at the end: the first is the one longest not renewed
        return True

    def with_role(self, role: RoleType) -> list[ReplicaReading]:
        """The replicas that list the role, in the order in which they became known."""
        return [replica.reading for replica in self._by_role[_key(role)].values()]

    def remove(self, component: str) -> None:
        """Forgets it, if it is known."""
        held = self._replicas.pop(component, None)
        if held is not None:
            del self._renewed[component]
            self._leave(component, held.reading.roles)

    def drop_before(self, time_ms: float) -> list[str]:
        """Forgets those not renewed since; costs as many as there are."""
        dropped: list[str] = []
        for component, renewed_ms in self._renewed.items():
            if renewed_ms >= time_ms:
                break
            dropped.append(component)
        for component in dropped:
            self.remove(component)
        return dropped

    def oldest_ms(self) -> float | None:
        """When the one longest not renewed was."""
        return next(iter(self._renewed.values()), None)

    def _enter(self, component: str, replica: Replica, roles: Iterable[str]) -> None:
        for role in (_EVERYBODY, *roles):
            known = self._by_role.get(role)
            if known is not None:
                known[component] = replica

    def _leave(self, component: str, roles: Iterable[str]) -> None:
        for role in (_EVERYBODY, *roles):
            known = self._by_role.get(role)
            if known is not None:
                known.pop(component, None)


def _key(role: RoleType) -> str:
    return role.__name__ if is_named(role) else _EVERYBODY
