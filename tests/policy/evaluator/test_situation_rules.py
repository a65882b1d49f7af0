"""Rules 1, 2, 4, 5 and 7 of situations, worked by hand: who is known, what lasts, when a situation
begins and ends. [SI-2, SI-4]
"""

from __future__ import annotations

from support.judge.holding import Reading
from support.judge.situation_trials import SituationCase
from support.judge.situation_world import TableVersion, without_late
from support.situation_worlds import Rows, SituationTables

NORTH: Rows = {"s1": {"region": "north"}}


def stations(rows: Rows, since: int | None = None) -> TableVersion:
    return SituationTables(station=rows).version(since)


# Rule 1: start, present value, who is known.


def test_the_start_is_the_first_reading_of_anything(told: SituationCase) -> None:
    told(
        """
situation
  no temperature of S for 50 ms
readings
  10 p1 position of ann = 1, 1
  59 e1 temperature of s2 = 20 from hut
told
  60 S=s1:
  open S=s1 since 60
""",
        until=60,
    )


def test_before_a_given_start_everything_is_unknown_but_readings_count(told: SituationCase) -> None:
    told(
        """
situation
  temperature of S above 30 degC for 50 ms
readings
  0 e1 temperature of s1 = 31 from hut
told
  150 S=s1: e1
  open S=s1 since 150
""",
        start=100,
        until=200,
    )


def test_a_situation_may_begin_at_the_start(told: SituationCase) -> None:
    told(
        """
situation
  temperature of S above 30 degC
readings
  0 e1 temperature of s1 = 31 from hut
told
  100 S=s1: e1
  open S=s1 since 100
""",
        start=100,
        until=100,
    )


def test_of_readings_of_one_time_the_greatest_id_is_present(told: SituationCase) -> None:
    told("""
situation
  temperature of S above 30 degC
readings
  0 e9 temperature of s1 = 31 from hut
  0 e10 temperature of s1 = 20 from hut
told
  0 S=s1: e9
  open S=s1 since 0
""")


def test_what_is_true_and_false_within_a_millisecond_did_not_happen(told: SituationCase) -> None:
    told("""
situation
  temperature of S above 30 degC
readings
  0 e1 temperature of s1 = 31 from hut
  0 e2 temperature of s1 = 20 from hut
told
""")


def test_a_stale_value_is_unknown_and_neither_begins_nor_ends(told: SituationCase) -> None:
    told(
        """
situation
  temperature of S above 30 degC
readings
  0 e1 temperature of s1 = 31 from roof
told
  0 S=s1: e1
  open S=s1 since 0, unknown since 6000
""",
        until=9000,
    )


def test_a_value_is_unknown_at_the_instant_of_its_expiry(told: SituationCase) -> None:
    told(
        """
situation
  temperature of S above 30 degC for 6 s
readings
  0 e1 temperature of s1 = 31 from roof
told
""",
        until=9000,
    )


def test_a_reading_at_the_instant_of_expiry_leaves_no_gap(told: SituationCase) -> None:
    told("""
situation
  temperature of S above 30 degC for 6 s
readings
  0 e1 temperature of s1 = 31 from roof
  6000 e2 temperature of s1 = 32 from roof
told
  6000 S=s1: e2
  open S=s1 since 6000
""")


def test_each_source_has_its_own_time_of_staleness(told: SituationCase) -> None:
    told(
        """
situation
  temperature of S above 30 degC for 7 s
readings
  0 e1 temperature of s1 = 31 from roof
  1000 e2 temperature of s1 = 31 from hut
told
  7000 S=s1: e2
  open S=s1 since 7000
""",
        until=8000,
    )


def test_who_is_in_no_table_is_known_from_the_first_reading_of_any_attribute(
    told: SituationCase,
) -> None:
    told(
        """
situation
  no temperature of S for 50 ms
readings
  0 e1 temperature of s1 = 20 from hut
  0 e2 temperature of s2 = 20 from hut
  30 h1 humidity of s9 = 50
told
  50 S=s1:
  50 S=s2:
  80 S=s9:
  open S=s1 since 50
  open S=s2 since 50
  open S=s9 since 80
""",
        until=80,
    )


