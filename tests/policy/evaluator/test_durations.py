"""`C for D` and `no X of S for D`, worked by hand with all their borders. [PO-6, PO-7]"""

from __future__ import annotations

from collections.abc import Callable

Tried = Callable[[str], None]

# C for D


def test_a_state_fires_once_that_long_after_it_became_true(tried: Tried) -> None:
    tried("""
conditions
  temperature of S > 30 degC for 50 ms
readings
  0 e1 temperature of s1 = 31 from hut
  20 e2 temperature of s1 = 32 from hut
  300 e3 temperature of s1 = 33 from hut
detections
  50 S=s1: e1
""")


def test_a_reading_at_exactly_the_end_comes_too_late_to_end_it(tried: Tried) -> None:
    tried("""
conditions
  temperature of S > 30 degC for 50 ms
readings
  0 e1 temperature of s1 = 31 from hut
  50 e2 temperature of s1 = 30 from hut
  60 e3 temperature of s1 = 31 from hut
  109 e4 temperature of s1 = 30 from hut
detections
  50 S=s1: e1
""")


def test_it_fires_again_only_after_it_was_not_true(tried: Tried) -> None:
    tried("""
conditions
  temperature of S > 30 degC for 50 ms
readings
  0 e1 temperature of s1 = 31 from hut
  80 e2 temperature of s1 = 30 from hut
  90 e3 temperature of s1 = 31 from hut
detections
  50 S=s1: e1
  140 S=s1: e3
""")


def test_two_readings_at_one_time_are_two_steps(tried: Tried) -> None:
    tried("""
conditions
  temperature of S > 30 degC for 50 ms
readings
  0 e1 temperature of s1 = 31 from hut
  40 e2 temperature of s1 = 30 from hut
  40 e3 temperature of s1 = 31 from hut
detections
  90 S=s1: e3
""")


def test_a_value_is_unknown_when_it_is_stale(tried: Tried) -> None:
    tried("""
conditions
  temperature of S > 30 degC for 70 ms
readings
  0 e1 temperature of s1 = 31 from roof
  59 e2 temperature of s1 = 31 from roof
  118 e3 temperature of s1 = 31 from roof
  300 e4 temperature of s1 = 31 from roof
  360 e5 temperature of s1 = 31 from roof
detections
  70 S=s1: e1
""")


def test_stale_at_exactly_the_end_comes_too_late(tried: Tried) -> None:
    tried("""
conditions
  temperature of S > 30 degC for 60 ms
readings
  0 e1 temperature of s1 = 31 from roof
detections
  60 S=s1: e1
""")


def test_staleness_is_that_of_the_source_of_the_last_reading(tried: Tried) -> None:
    tried("""
conditions
  temperature of S > 30 degC for 70 ms
readings
  0 e1 temperature of s1 = 31 from roof
  10 e2 temperature of s1 = 31 from hut
  201 e3 temperature of s2 = 31 from hut
  210 e4 temperature of s2 = 31 from roof
detections
  70 S=s1: e1
""")


def test_several_values_are_the_last_ones_of_each(tried: Tried) -> None:
    tried("""
conditions
  (temperature of S > 30 degC AND humidity of S < 30 %) for 50 ms
readings
  0 e1 temperature of s1 = 31 from hut
  10 e2 humidity of s1 = 20
  20 e3 temperature of s1 = 32 from hut
  60 e4 temperature of s1 = 20 from hut
detections
  60 S=s1: e1 e2
""")


def test_an_or_of_true_and_unknown_is_true_and_its_causes_are_what_is_true(tried: Tried) -> None:
    tried("""
conditions
  (temperature of S > 30 degC OR humidity of S < 30 %) for 50 ms
readings
  0 e1 temperature of s1 = 31 from hut
  40 e2 humidity of s1 = 20
  45 e3 temperature of s1 = 30 from hut
detections
  50 S=s1: e1
""")


def test_unknown_is_not_the_contrary(tried: Tried) -> None:
    tried("""
conditions
  (temperature of S > 30 degC AND NOT humidity of S > 50 %) for 50 ms
readings
  0 e1 temperature of s1 = 31 from hut
  20 e2 temperature of s2 = 31 from hut
  30 e3 humidity of s2 = 50
detections
  80 S=s2: e2 e3
""")


def test_a_missing_value_of_a_table_is_unknown_too(tried: Tried) -> None:
    tried("""
conditions
  (NOT temperature of S < limit of S) for 50 ms
readings
  0 e1 temperature of s1 = 31 from hut
  0 e2 temperature of s2 = 31 from hut
detections
  50 S=s1: e1
""")


def test_a_relationship_that_misses_a_value_is_false(tried: Tried) -> None:
    tried("""
conditions
  P is not inside R for 50 ms
readings
  0 e1 position of ann = 5, 5 from badges
detections
  50 P=ann R=hall: e1
  50 P=ann R=nowhere: e1
""")


