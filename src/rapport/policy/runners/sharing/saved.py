"""What is saved of the plans of a runner. [PO-8, PO-13]"""

from __future__ import annotations

import msgspec

from rapport.core.errors import Problem
from rapport.policy.runners.sharing.slots import Slot


class SavedGroup(msgspec.Struct):
    """One operator: the plans it executes with their versions, and its state."""

    plans: dict[str, str]
    state: bytes
    began: int
    slot: Slot | None = None
    bounds: list[str | float] = []


class FailedPlan(msgspec.Struct, frozen=True):
    """A plan that is out of the running, and why."""

    version: str
    problem: Problem
