"""What ensembles see of components on other nodes, and of their own node. [EN-2, EN-6]"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rapport.core.errors import nearest_names
from rapport.ensemble.model.component import Component, NoSuchField
from rapport.ensemble.model.copying import copied, is_fixed
from rapport.ensemble.model.reading import Reading
from rapport.ensemble.model.role import RoleType, plan_of


class View:
    """A replica in the hands of one evaluation. It has the fields of the role that it was taken for
    and of those that `isinstance` found true, and their methods. What is written to it is gone
    with the next `reset`.
    """

    __slots__ = ("__dict__", "_now_ms", "_reading", "_roles", "_shapes")

    def __init__(self, reading: Reading, role: RoleType, shape: Any, now_ms: int) -> None:
        """`shape` is what `reading.as_role(role)` gave."""
        self._reading, self._now_ms = reading, now_ms
        self._roles: tuple[RoleType, ...] = (role,)
        self._shapes: tuple[Any, ...] = (shape,)

    def __repr__(self) -> str:
        return f"<replica of {self._reading.component}>"

    def is_replica_of(self, cls: RoleType) -> bool:
        """What `isinstance(view, cls)` says."""
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
    """The node that a boundary speaks of: its name and its own components, to be read only."""

    __slots__ = ("_components", "node")

    def __init__(self, node: str, components: dict[str, Component]) -> None:
        self.node, self._components = node, components

    @property
    def components(self) -> tuple[Component, ...]:
        """All components of this node."""
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
    raise _no_such_field(view, name)


def _no_such_field(view: View, name: str) -> NoSuchField:
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
