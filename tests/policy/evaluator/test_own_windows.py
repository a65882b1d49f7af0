"""Windows of clauses, followed-bys and correlations, worked by hand. [PO-6, PO-7]"""

from __future__ import annotations

from collections.abc import Callable

Tried = Callable[[str], None]


def test_a_followed_by_has_its_own_window(tried: Tried) -> None:
    tried("""
conditions
  door of S is 'open' FOLLOWED-BY door of S is 'shut' within 20 ms
readings
  0 e1 door of s1 = open
  20 e2 door of s1 = shut
  30 e3 door of s1 = open
  49 e4 door of s1 = shut
detections
  49 S=s1: e3 e4
""")


def test_a_longer_window_of_a_followed_by_reaches_behind_the_policys(tried: Tried) -> None:
    tried("""
conditions
  door of S is 'open' FOLLOWED-BY door of S is 'shut' within 300 ms
  temperature of S > 30 degC
readings
  0 e1 door of s1 = open
  250 e2 temperature of s1 = 31
  299 e3 door of s1 = shut
  300 e4 door of s1 = shut
detections
  299 S=s1: e1 e2 e3
""")


def test_what_must_not_follow_is_decided_after_its_own_window(tried: Tried) -> None:
    tried("""
conditions
  door of S is 'open' FOLLOWED-BY NOT door of S is 'shut' within 20 ms
readings
  0 e1 door of s1 = open
  20 e2 door of s1 = shut
  30 e3 door of s1 = open
  49 e4 door of s1 = shut
detections
  20 S=s1: e1
""")


def test_what_must_not_precede_looks_back_its_own_window(tried: Tried) -> None:
    tried("""
conditions
  NOT door of S is 'shut' FOLLOWED-BY door of S is 'open' within 20 ms
readings
  0 e1 door of s1 = shut
  19 e2 door of s1 = open
  20 e3 door of s1 = open
detections
  20 S=s1: e3
""")


def test_absence_of_a_line_has_the_lines_window(tried: Tried) -> None:
    tried("""
conditions
  A is inside R
  (NOT E is inside R) within 20 ms
readings
  0 e1 position of ann = 5, 5 from badges
  20 e2 position of eve = 5, 5 from badges
  30 e3 position of bob = 5, 5 from badges
  49 e4 position of eve = 5, 5 from badges
detections
  20 A=ann R=lab: e1
""")


def test_a_mixed_line_looks_and_waits_for_its_own_window(tried: Tried) -> None:
    tried("""
conditions
  door of S is 'open'
  (temperature of S > 30 degC OR NOT humidity of S > 50 %) within 20 ms
readings
  0 e1 temperature of s1 = 31
  20 e2 door of s1 = open
  100 e3 door of s2 = open
  119 e4 temperature of s2 = 31
  200 e5 door of s2 = open
  219 e6 humidity of s2 = 51
detections
  40 S=s1: e2
  119 S=s2: e3 e4
""")


def test_a_pair_of_events_lies_within_the_innermost_window(tried: Tried) -> None:
    tried("""
conditions
  (A is near 1m of E) within 20 ms
readings
  0 e1 position of ann = 5, 5 from badges
  20 e2 position of eve = 5, 5 from badges
  39 e3 position of ann = 5, 5 from badges
detections
  39 A=ann E=eve: e2 e3
""")


def test_the_same_pairs_in_two_windows_are_two_terms(tried: Tried) -> None:
    tried("""
conditions
  A is near 1m of E
  (A is near 1m of E) within 20 ms
readings
  0 e1 position of ann = 5, 5 from badges
  50 e2 position of eve = 5, 5 from badges
  60 e3 position of ann = 5, 5 from badges
detections
  60 A=ann E=eve: e1 e2 e3
""")


def test_a_clause_absorbs_only_one_with_its_window(tried: Tried) -> None:
    tried("""
conditions
  door of S is 'open'
  NOT humidity of S > 50 %
  (NOT humidity of S > 50 % OR temperature of S > 30 degC) within 20 ms
readings
  0 e1 door of s1 = open
  5 e2 temperature of s1 = 31
detections
  100 S=s1: e1 e2
""")
    tried("""
conditions
  door of S is 'open'
  NOT humidity of S > 50 %
  NOT humidity of S > 50 % OR temperature of S > 30 degC
readings
  0 e1 door of s1 = open
  5 e2 temperature of s1 = 31
detections
  100 S=s1: e1
""")
