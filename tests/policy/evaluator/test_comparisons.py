"""Comparisons, worked by hand: rule 2 of docs/semantics.md. [PO-3, PO-7]"""

from __future__ import annotations

from collections.abc import Callable

import pytest

Tried = Callable[[str], None]


def test_a_reading_is_compared_with_a_constant_in_any_unit(tried: Tried) -> None:
    tried("""
conditions
  temperature of S above 86 degF
readings
  0 e1 temperature of s1 = 30
  5 e2 temperature of s1 = 30.5
  9 e3 temperature of nobody = 31
detections
  5 S=s1: e2
  9 S=nobody: e3
""")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("at least 30 degC", "1 2"),
        ("at most 30 degC", "0 1"),
        ("below 30 degC", "0"),
        ("= 30 degC", "1"),
        ("is not 30 degC", "0 2"),
    ],
)
def test_borders_belong_to_at_least_and_at_most(tried: Tried, words: str, found: str) -> None:
    found_lines = "\n".join(f"  {time} S=s1: e{time}" for time in found.split())
    tried(f"""
conditions
  temperature of S {words}
readings
  0 e0 temperature of s1 = 29
  1 e1 temperature of s1 = 30
  2 e2 temperature of s1 = 31
detections
{found_lines}
""")


def test_a_missing_value_holds_nothing_not_even_unequal(tried: Tried) -> None:
    tried("""
conditions
  temperature of S is not limit of S
readings
  0 e1 temperature of s1 = 30
  1 e2 temperature of s1 = 31
  2 e3 temperature of s2 = 31
  3 e4 temperature of nobody = 31
detections
  1 S=s1: e2
""")


def test_under_a_not_a_missing_value_is_no_counterexample(tried: Tried) -> None:
    tried("""
conditions
  door of S is 'open'
  NOT temperature of S < limit of S
readings
  0 e1 door of s1 = open
  0 e2 door of s2 = open
  5 e3 temperature of s1 = 29
  5 e4 temperature of s2 = 29
detections
  100 S=s2: e2
""")


def test_a_reading_is_compared_with_every_instance_of_the_other_alias(tried: Tried) -> None:
    tried("""
conditions
  temperature of S at least limit of R
readings
  0 e1 temperature of s2 = 30
detections
  0 R=lab S=s2: e1
""")


def test_two_attributes_of_one_alias_make_pairs_of_events(tried: Tried) -> None:
    tried("""
conditions
  temperature of S = 31 degC
  humidity of S below 20 %
readings
  0 e1 temperature of s1 = 31
  10 e2 humidity of s2 = 10
  99 e3 humidity of s1 = 10
  200 e4 humidity of s1 = 10
detections
  99 S=s1: e1 e3
""")


def test_texts_compare_as_texts(tried: Tried) -> None:
    tried("""
conditions
  door of S = door of T
  distinct S, T
readings
  0 e1 door of s1 = open
  1 e2 door of s2 = shut
  2 e3 door of s2 = open
detections
  2 S=s1 T=s2: e1 e3
  2 S=s2 T=s1: e1 e3
""")


def test_a_measure_is_compared_with_a_looked_up_number(tried: Tried) -> None:
    tried("""
conditions
  distance(P, Q) < minimumDistance(P, Q)
  distinct P, Q
readings
  0 e1 position of ann = 0, 0
  1 e2 position of bob = 4, 0
  2 e3 position of bob = 3.5, 0
  3 e4 position of eve = 0, 0
detections
  2 P=ann Q=bob: e1 e3
  2 P=bob Q=ann: e1 e3
""")


def test_a_fact_extends_the_bindings_and_needs_no_events(tried: Tried) -> None:
    tried("""
conditions
  temperature of S > 30 degC
  limit of T = 30 degC
readings
  0 e1 temperature of s2 = 31
detections
  0 S=s2 T=s1: e1
""")
