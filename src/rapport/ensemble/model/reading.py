"""Knowledge that was received: kept as it came, typed when somebody needs it. [EN-1, EN-2]"""

from __future__ import annotations

from typing import Any

import msgspec

from rapport.core.knowledge import Knowledge
from rapport.ensemble.messages import Published
from rapport.ensemble.model.role import RoleType, is_named, plan_of

_FAULTS = (msgspec.DecodeError, RecursionError, ValueError, TypeError)


class Reading:
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

    def __init__(self, knowledge: Knowledge | Published) -> None:
        self.component, self.node = knowledge.component, knowledge.node
        self.roles, self.version = knowledge.roles, knowledge.version
        self.created_ms = knowledge.created_ms
        self._body: Any = knowledge.body if type(knowledge) is Published else knowledge.values  # type: ignore[union-attr]
        self._shapes: dict[RoleType, Any] = {}
        self.why_not: dict[RoleType, str] = {}
        """The roles that it says it has and does not."""

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