def test_who_comes_into_a_table_is_known_from_then_on(told: SituationCase) -> None:
    told(
        """
situation
  no temperature of S for 50 ms
readings
  0 e1 temperature of s1 = 20 from hut
  90 e2 temperature of s1 = 20 from hut
told
  50 S=s1:
  80 S=s2:
  90 S=s1 since 50:
  open S=s2 since 80
""",
        tables=[stations(NORTH), stations({**NORTH, "s2": {}}, since=30)],
    )


def test_who_left_every_table_is_not_known_though_it_is_heard(told: SituationCase) -> None:
    told(
        """
situation
  temperature of S above 30 degC
readings
  0 e1 temperature of s1 = 31 from hut
  60 e2 temperature of s1 = 32 from hut
told
  0 S=s1: e1
  50 S=s1 since 0:
""",
        tables=[stations(NORTH), stations({}, since=50)],
    )


def test_nothing_lasts_from_before_an_instance_is_known(told: SituationCase) -> None:
    told(
        """
situation
  temperature of S above 30 degC for 50 ms
readings
  0 e1 temperature of s1 = 31 from hut
told
  80 S=s1: e1
  open S=s1 since 80
""",
        tables=[stations({"s1": {}}), stations({}, since=10), stations({"s1": {}}, since=30)],
        until=100,
    )


def test_late_readings_count_for_nothing() -> None:
    def reading(time: int) -> Reading:
        return Reading(time, f"e{time}", "station.humidity", "s1", (50.0,), "cellar")

    arrived = [reading(time) for time in (100, 98, 97, 120, 117, 118)]
    assert [one.time for one in without_late(arrived, 2)] == [100, 98, 120, 118]


# Rule 2: `for` and silence.


def test_a_reading_at_exactly_the_end_of_a_duration_counts(told: SituationCase) -> None:
    told("""
situation
  temperature of S above 30 degC for 50 ms
readings
  0 e1 temperature of s1 = 31 from hut
  50 e2 temperature of s1 = 30 from hut
  60 e3 temperature of s1 = 31 from hut
  110 e4 temperature of s1 = 32 from hut
told
  110 S=s1: e4
  open S=s1 since 110
""")


def test_what_was_unknown_for_a_while_has_not_lasted_and_is_not_false(told: SituationCase) -> None:
    told(
        """
situation
  NOT (temperature of S above 30 degC for 2 s)
readings
  0 e1 temperature of s1 = 31 from roof
  7000 e2 temperature of s1 = 31 from roof
  9500 e3 temperature of s1 = 20 from roof
told
  9500 S=s1:
  open S=s1 since 9500
""",
        until=9600,
    )


def test_for_is_false_while_a_false_instant_lies_in_it(told: SituationCase) -> None:
    told(
        """
situation
  NOT (temperature of S above 30 degC for 50 ms)
readings
  0 e1 temperature of s1 = 20 from hut
  10 e2 temperature of s1 = 31 from hut
told
  0 S=s1:
  60 S=s1 since 0:
""",
        until=70,
    )


def test_silence_counts_from_the_last_reading_at_any_age(told: SituationCase) -> None:
    told(
        """
situation
  no temperature of S for 50 ms
readings
  0 e1 temperature of s1 = 20 from hut
  0 e2 temperature of s2 = 20 from hut
  40 e3 temperature of s2 = 20 from hut
  90 e4 temperature of s2 = 20 from hut
told
  50 S=s1:
  open S=s1 since 50
""",
        until=100,
    )


def test_silence_of_every_attribute(told: SituationCase) -> None:
    told(
        """
situation
  no event of S for 50 ms
readings
  0 e1 temperature of s1 = 20 from hut
  30 h1 humidity of s1 = 50
  50 d1 door of s2 = open
told
  80 S=s1:
  open S=s1 since 80
""",
        until=90,
    )


def test_silence_can_last(told: SituationCase) -> None:
    told(
        """
situation
  (no temperature of S for 20 ms) for 30 ms
readings
  0 e1 temperature of s1 = 20 from hut
  0 e2 temperature of s2 = 20 from hut
  49 e3 temperature of s2 = 20 from hut
told
  50 S=s1:
  open S=s1 since 50
""",
        until=60,
    )


