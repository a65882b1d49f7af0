"""`at most once per D` and clock uncertainty, worked by hand. [PO-3, PO-7, PO-15]"""

from __future__ import annotations

from collections.abc import Callable

Tried = Callable[[str], None]


def test_what_was_reported_less_than_so_long_before_is_left_out(tried: Tried) -> None:
    tried("""
conditions
  temperature of S > 30 degC
  at most once per 50 ms
readings
  0 e1 temperature of s1 = 31
  49 e2 temperature of s1 = 31
  50 e3 temperature of s1 = 31
  99 e4 temperature of s1 = 31
  100 e5 temperature of s1 = 31
detections
  0 S=s1: e1
  50 S=s1: e3
  100 S=s1: e5
  left out: 2
""")


def test_other_identities_are_reported(tried: Tried) -> None:
    tried("""
conditions
  temperature of S > 30 degC
  at most once per 50 ms
readings
  0 e1 temperature of s1 = 31
  10 e2 temperature of s2 = 31
  20 e3 temperature of s1 = 31
detections
  0 S=s1: e1
  10 S=s2: e2
  left out: 1
""")


def test_of_equal_times_the_first_in_the_order_of_the_output_is_reported(tried: Tried) -> None:
    tried("""
conditions
  temperature of S > 30 degC
  at most once per 1 ms
readings
  0 e2 temperature of s1 = 31
  0 e1 temperature of s1 = 32
  1 e3 temperature of s1 = 31
detections
  0 S=s1: e1
  1 S=s1: e3
  left out: 1
""")


def test_what_is_undecided_neither_counts_nor_suppresses(tried: Tried) -> None:
    tried("""
conditions
  A is inside R
  E is not inside R
  at most once per 200 ms
readings
  0 e1 position of ann = 5, 5 from badges
  0 e2 position of bob = 50, 50 from beat
  150 e3 position of ann = 5, 5 from badges
  150 h1 position of bob = 50, 50 from beat
  190 h2 position of bob = 50, 50 from beat
  230 h3 position of bob = 50, 50 from beat
detections
  250 A=ann R=lab: e3
  100 A=ann R=lab: e1 (undecided: beat)
""")


def test_an_order_that_is_not_certain_does_not_match(tried: Tried) -> None:
    tried("""
conditions
  A is inside R FOLLOWED-BY E is inside R
readings
  0 e1 position of ann = 5, 5 from gate
  20 e2 position of eve = 5, 5 from gate
  121 e3 position of bob = 5, 5 from gate
  142 e4 position of eve = 5, 5 from gate
detections
  142 A=bob E=eve R=lab: e3 e4
""")


def test_one_certain_clock_halves_the_doubt(tried: Tried) -> None:
    tried("""
conditions
  A is inside R FOLLOWED-BY E is inside R
readings
  0 e1 position of ann = 5, 5 from badges
  10 e2 position of eve = 5, 5 from gate
  11 e3 position of eve = 5, 5 from gate
  99 e4 position of eve = 5, 5 from gate
  100 e5 position of eve = 5, 5 from gate
detections
  11 A=ann E=eve R=lab: e1 e3
  99 A=ann E=eve R=lab: e1 e4
""")


def test_what_may_have_followed_refutes(tried: Tried) -> None:
    tried("""
conditions
  A is inside R FOLLOWED-BY NOT E is inside R
readings
  100 e1 position of eve = 5, 5 from gate
  119 e2 position of ann = 5, 5 from gate
  600 e3 position of eve = 5, 5 from gate
  620 e4 position of bob = 5, 5 from gate
detections
  720 A=bob R=lab: e4
""")
    tried("""
conditions
  A is inside R FOLLOWED-BY NOT E is inside R
readings
  0 e1 position of ann = 5, 5 from gate
  119 e2 position of eve = 5, 5 from gate
  400 e3 position of bob = 5, 5 from gate
  520 e4 position of eve = 5, 5 from gate
detections
  500 A=bob R=lab: e3
""")


def test_what_may_have_preceded_refutes(tried: Tried) -> None:
    tried("""
conditions
  NOT E is inside R FOLLOWED-BY A is inside R
readings
  0 e1 position of ann = 5, 5 from gate
  19 e2 position of eve = 5, 5 from gate
  138 e3 position of bob = 5, 5 from gate
  400 e4 position of ann = 5, 5 from gate
  420 e5 position of eve = 5, 5 from gate
  540 e6 position of bob = 5, 5 from gate
detections
  400 A=ann R=lab: e4
  540 A=bob R=lab: e6
""")
