"""A node made in one line, and time in milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rapport.core.knowledge import Knowledge
from rapport.ensemble.model.host import Host
from rapport.ensemble.model.work_scheduler import HostSettings
from rapport.kernel.clock import Chance, Now


@pytest.fixture
def at() -> Callable[[float], Now]:
    """The moment so many ms after the start; wall and steady time differ."""
    return lambda ms: Now(1_000_000 + int(ms), float(ms))


@pytest.fixture
def make_host() -> Callable[..., Host]:
    """A host whose schedules have no offset."""

    def make(*ensembles: Any, trace: Any = None, **settings: Any) -> Host:
        settings.setdefault("offset_ms", 0.0)
        return Host("here", ensembles, Chance(7), HostSettings(**settings), trace=trace)

    return make


@pytest.fixture
def knowledge() -> Callable[..., Knowledge]:
    """Knowledge of a component elsewhere."""

    def make(component: str, *roles: str, version: int = 1, **values: Any) -> Knowledge:
        return Knowledge(component, "elsewhere", roles, version, 999_000 + version, values)

    return make
