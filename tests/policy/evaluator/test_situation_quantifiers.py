"""Quantifiers of situations, worked by hand. [SI-8]"""

from __future__ import annotations

from support.judge.situation_trials import SituationCase


def test_a_missing_value_of_an_alias_outside_makes_a_quantifier_unknown(
    told: SituationCase,
) -> None:
    told("""
concepts
  room R
situation
  no person B with (B is inside R)
readings
  0 p1 position of ann = 50, 50
told
  0 R=lab:
  open R=lab since 0
""")


def test_unknown_instances_do_not_count(told: SituationCase) -> None:
    told(
        """
concepts
  person A (status='guest')
situation
  no person B with (B is within 5 m of A)
readings
  0 p1 position of ann = 5, 5 from gates
  10 p2 position of bob = 6, 6 from badges
told
  0 A=ann:
  10 A=ann since 0:
  10010 A=ann:
  open A=ann since 10010
""",
        until=10020,
    )


def test_a_stale_value_of_an_alias_outside_is_unknown_though_others_count(
    told: SituationCase,
) -> None:
    told(
        """
concepts
  person A (status='guest')
  room R (security='restricted')
situation
  some person B with (B is within 5 m of A OR B is inside R)
  A is inside R OR id of A = 'ann'
readings
  0 p1 position of ann = 5, 5 from badges
  0 p2 position of bob = 6, 6 from gates
told
  0 A=ann R=lab: p1 p2
  open A=ann R=lab since 0, unknown since 10000
""",
        until=10020,
    )


def test_what_only_an_inner_quantifier_reads_of_an_alias_outside_is_needed(
    told: SituationCase,
) -> None:
    told("""
concepts
  person A (status='guest')
situation
  at most 2 room R with (no person B with (B is within 5 m of A AND B is inside R))
readings
  0 p1 position of bob = 5, 5
  10 p2 position of ann = 50, 50
told
  10 A=ann:
  open A=ann since 10
""")


def test_a_relationship_of_aliases_outside_is_needed_in_a_quantifier(told: SituationCase) -> None:
    told("""
concepts
  person A (status='guest')
  person B (status='employee')
situation
  no station T with (temperature of T above 30 degC AND A is within 5 m of B)
readings
  0 p1 position of ann = 5, 5
  10 p2 position of bob = 50, 5
told
  10 A=ann B=bob:
  open A=ann B=bob since 10
""")


def test_a_lower_bound_does_not_make_a_quantifier_unknown(told: SituationCase) -> None:
    told(
        """
situation
  no station T with (count of temperature of S in the last 50 ms at least 9)
readings
  0 e1 temperature of s1 = 20 from hut
told
  0 S=s1:
  0 S=s2:
  open S=s1 since 0
  open S=s2 since 0
"""
    )


def test_an_aggregate_of_an_alias_outside_that_is_unknown_makes_it_unknown(
    told: SituationCase,
) -> None:
    told("""
situation
  no station T with (mean of temperature of S in the last 1 s above temperature of T)
readings
  0 e1 temperature of s1 = 20 from hut
told
  0 S=s1:
  open S=s1 since 0
""")


def test_a_quantifier_leaves_out_those_bound_to_any_alias_of_its_concept(
    told: SituationCase,
) -> None:
    told("""
concepts
  person A
  person B
  room R (security='restricted')
situation
  A is within 1 m of B
  some person C with (C is inside R)
readings
  0 p1 position of ann = 5, 5
  0 p2 position of bob = 5, 5
  10 p3 position of eve = 5, 50
  20 p4 position of eve = 5, 9
told
  20 A=ann B=bob R=lab: p1 p2 p4
  20 A=bob B=ann R=lab: p1 p2 p4
  open A=ann B=bob R=lab since 20
  open A=bob B=ann R=lab since 20
""")


def test_at_least_and_at_most_count(told: SituationCase) -> None:
    told("""
concepts
  room R (security='restricted')
situation
  at least 2 person B with (B is inside R)
  at most 2 person B with (B is inside R)
readings
  0 p1 position of ann = 5, 5
  10 p2 position of bob = 5, 5
  20 p3 position of eve = 5, 5
  30 p4 position of ann = 5, 50
told
  10 R=lab: p1 p2
  20 R=lab since 10:
  30 R=lab: p2 p3
  open R=lab since 30
""")


def test_a_quantifier_ranges_over_its_kind_and_properties(told: SituationCase) -> None:
    told("""
concepts
  room R (security='restricted')
situation
  some employee B with (B is inside R)
  no station T (region='south') with (temperature of T above 30 degC)
readings
  0 p1 position of ann = 5, 5
  10 p2 position of eve = 5, 5
  20 e3 temperature of s1 = 31 from hut
  30 e4 temperature of s2 = 31 from hut
told
  10 R=lab: p2
  30 R=lab since 10:
""")


def test_a_quantifier_needs_no_aliases(told: SituationCase) -> None:
    told("""
concepts
situation
  some station T with (temperature of T above 30 degC)
readings
  0 e1 temperature of s1 = 20 from hut
  10 e2 temperature of s2 = 31 from hut
  20 e3 temperature of s2 = 20 from hut
told
  10 : e2
  20 since 10:
""")
