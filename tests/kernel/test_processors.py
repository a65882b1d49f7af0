"""A measured process is held where it was put, and let go afterwards. [CO-7]"""

from __future__ import annotations

import os
import threading

import pytest

from rapport.kernel.processors import held_on, processors

needs_affinity = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system does not hold processes"
)


@needs_affinity
def test_threads_started_meanwhile_are_held_too_and_all_are_let_go_afterwards() -> None:
    before = processors()
    found: list[list[int]] = []
    with held_on(len(before)):  # round again: the first
        thread = threading.Thread(target=lambda: found.append(processors()))
        thread.start()
        thread.join()
        assert processors() == before[:1]
    assert found == [before[:1]]
    assert processors() == before


@needs_affinity
def test_a_failure_lets_go() -> None:
    before = processors()
    with pytest.raises(ValueError, match="broken"), held_on(0):
        raise ValueError("broken")
    assert processors() == before


def test_where_the_system_cannot_nothing_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    with held_on(3):
        assert processors() == []
