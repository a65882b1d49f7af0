"""A measured process is held where it was put, and let go afterwards. [CO-7]"""

from __future__ import annotations

import os
import threading

import pytest

from rapport.kernel.tasks import allowed_cpus, pinned_to_cpu

needs_affinity = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system does not hold processes"
)


@needs_affinity
def test_threads_started_meanwhile_are_held_too_and_all_are_let_go_afterwards() -> None:
    before = allowed_cpus()
    found: list[list[int]] = []
    with pinned_to_cpu(len(before)):  # round again: the first
        thread = threading.Thread(target=lambda: found.append(allowed_cpus()))
        thread.start()
        thread.join()
        assert allowed_cpus() == before[:1]
    assert found == [before[:1]]
    assert allowed_cpus() == before


@needs_affinity
def test_a_failure_lets_go() -> None:
    before = allowed_cpus()
    with pytest.raises(ValueError, match="broken"), pinned_to_cpu(0):
        raise ValueError("broken")
    assert allowed_cpus() == before


def test_where_the_system_cannot_nothing_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    with pinned_to_cpu(3):
        assert allowed_cpus() == []
