"""The table against a plain list, and what it promises about time and memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.context.records import Outcome, RecordTable, TableLimits
from rapport.core.context_record import ContextRecord, EntityRef
from support.work import lines

ROOM = EntityRef("room", "r1")
KEY = ("room", "r1", "status")
ELSEWHERE = ("10.0.0.9", 7411)


def record(
    start: int, end: int, provider: str = "p", entity: EntityRef = ROOM, **values: object
) -> ContextRecord:
    return ContextRecord(provider, entity, "status", start, end, dict(values))


class NaiveTable:
    """Every record ever put, and the rule in so many words: of each provider the latest that has
    begun counts, at equal starts the one put last; of those still valid the greatest rank.
    """

    def __init__(self) -> None:
        self.records: list[ContextRecord] = []
        self.ended: set[int] = set()

    def settle(self, wall: int) -> None:
        for provider in {one.provider for one in self.records}:
            begun = [r for r in self.records if r.provider == provider and r.valid_from <= wall]
            if not begun:
                continue
            latest = max(begun, key=lambda one: one.valid_from)
            gone = [r for r in begun if r is not latest or r.valid_until <= wall]
            self.records = [r for r in self.records if not any(r is one for one in gone)]

    def put(self, new: ContextRecord, wall: int) -> None:
        self.settle(wall)
        if new.valid_until <= wall:
            return
        self.records = [
            r for r in self.records if (r.provider, r.valid_from) != (new.provider, new.valid_from)
        ]
        self.records.append(new)
        self.settle(wall)

    def answer(self, wall: int) -> ContextRecord | None:
        self.settle(wall)
        valid = [r for r in self.records if r.is_valid_at(wall)]
        return max(valid, key=ContextRecord.rank, default=None)


STEPS = st.lists(
    st.tuples(
        st.integers(0, 5),  # time passes
        st.integers(-4, 8),  # start, from now
        st.integers(1, 12),  # duration
        st.sampled_from("abc"),
        st.booleans(),  # swept
    ),
    max_size=30,
)


@pytest.mark.slow
@given(STEPS)
def test_the_table_answers_as_a_plain_list_would(steps: list) -> None:
    table, naive = RecordTable(), NaiveTable()
    wall = 1_000
    for number, (passes, start, duration, provider, swept) in enumerate(steps):
        wall += passes
        new = record(wall + start, wall + start + duration, provider, number=number)
        table.put(new, wall)
        naive.put(new, wall)
        if swept:
            table.sweep(wall)
        for later in (wall, wall):
            held = table.answer(KEY, later)
            assert (held and held.record) == naive.answer(later)
    assert table.own_records == sum(1 for _ in table.held())
    for later in range(wall, wall + 25):
        held = table.answer(KEY, later)
        assert (held and held.record) == naive.answer(later)
    table.sweep(wall + 100)
    assert len(table) == 0
    assert table.next_turn_ms() is None


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(-3, 3), st.integers(1, 9), st.booleans()),
        max_size=40,
    )
)
def test_counts_stay_exact_and_replicas_within_their_bounds(steps: list) -> None:
    table = RecordTable(TableLimits(replicas=4, replica_bytes=200))
    wall = 500
    for room, start, duration, own in steps:
        wall += 1
        new = record(wall + start, wall + start + duration, "p", EntityRef("room", str(room)))
        table.put(new, wall, holder=None if own else ELSEWHERE)
        table.answer(("room", str(room), "status"), wall)
        table.sweep(wall, 1)
        held = list(table.held())
        assert table.own_records == sum(one.holder is None for one in held)
        assert table.replicas == sum(one.holder is not None for one in held) <= 4
        assert table.replica_bytes == sum(one.size for one in held) <= 200


def test_a_record_is_never_answered_before_or_past_its_validity() -> None:
    table = RecordTable()
    assert table.put(record(100, 200), 50) is Outcome.TAKEN
    answered = [at for at in range(90, 210) if table.answer(KEY, at)]
    assert answered == list(range(100, 200))
    assert table.put(record(100, 200), 200) is Outcome.PAST


def test_a_clock_set_back_shows_nothing_that_is_not_yet_valid() -> None:
    table = RecordTable()
    table.put(record(100, 200), 150)
    assert table.answer(KEY, 150)
    assert table.answer(KEY, 99) is None


def test_the_present_record_is_answered_until_the_next_one_begins() -> None:
    table = RecordTable()
    table.put(record(0, 1_000, now=1), 10)
    table.put(record(500, 600, later=1), 10)
    assert table.answer(KEY, 499).record.values == {"now": 1}
    assert table.answer(KEY, 500).record.values == {"later": 1}
    assert table.answer(KEY, 600) is None, "the later one took the earlier one's place"


def test_the_newest_start_wins_then_the_provider() -> None:
    table = RecordTable()
    for provider, start in (("b", 10), ("c", 10), ("a", 9)):
        table.put(record(start, 100, provider), 10)
    assert table.answer(KEY, 20).record.provider == "c"
    table.put(record(15, 100, "a"), 20)
    assert table.answer(KEY, 20).record.provider == "a"


def test_an_update_that_arrives_late_changes_nothing() -> None:
    table = RecordTable()
    table.put(record(20, 100, new=1), 30)
    assert table.put(record(10, 200, old=1), 30) is Outcome.STALE
    assert table.put(record(20, 100, new=1), 30) is Outcome.SAME
    assert table.put(record(20, 110, corrected=1), 30) is Outcome.TAKEN
    assert table.answer(KEY, 30).record.values == {"corrected": 1}
    assert len(table) == 1


def test_an_own_record_is_not_overwritten_by_a_replica_of_itself_but_by_a_newer_one() -> None:
    table = RecordTable()
    table.put(record(10, 100), 20)
    assert table.put(record(10, 100), 20, holder=ELSEWHERE) is Outcome.STALE
    assert table.answer(KEY, 20).holder is None
    table.put(record(15, 100), 20, holder=ELSEWHERE)
    assert table.answer(KEY, 20).holder == ELSEWHERE
    assert (table.own_records, table.replicas) == (0, 1)


def test_the_replica_not_asked_for_longest_goes_first() -> None:
    table = RecordTable(TableLimits(replicas=2))
    for name in "12":
        table.put(record(0, 100, "p", EntityRef("room", name)), 10, holder=ELSEWHERE)
    assert table.answer(("room", "1", "status"), 10)
    table.put(record(0, 100, "p", EntityRef("room", "3")), 10, holder=ELSEWHERE)
    assert [bool(table.answer(("room", name, "status"), 10)) for name in "123"] == [
        True,
        False,
        True,
    ]


def test_voided_replicas_go_and_newer_ones_stay() -> None:
    table = RecordTable()
    table.put(record(10, 100), 20, holder=ELSEWHERE)
    assert table.void_replicas(("p", *KEY), 10, 20) == 0
    assert table.void_replicas(("p", *KEY), 11, 20) == 1
    assert table.answer(KEY, 20) is None
    assert len(table) == 0


def test_a_full_table_takes_updates_but_nothing_new() -> None:
    table = RecordTable(TableLimits(own_records=1))
    table.put(record(10, 100), 20)
    assert table.put(record(11, 100), 20) is Outcome.TAKEN
    other = record(10, 100, "p", EntityRef("room", "r2"))
    assert table.put(other, 20) is Outcome.FULL


def test_a_full_table_takes_no_further_provider_and_no_further_announcement() -> None:
    """Whoever writes chooses the provider's name, so names must not get round the limit."""
    table = RecordTable(TableLimits(own_records=2))
    table.put(record(10, 100, "p1"), 20)
    table.put(record(10, 100, "p2"), 20)
    more = [table.put(record(11, 100, f"p{number}"), 20) for number in range(3, 9)]
    assert more == [Outcome.FULL] * 6
    assert table.put(record(50, 100, "p1"), 20) is Outcome.FULL, "one more of p1, later"
    assert table.put(record(15, 100, "p1"), 20) is Outcome.TAKEN
    assert table.own_records == 2


