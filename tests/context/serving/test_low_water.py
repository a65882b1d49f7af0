"""What a restart needs of the log is what the broker's table would hold. [CX-8]"""

from hypothesis import given
from hypothesis import strategies as st

from rapport.context.persistence import LowWaterTracker
from rapport.context.records import Outcome, RecordTable
from rapport.core.context_record import ContextRecord, EntityRef


def record(provider: str, start: int, end: int, **values: object) -> ContextRecord:
    return ContextRecord(provider, EntityRef("room", "r"), "status", start, end, values)


updates = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.integers(-20, 30),  # start, from the time of the update on
        st.integers(1, 60),  # length
        st.integers(0, 15),  # how long until the next update
    ),
    max_size=12,
)


def told(records: RecordTable, now: int) -> list[ContextRecord | None]:
    key = ("room", "r", "status")
    held = (records.answer(key, at) for at in range(now, now + 100, 3))
    return [one.record if one else None for one in held]


@given(updates, st.integers(0, 40))
def test_a_restart_answers_as_if_there_had_been_none(
    sequence: list[tuple[str, int, int, int]], rest: int
) -> None:
    lived, needed, now = RecordTable(), LowWaterTracker(), 100
    log: list[tuple[int, ContextRecord]] = []
    for number, (provider, start, length, pause) in enumerate(sequence):
        one = record(provider, now + start, now + start + length, number=number)
        if lived.put(one, now) in (Outcome.TAKEN, Outcome.STALE):  # nothing else is kept
            log.append((now, one))
            needed.take(len(log), one, now)
        now += pause
    low = needed.low_water(len(log), now)
    now += rest

    again = LowWaterTracker()
    again.recall(low)
    for position in range(low.position + 1, len(log) + 1):
        received, one = log[position - 1]
        again.take(position, one, received)
    restarted = RecordTable()
    for one in again.records(now):
        restarted.put(one, now)
    assert told(restarted, now) == told(lived, now)


def test_one_long_lived_record_does_not_make_a_restart_read_all_that_followed() -> None:
    needed = LowWaterTracker()
    old = record("long", 0, 10**9)
    needed.take(1, old, 0)
    for position in range(2, 60_000):
        needed.take(position, record("short", position, position + 10), position)
    low = needed.low_water(59_999, 60_000)
    assert low.position > 50_000
    assert low.stragglers == ((1, old),)


def test_where_nothing_is_over_the_whole_log_is_needed() -> None:
    needed = LowWaterTracker()
    for position in range(1, 50):
        needed.take(position, record(f"p{position}", 0, 10**9), 0)
    assert needed.low_water(49, 10).position == 0


def test_bookkeeping_stays_as_large_as_what_is_valid() -> None:
    needed = LowWaterTracker()
    for position in range(1, 100_000):
        needed.take(position, record("one", position, position + 10**6), position)
        if position % 5_000 == 0:
            needed.low_water(position, position)
    assert len(needed) == 1
    assert len(needed._ends) < 20_000
