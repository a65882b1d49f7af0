"""Different occurrences that say the same are one detection, also when they are decided in two
batches; worked by hand. [PO-7, PO-15]
"""

from __future__ import annotations

from collections.abc import Callable

Tried = Callable[[str], None]


def test_what_is_certain_at_once_and_what_waits_for_a_clock_are_one(tried: Tried) -> None:
    """The second is known 10 ms later: a guard may yet turn out to have preceded."""
    tried("""
conditions
  (NOT E is inside R FOLLOWED-BY temperature of S > 30 degC) OR temperature of S > 20 degC
readings
  0 e1 temperature of s1 = 31
  5 e2 position of ann = 50, 50 from gate
  500 e3 temperature of s1 = 32
detections
  0 S=s1: e1
  500 S=s1: e3
""")


def test_what_is_certain_at_once_and_what_may_yet_be_followed_are_one(tried: Tried) -> None:
    """No clock is uncertain: one of two children with equal events waits for its absence."""
    tried("""
conditions
  temperature of S > 30 degC OR (temperature of S > 20 degC FOLLOWED-BY NOT humidity of S > 10 %) \
OR temperature of S > 20 degC
readings
  0 e1 temperature of s1 = 31
  5 e2 position of ann = 50, 50 from badges
  500 e3 position of ann = 50, 50 from badges
detections
  0 S=s1: e1
""")


def test_what_is_left_out_is_counted_once(tried: Tried) -> None:
    tried("""
conditions
  (NOT E is inside R FOLLOWED-BY temperature of S > 30 degC) OR temperature of S > 20 degC
  at most once per 50 ms
readings
  0 e1 temperature of s1 = 31
  20 e2 temperature of s1 = 31
  35 e3 position of ann = 50, 50 from gate
  500 e4 temperature of s1 = 32
detections
  0 S=s1: e1
  500 S=s1: e4
  left out: 1
""")
