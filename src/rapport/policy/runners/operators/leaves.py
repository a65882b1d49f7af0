"""The leaves of a plan: whose events each side asks for, judged once for all plans that ask the
same. [PO-6, PO-13]
"""

from __future__ import annotations

from collections.abc import Mapping

from rapport.policy.plan import Constraint, Side
from rapport.policy.runners.operators.identities import Identities, IdentityFilter
from rapport.policy.runners.operators.shared_steps import SharedCache


class IdentityFilters:
    """One leaf per concept and list of constraints, shared by all sides that have them."""

    def __init__(self, identities: Mapping[str, Identities], shared: SharedCache) -> None:
        self._identities, self._shared = identities, shared
        self._leaves: dict[tuple[str, tuple[Constraint, ...]], IdentityFilter] = {}

    def of(self, side: Side) -> IdentityFilter:
        """The leaf of a side."""
        key = (side.concept, side.constraints)
        if key not in self._leaves:
            known = self._identities[side.concept]
            self._leaves[key] = self._shared.keep(
                (known, side.constraints), IdentityFilter, side, known
            )
        return self._leaves[key]

    def forget(self) -> None:
        """Judges again at the next question: the codes changed."""
        for leaf in self._leaves.values():
            leaf.forget()
