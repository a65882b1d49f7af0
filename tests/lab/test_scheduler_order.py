"""A scheduler makes its calls in order, whatever is planned and taken back meanwhile. [CX-12]"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rapport_lab.scheduler import Planned, Scheduler

DELAYS = st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 7.0])
PLAN = st.lists(st.tuples(DELAYS, st.lists(DELAYS, max_size=3), st.booleans()), max_size=12)


@given(PLAN, st.lists(DELAYS, max_size=3))
def test_calls_come_by_time_then_as_planned_and_none_that_was_taken_back(plan, pauses):
    scheduler = Scheduler()
    made: list[tuple[float, int]] = []
    wanted: list[tuple[float, int]] = []
    handles: list[Planned] = []

    def plan_one(delay_ms: float, then: list[float], is_taken_back: bool = False) -> None:
        number, due_ms = len(handles), scheduler.time_ms + delay_ms
        handles.append(scheduler.after(delay_ms, call, number, then))
        if is_taken_back:
            assert scheduler.cancel(handles[-1])
        else:
            wanted.append((due_ms, number))

    def call(number: int, then: list[float]) -> None:
        made.append((scheduler.time_ms, number))
        for delay_ms in then:
            plan_one(delay_ms, [])

    for delay_ms, then, is_taken_back in plan:
        plan_one(delay_ms, then, is_taken_back)
    for pause_ms in pauses:
        scheduler.run(scheduler.time_ms + pause_ms)
        plan_one(0.5, [])
        due = [time_ms for time_ms, _number in wanted[len(made) :]]
        assert len(scheduler) == len(due)
        assert scheduler.next_due_ms() == min(set(wanted) - set(made))[0]
    scheduler.run()
    assert made == sorted(wanted)
    assert scheduler.ran == len(made)
    assert len(scheduler) == 0
    assert scheduler.next_due_ms() is None