def test_a_provider_can_announce_only_so_many_records_ahead() -> None:
    table = RecordTable(TableLimits(ahead_per_provider=3))
    outcomes = [table.put(record(start, 900), 10) for start in range(100, 104)]
    assert outcomes == [Outcome.TAKEN] * 3 + [Outcome.FULL]


def test_many_updates_leave_one_turn_in_the_heap_not_one_each() -> None:
    table = RecordTable()
    for at in range(10_000):
        table.put(record(at, at + 3_600_000), at)
    for at in range(10_000):
        table.put(record(10_000 + at, 900_000 - at), 10_000 + at)
    assert len(table._turns) < 100
    assert len(table) == 1


def test_an_update_takes_its_place_among_those_of_a_thousand_providers() -> None:
    table = RecordTable()
    for number in range(1_000):
        table.put(record(number, 5_000 + number, f"p{number}"), number)
    for number in (0, 500, 999):
        assert table.put(record(1_000 + number, 9_000, f"p{number}"), 2_000) is Outcome.TAKEN
    starts = [one.record.valid_from for one in table.held()]
    assert starts == sorted(starts, reverse=True)
    assert starts[:3] == [1_999, 1_500, 1_000]
    assert len(table) == table.own_records == 1_000
    assert [one.record.provider for one in table.held()].count("p500") == 1


def test_after_the_clock_was_set_back_an_update_is_answered_at_once() -> None:
    table = RecordTable()
    table.put(record(100, 900, "a"), 100)
    table.put(record(500, 900, "b"), 500)
    table.put(record(200, 900, "a"), 200)
    answer = table.answer(KEY, 200)
    assert answer is not None
    assert answer.record.provider == "a"
    assert answer.record.valid_from == 200


@pytest.mark.slow
def test_an_update_costs_the_same_however_many_providers_tell_the_same() -> None:
    costs = []
    for providers in (1, 1_000):
        table, at = RecordTable(), 0
        for number in range(providers):
            at += 1
            table.put(record(at, at + 1_000_000, f"p{number}"), at)
        new = [record(at + 1 + n, at + 1_000_000, f"p{n % providers}", value=n) for n in range(200)]

        def update(table: RecordTable = table, new: list[ContextRecord] = new) -> None:
            for one in new:
                table.put(one, one.valid_from)

        costs.append(lines(update))
    assert costs[1] < 2 * costs[0], costs


@pytest.mark.slow
def test_looking_up_does_not_grow_with_the_table() -> None:
    costs = []
    for size in (1_000, 100_000):
        table = RecordTable()
        for number in range(size):
            table.put(record(0, 10_000 + number, "p", EntityRef("room", str(number))), 1)
        keys = [("room", str(number), "status") for number in range(0, size, size // 1_000)]
        costs.append(lines(lambda: [table.answer(key, 5) for key in keys]))  # noqa: B023
    assert costs[1] == costs[0], costs
