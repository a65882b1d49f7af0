"""When a source is asked again. [PO-2]"""

from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import Problem
from rapport.tables.tables import LONGEST_PAUSE_MS, Freshness, fresh

WHY = Problem(code="source.timeout", message="no answer")


def test_a_source_is_due_when_its_lifetime_is_over() -> None:
    known = fresh(600_000, 5)
    assert known.due_ms == 600_005
    again = known.succeeded(600_010, changed=True)
    assert (again.due_ms, again.read_ms, again.changes) == (1_200_010, 600_010, 1)
    assert again.succeeded(2, changed=False).changes == 1


def test_pauses_double_up_to_five_minutes_and_a_success_ends_them() -> None:
    known, pauses = fresh(3_600_000, 0), []
    for _ in range(12):
        known = known.failed(0, WHY, chance=0.5)
        pauses.append(known.due_ms)
    assert pauses[:3] == [1_000, 2_000, 4_000]
    assert pauses[-1] == LONGEST_PAUSE_MS
    assert (known.failures, known.error, known.read_ms) == (12, WHY, 0)
    assert known.succeeded(9, changed=False).failures == 0
    assert known.succeeded(9, changed=False).error is None


@given(st.integers(1, 10**9), st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=40))
def test_a_failing_source_is_read_again_soon_but_not_at_once(
    lifetime_ms: int, chances: list[float]
) -> None:
    known: Freshness = fresh(lifetime_ms, 0)
    for chance in chances:
        known = known.failed(100, WHY, chance=chance)
        pause = known.due_ms - 100
        assert 750 <= pause <= max(min(lifetime_ms, LONGEST_PAUSE_MS), 1_000) * 5 // 4
