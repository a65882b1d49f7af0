from hypothesis import given
from hypothesis import strategies as st

from rapport.kernel.timers import Timers
from rapport.store.memory import MemoryRecordStore


def test_a_timer_outlives_its_owner() -> None:
    records = MemoryRecordStore()
    Timers("delivery", records).set("m1", 50, b"ask the lead")
    reborn = Timers("delivery", records)
    assert [(timer.key, timer.payload) for timer in reborn.due(50)] == [("m1", b"ask the lead")]


def test_owners_do_not_see_each_other() -> None:
    records = MemoryRecordStore()
    Timers("delivery", records).set("m1", 50)
    assert Timers("policy", records).next_due_ms() is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["set", "cancel", "reload"]), st.sampled_from("abc"), st.integers(0, 9)
        )
    )
)
def test_timers_agree_with_a_plain_dictionary(steps: list[tuple[str, str, int]]) -> None:
    records = MemoryRecordStore()
    timers, model = Timers("o", records), dict[str, int]()
    for what, key, due in steps:
        if what == "set":
            timers.set(key, due)
            model[key] = due
        elif what == "cancel":
            timers.cancel(key)
            model.pop(key, None)
        else:
            timers = Timers("o", records)
        assert timers.next_due_ms() == min(model.values(), default=None)
        for now in range(10):
            expected = sorted((due, key) for key, due in model.items() if due <= now)
            assert [(timer.due_ms, timer.key) for timer in timers.due(now)] == expected
