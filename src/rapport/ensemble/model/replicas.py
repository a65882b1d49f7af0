"""What a node believes of components on other nodes, by id and by role. [EN-1, EN-2]"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rapport.core.knowledge import Knowledge
from rapport.ensemble.messages import Published
from rapport.ensemble.model.reading import Reading
from rapport.ensemble.model.role import RoleType, is_named

_EVERYBODY = ""


class Replica:
    """The newest knowledge of a component elsewhere that arrived here."""

    __slots__ = ("reading", "received_ms")

    def __init__(self, reading: Reading, received_ms: float) -> None:
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

    def put(self, reading: Reading, now_ms: float) -> bool:
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

    def with_role(self, role: RoleType) -> list[Reading]:
        """Those that say they have it, in the order in which they became known."""
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


def as_reading(knowledge: Knowledge | Published | Reading) -> Reading:
    """Whatever form it came in."""
    return knowledge if type(knowledge) is Reading else Reading(knowledge)  # type: ignore[arg-type]


def _key(role: RoleType) -> str:
    return role.__name__ if is_named(role) else _EVERYBODY