# Rule 4: bindings.


def test_aliases_of_one_concept_are_different_instances(told: SituationCase) -> None:
    told("""
concepts
  station S
  station T
situation
  temperature of S at most temperature of T
readings
  0 e1 temperature of s1 = 20 from hut
  0 e2 temperature of s2 = 21 from hut
told
  0 S=s1 T=s2: e1 e2
  open S=s1 T=s2 since 0
""")


def test_aliases_that_may_be_the_same_are_also_one_instance(told: SituationCase) -> None:
    told("""
concepts
  station S
  station T
  T and S may be the same
situation
  temperature of S at most temperature of T
readings
  0 e1 temperature of s1 = 20 from hut
  0 e2 temperature of s2 = 21 from hut
told
  0 S=s1 T=s1: e1
  0 S=s1 T=s2: e1 e2
  0 S=s2 T=s2: e2
  open S=s1 T=s1 since 0
  open S=s1 T=s2 since 0
  open S=s2 T=s2 since 0
""")


def test_a_missing_cell_satisfies_no_property(told: SituationCase) -> None:
    told(
        """
concepts
  station S (limit != 31 degC)
situation
  temperature of S above 20 degC
readings
  0 e1 temperature of s1 = 25 from hut
  0 e2 temperature of s2 = 25 from hut
told
  0 S=s1: e1
  open S=s1 since 0
"""
    )


def test_it_ends_when_a_property_is_lost_whatever_clears_it(told: SituationCase) -> None:
    told(
        """
concepts
  station S (region='north')
situation
  temperature of S above 30 degC
cleared by
  temperature of S below 10 degC
readings
  0 e1 temperature of s1 = 31 from hut
  60 e2 temperature of s1 = 32 from hut
told
  0 S=s1: e1
  50 S=s1 since 0:
""",
        tables=[stations(NORTH), stations({"s1": {"region": "south"}}, since=50)],
    )


def test_it_begins_when_a_property_is_gained_and_has_lasted_before(told: SituationCase) -> None:
    told(
        """
concepts
  station S (region='north')
situation
  temperature of S above 30 degC for 50 ms
readings
  0 e1 temperature of s1 = 31 from hut
told
  60 S=s1: e1
  open S=s1 since 60
""",
        tables=[stations({"s1": {}}), stations(NORTH, since=60)],
        until=70,
    )


# Rule 5: beginning and end.


def test_what_clears_it_is_looked_at_once_the_expression_is_not_true(told: SituationCase) -> None:
    told(
        """
situation
  temperature of S above 30 degC
cleared by
  humidity of S below 40 %
readings
  0 e1 temperature of s1 = 31 from hut
  10 h1 humidity of s1 = 30
  20 e2 temperature of s1 = 29 from hut
  30 e3 temperature of s1 = 31 from hut
  40 h2 humidity of s1 = 60
  50 e4 temperature of s1 = 29 from hut
told
  0 S=s1: e1
  20 S=s1 since 0: h1
  30 S=s1: e3
  open S=s1 since 30
"""
    )


def test_what_is_unknown_can_be_cleared(told: SituationCase) -> None:
    told(
        """
situation
  temperature of S above 30 degC
cleared by
  no temperature of S for 7 s
readings
  0 e1 temperature of s1 = 31 from roof
told
  0 S=s1: e1
  7000 S=s1 since 0:
""",
        until=8000,
    )


def test_a_duration_that_clears_looks_back_before_the_beginning(told: SituationCase) -> None:
    told("""
situation
  temperature of S above 30 degC
cleared by
  humidity of S below 40 % for 50 ms
readings
  0 h1 humidity of s1 = 30
  45 e1 temperature of s1 = 31 from hut
  50 e2 temperature of s1 = 29 from hut
told
  45 S=s1: e1
  50 S=s1 since 45: h1
""")


def test_an_expression_that_is_unknown_without_cleared_by_stays_open(told: SituationCase) -> None:
    told("""
situation
  limit of S below 31 degC AND temperature of S above 30 degC
readings
  0 e1 temperature of s1 = 31 from roof
  7000 e2 temperature of s2 = 31 from roof
  7001 e3 temperature of s1 = 20 from hut
told
  0 S=s1: e1
  7001 S=s1 since 0:
""")