def test_a_state_of_two_aliases_holds_for_each_pair(tried: Tried) -> None:
    tried("""
conditions
  A is near 1m of E for 50 ms
readings
  0 e1 position of ann = 5, 5 from badges
  10 e2 position of eve = 5, 5 from badges
  20 e3 position of bob = 5, 6 from badges
  65 e4 position of ann = 9, 9 from badges
detections
  60 A=ann E=eve: e1 e2
  70 A=bob E=eve: e2 e3
""")


def test_nobody_is_near_himself(tried: Tried) -> None:
    tried("""
conditions
  P is near 1m of Q for 50 ms
readings
  0 e1 position of ann = 5, 5 from badges
  10 e2 position of ann = 5, 5 from badges
detections
""")


def test_rooms_range_over_the_tables(tried: Tried) -> None:
    tried("""
conditions
  P is inside R for 50 ms
readings
  0 e1 position of ann = 5, 5 from badges
  40 e2 position of ann = 6, 5 from badges
  100 e3 position of ann = 25, 5 from badges
detections
  50 P=ann R=lab: e1
  150 P=ann R=hall: e3
""")


def test_a_duration_is_a_positive_child_with_its_end(tried: Tried) -> None:
    tried("""
conditions
  temperature of S > 30 degC for 50 ms FOLLOWED-BY door of S is 'open'
readings
  0 e1 temperature of s1 = 31 from hut
  50 e2 door of s1 = open
  149 e3 door of s1 = open
  150 e4 door of s1 = open
detections
  149 S=s1: e1 e3
""")


# no X of S for D


def test_silence_fires_once_after_the_last_reading(tried: Tried) -> None:
    tried("""
conditions
  no temperature of M for 50 ms
readings
  0 e1 temperature of s1 = 1 from hut
  30 e2 temperature of s1 = 1 from hut
  200 e3 temperature of s2 = 1 from hut
  300 e4 temperature of s1 = 1 from hut
detections
  80 M=s1: e2
  350 M=s1: e4
""")


def test_a_reading_at_exactly_the_end_comes_too_late_to_break_the_silence(tried: Tried) -> None:
    tried("""
conditions
  no temperature of M for 50 ms
readings
  0 e1 temperature of s1 = 1 from hut
  50 e2 temperature of s1 = 1 from hut
  99 e3 temperature of s1 = 1 from hut
detections
  50 M=s1: e1
  149 M=s1: e3
""")


def test_known_instances_count_from_the_first_reading_of_all(tried: Tried) -> None:
    tried("""
conditions
  no temperature of S for 50 ms
readings
  10 e1 position of ann = 5, 5 from badges
  59 e2 temperature of s1 = 1 from hut
  60 e3 temperature of s2 = 1 from hut
  90 e4 temperature of nobody = 1 from hut
detections
  60 S=s2:
  109 S=s1: e2
  110 S=s2: e3
  140 S=nobody: e4
""")


def test_a_reading_at_the_very_start_is_one(tried: Tried) -> None:
    tried("""
conditions
  no temperature of M for 50 ms
readings
  0 e1 position of ann = 5, 5 from badges
  0 e2 temperature of s1 = 1 from hut
  0 e3 temperature of s1 = 2 from hut
detections
  50 M=s1: e3
""")


def test_any_event_breaks_the_silence_of_an_instance(tried: Tried) -> None:
    tried("""
conditions
  no event of M for 50 ms
readings
  0 e1 temperature of s1 = 1 from hut
  40 e2 door of s1 = open
  80 e3 humidity of s1 = 5
  100 e4 door of s2 = open
detections
  130 M=s1: e3
""")


def test_silence_that_has_no_event_still_has_an_end(tried: Tried) -> None:
    tried("""
conditions
  no temperature of M for 50 ms FOLLOWED-BY door of M is 'open'
readings
  0 e1 door of s1 = open
  50 e2 door of s1 = open
  51 e3 door of s1 = open
  150 e4 door of s1 = open
detections
  51 M=s1: e3
""")


def test_without_readings_nothing_begins(tried: Tried) -> None:
    tried("""
conditions
  no temperature of M for 50 ms
readings
detections
""")


def test_a_pair_has_a_state_only_once_both_have_a_reading(tried: Tried) -> None:
    tried("""
conditions
  (temperature of S > 30 degC OR temperature of T > 90 degC) for 50 ms
  distinct S, T
readings
  0 e1 temperature of s1 = 31 from hut
  20 e2 temperature of s2 = 20 from hut
detections
  70 S=s1 T=s2: e1
""")


def test_a_fact_alone_makes_a_state_true_from_the_first_reading_on(tried: Tried) -> None:
    tried("""
conditions
  (limit of S = 30 degC OR temperature of S > 90 degC) for 50 ms
readings
  10 e1 temperature of s2 = 20 from hut
  20 e2 temperature of s1 = 20 from hut
  90 e3 temperature of s1 = 99 from hut
detections
  70 S=s1:
""")