# Rule 7: `at most once per D`.


def test_a_beginning_soon_after_the_last_is_told_later_if_it_is_still_open(
    told: SituationCase,
) -> None:
    told(
        """
situation
  temperature of S above 30 degC
  at most once per 50 ms
readings
  0 e1 temperature of s1 = 31 from hut
  10 e2 temperature of s1 = 20 from hut
  30 e3 temperature of s1 = 31 from hut
  40 e4 temperature of s1 = 32 from hut
  60 e5 temperature of s1 = 20 from hut
told
  0 S=s1: e1
  10 S=s1 since 0:
  50 S=s1: e4
  60 S=s1 since 50:
"""
    )


def test_the_next_may_be_told_so_long_after_the_one_told_later(told: SituationCase) -> None:
    told(
        """
situation
  temperature of S above 30 degC
  at most once per 50 ms
readings
  0 e1 temperature of s1 = 31 from hut
  10 e2 temperature of s1 = 20 from hut
  30 e3 temperature of s1 = 31 from hut
  60 e4 temperature of s1 = 20 from hut
  99 e5 temperature of s1 = 31 from hut
told
  0 S=s1: e1
  10 S=s1 since 0:
  50 S=s1: e3
  60 S=s1 since 50:
  100 S=s1: e5
  open S=s1 since 100
""",
        until=100,
    )


def test_what_ends_before_it_can_be_told_is_counted(told: SituationCase) -> None:
    told(
        """
situation
  temperature of S above 30 degC
  at most once per 50 ms
readings
  0 e1 temperature of s1 = 31 from hut
  10 e2 temperature of s1 = 20 from hut
  30 e3 temperature of s1 = 31 from hut
  50 e4 temperature of s1 = 20 from hut
  51 e5 temperature of s1 = 31 from hut
told
  0 S=s1: e1
  10 S=s1 since 0:
  51 S=s1: e5
  open S=s1 since 51
  left out: 1
"""
    )


def test_a_beginning_exactly_so_long_after_the_last_is_told(told: SituationCase) -> None:
    told("""
situation
  temperature of S above 30 degC
  at most once per 50 ms
readings
  0 e1 temperature of s1 = 31 from hut
  10 e2 temperature of s1 = 20 from hut
  50 e3 temperature of s1 = 31 from hut
  55 e4 temperature of s2 = 31 from hut
told
  0 S=s1: e1
  10 S=s1 since 0:
  50 S=s1: e3
  55 S=s2: e4
  open S=s1 since 50
  open S=s2 since 55
""")


def test_what_waits_to_be_told_when_time_ends_is_pending(told: SituationCase) -> None:
    told("""
situation
  temperature of S above 30 degC
  at most once per 50 ms
readings
  0 e1 temperature of s1 = 31 from hut
  10 e2 temperature of s1 = 20 from hut
  30 e3 temperature of s1 = 31 from hut
  49 e4 temperature of s1 = 31 from hut
told
  0 S=s1: e1
  10 S=s1 since 0:
  pending S=s1 since 30
""")


# Rule 6: the end of time.


def test_time_ends_with_the_last_reading_of_the_record_that_instant_included(
    told: SituationCase,
) -> None:
    told("""
situation
  temperature of S above 30 degC for 50 ms
readings
  0 e1 temperature of s1 = 31 from hut
  1 e2 temperature of s2 = 31 from hut
  50 p1 position of ann = 1, 1
told
  50 S=s1: e1
  open S=s1 since 50
""")


def test_time_runs_on_until_a_given_instant_that_instant_included(told: SituationCase) -> None:
    told(
        """
situation
  temperature of S above 30 degC for 50 ms
readings
  0 e1 temperature of s1 = 31 from hut
  1 e2 temperature of s2 = 31 from hut
told
  50 S=s1: e1
  open S=s1 since 50
""",
        until=50,
    )


def test_nothing_is_told_of_a_record_without_readings(told: SituationCase) -> None:
    told("""
situation
  no temperature of S for 50 ms
readings
told
""")
