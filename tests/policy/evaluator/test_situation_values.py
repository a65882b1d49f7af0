"""Measured values, aggregates and causes of situations, worked by hand. [SI-3, SI-6]"""

from __future__ import annotations

import pytest

from rapport.core.errors import InvalidInput
from support.judge.situation_trials import SituationCase
from support.situation_worlds import SituationTables

TRUE_AT_ONCE = """
told
  0 S=s1: {causes}
  open S=s1 since 0
"""


def at_once(told: SituationCase, situation: str, *readings: str, causes: str) -> None:
    """The situation of s1 begins with the readings of instant 0 and lasts."""
    lines = "\n".join(f"  0 {reading}" for reading in readings)
    text = f"situation\n  {situation}\nreadings\n{lines}"
    told(text + TRUE_AT_ONCE.format(causes=causes))


def never(told: SituationCase, situation: str, *readings: str) -> None:
    """The situation does not begin with the readings of instant 0."""
    lines = "\n".join(f"  0 {reading}" for reading in readings)
    told(f"situation\n  {situation}\nreadings\n{lines}\ntold\n")


# Units.


@pytest.mark.parametrize(
    "situation",
    [
        "temperature of S = 86 degF",
        "temperature of S = 303.15 K",
        "temperature of S in degF = 86",
        "temperature of S in K = 303.15",
        "temperature of S = limit of S",
        "temperature of S + 2 K = 32 degC",
        "temperature of S - 20 degC = 10 K",
        "(temperature of S + limit of S) / 2 = 30 degC",
        "2 * temperature of S - limit of S = 86 degF",
        "temperature of S - limit of S = 0 K",
        "(temperature of S - limit of S) * 3 = 0 K",
        "temperature of S between 20 and 30 degC",
        "temperature of S between 30 degC and 30 degC",
        "temperature of S is one of (29 degC, 86 degF)",
        "change of temperature of S in the last 1 s (at least 1 readings) = 0 K",
        "0.1 * (temperature of S in degC - 27) = 0.30000000000000004",
        "(temperature of S - limit of S) / (temperature of S - limit of S + 2 K) = 0",
    ],
)
def test_temperatures_by_their_weights(told: SituationCase, situation: str) -> None:
    at_once(told, situation, "e1 temperature of s1 = 30 from hut", causes="e1")


@pytest.mark.parametrize(
    "situation",
    [
        "temperature of S - limit of S > 0 degC",
        "temperature of S + limit of S > 60 degC",
        "2 * temperature of S > 60 degC",
        "sum of temperature of S in the last 1 s > 60 degC",
        "change of temperature of S in the last 1 s > 2 degC",
        "rate of temperature of S in the last 1 s > 2 degC/min",
        "rate of temperature of S in the last 1 s > 2 K",
        "temperature of S > 30",
        "temperature of S > 30 %",
        "temperature of S > humidity of S",
        "temperature of S > humidity of S + 2 K",
        "temperature of S / limit of S > 2",
        "temperature of S * humidity of S > 2",
        "(temperature of S - limit of S) in degC > 2",
        "name of S > 2",
    ],
)
def test_what_units_refuse(told: SituationCase, situation: str) -> None:
    with pytest.raises(InvalidInput):
        never(told, situation, "e1 temperature of s1 = 30 from hut", "e2 humidity of s1 = 20")


def test_ratios_and_percentages(told: SituationCase) -> None:
    for situation in (
        "humidity of S = 500 permille",
        "humidity of S / (2 * humidity of S) = 0.5",
        "humidity of S in permille = 500",
        "humidity of S / 10 % = 5",
        "sum of humidity of S in the last 1 s = 50 %",
        "level of S = 150 cm",
        "level of S / 3 = 0.5 m",
    ):
        readings = ("e1 humidity of s1 = 50", "e2 level of s1 = 1.5")
        at_once(told, situation, *readings, causes="e2" if "level" in situation else "e1")


def test_division_by_zero_and_what_is_not_finite_are_unknown(told: SituationCase) -> None:
    hot, wet = "e1 temperature of s1 = 27 from hut", "e2 humidity of s1 = 1e308"
    for situation in (
        "1 / (temperature of S in degC - 27) > 0",
        "NOT (1 / (temperature of S in degC - 27) > 0)",
        "10 * humidity of S > 0 %",
        "NOT (10 * humidity of S > 0 %)",
    ):
        never(told, situation, hot, wet)


def test_texts_are_compared_as_they_are(told: SituationCase) -> None:
    for situation in (
        "door of S = 'open'",
        "door of S is one of ('shut', 'open')",
        "door of S is not one of ('shut', 'Open')",
        "door of S != region of S",
    ):
        at_once(told, situation, "d1 door of s1 = open", causes="d1")


def test_a_missing_cell_is_unknown(told: SituationCase) -> None:
    told("""
situation
  NOT (temperature of S above limit of S)
readings
  0 e1 temperature of s1 = 20 from hut
  0 e2 temperature of s2 = 20 from hut
told
  0 S=s1: e1
  open S=s1 since 0
""")


def test_every_value_of_a_between_is_needed(told: SituationCase) -> None:
    told("""
situation
  temperature of S is not between 40 degC and limit of S
readings
  0 e1 temperature of s1 = 20 from hut
  0 e2 temperature of s2 = 20 from hut
told
  0 S=s1: e1
  open S=s1 since 0
""")


def test_functions_of_the_site_measured_and_looked_up(told: SituationCase) -> None:
    told(
        """
concepts
  person A
  person B
situation
  distance(A, B) at most minimumDistance(A, B)
readings
  0 p1 position of 2 = 0, 0
  0 p2 position of 10 = 3, 0
  0 p3 position of 7 = 3, 0
told
  0 A=2 B=10: p1 p2
  0 A=10 B=2: p1 p2
  open A=10 B=2 since 0
  open A=2 B=10 since 0
""",
        tables=[SituationTables().version()],
    )


# Aggregates.


def test_a_window_has_its_newest_instant_and_not_its_oldest(told: SituationCase) -> None:
    told("""
situation
  max of temperature of S in the last 50 ms above 30 degC
readings
  0 e1 temperature of s1 = 31 from hut
  20 e2 temperature of s1 = 20 from hut
  60 e3 temperature of s1 = 20 from hut
told
  0 S=s1: e1
  50 S=s1 since 0:
""")


def test_two_readings_of_one_time_both_count(told: SituationCase) -> None:
    same = ("e1 temperature of s1 = 20 from hut", "e2 temperature of s1 = 30 from hut")
    for situation in (
        "mean of temperature of S in the last 1 s = 25 degC",
        "median of temperature of S in the last 1 s = 25 degC",
        "change of temperature of S in the last 1 s = 10 K",
        "min of temperature of S in the last 1 s (at least 2 readings) = 20 degC",
        "percentile 50 of temperature of S in the last 1 s = 20 degC",
        "percentile 50.1 of temperature of S in the last 1 s = 30 degC",
    ):
        at_once(told, situation, *same, causes="e2")
    never(told, "rate of temperature of S in the last 1 s != 0 K/s", *same)


def test_sums_are_exact_and_rounded_once(told: SituationCase) -> None:
    tenths = [f"e{number:02} humidity of s1 = 0.1" for number in range(10)]
    at_once(told, "sum of humidity of S in the last 1 s = 1 %", *tenths, causes="e09")
    at_once(told, "mean of humidity of S in the last 1 s = 0.1 %", *tenths, causes="e09")
    large = [f"e{number} humidity of s1 = {value}" for number, value in enumerate((1e308, 1e308))]
    never(told, "sum of humidity of S in the last 1 s > 0 %", *large)
    at_once(
        told,
        "sum of humidity of S in the last 1 s = 1e308 %",
        *large,
        "e3 humidity of s1 = -1e308",
        causes="e3",
    )


def test_percentiles_have_the_exact_rank(told: SituationCase) -> None:
    readings = [f"e{number:02} humidity of s1 = {number}" for number in range(1, 11)]
    for percentile, value in ((100, 10), (90, 9), (90.1, 10), (10, 1), (0.1, 1), (70, 7)):
        situation = f"percentile {percentile} of humidity of S in the last 1 s = {value} %"
        at_once(told, situation, *readings, causes="e10")


def test_fewer_readings_than_asked_for_are_unknown(told: SituationCase) -> None:
    told("""
situation
  NOT (mean of temperature of S in the last 50 ms (at least 2 readings) above 30 degC)
readings
  0 e1 temperature of s1 = 20 from hut
  20 e2 temperature of s1 = 20 from hut
  90 e3 temperature of s1 = 31 from hut
told
  20 S=s1: e2
  open S=s1 since 20, unknown since 50
""")


def test_a_change_needs_two_readings(told: SituationCase) -> None:
    told("""
situation
  change of temperature of S in the last 50 ms at least 0 K
readings
  0 e1 temperature of s1 = 20 from hut
  20 e2 temperature of s1 = 20 from hut
  30 e3 temperature of s1 = 19 from hut
told
  20 S=s1: e2
  30 S=s1 since 20:
""")


def test_rates_are_per_time(told: SituationCase) -> None:
    told("""
situation
  rate of level of S in the last 2 s = 5 cm/s OR rate of level of S in the last 2 s = -0.9 m/min
readings
  0 e1 level of s1 = 1
  1000 e2 level of s1 = 1.05
  1001 e3 level of s1 = 1
  2000 e4 level of s1 = 1.035
  9000 e5 level of s1 = 1.75
  10000 e6 level of s1 = 1.735
told
""")


def test_a_rate_is_one_division_each_side(told: SituationCase) -> None:
    told("""
situation
  rate of temperature of S in the last 2 s = 90 K/min
readings
  0 e1 temperature of s1 = 20 from hut
  1000 e2 temperature of s1 = 21.5 from hut
  1500 e3 temperature of s1 = 21.75 from hut
told
  1000 S=s1: e2
  1500 S=s1 since 1000:
""")


def test_a_difference_in_kelvin_is_the_number_that_is_written(told: SituationCase) -> None:
    situation = "temperature of S - 0 degC = 1.71 K"
    at_once(told, situation, "e1 temperature of s1 = 1.71 from hut", causes="e1")


def test_staleness_does_not_apply_to_aggregates(told: SituationCase) -> None:
    told(
        """
situation
  mean of temperature of S in the last 9 s above 30 degC for 8 s
readings
  0 e1 temperature of s1 = 31 from roof
told
  8000 S=s1: e1
  open S=s1 since 8000, unknown since 9000
""",
        until=9000,
    )


# Counts.


def test_a_count_is_a_lower_bound_until_its_window_is_after_the_start(told: SituationCase) -> None:
    told(
        """
situation
  count of temperature of S in the last 50 ms below 2
readings
  0 e1 temperature of s1 = 20 from hut
  10 e2 temperature of s2 = 20 from hut
  20 e3 temperature of s2 = 20 from hut
told
  50 S=s1:
  60 S=s2: e3
  open S=s1 since 50
  open S=s2 since 60
""",
        until=60,
    )


@pytest.mark.parametrize(
    "situation", ["at least 2", "above 1", "!= 1", "is not below 2", "is not between 0 and 1"]
)
def test_a_lower_bound_decides_what_is_so_for_every_number(
    told: SituationCase, situation: str
) -> None:
    told(f"""
situation
  count of temperature of S in the last 50 ms {situation}
readings
  0 e1 temperature of s1 = 20 from hut
  10 e2 temperature of s1 = 20 from hut
told
  10 S=s1: e2
  open S=s1 since 10
""")


@pytest.mark.parametrize(
    "situation", ["at most 2", "below 3", "= 2", "!= 3", "between 1 and 3", "is one of (2, 3)"]
)
def test_a_lower_bound_leaves_open_what_depends_on_more(
    told: SituationCase, situation: str
) -> None:
    never(
        told,
        f"count of temperature of S in the last 50 ms {situation}",
        "e1 temperature of s1 = 20 from hut",
        "e2 temperature of s1 = 20 from hut",
    )


@pytest.mark.parametrize(
    "situation",
    [
        "count of temperature of S in the last 50 ms * 2 - 1 at least 3",
        "10 / (count of temperature of S in the last 50 ms + 3) at most 2",
        "count of temperature of S in the last 50 ms above count of level of S in the last 5 ms",
        "humidity of S * count of temperature of S in the last 50 ms at least 60 %",
        "(humidity of S * count of temperature of S in the last 50 ms) in permille above 599",
        "2 - count of temperature of S in the last 50 ms is not above 0",
    ],
)
def test_a_calculation_with_a_lower_bound_is_decided_if_it_is_so_for_every_number(
    told: SituationCase, situation: str
) -> None:
    readings = "  -100 l level of s1 = 1\n  0 h humidity of s1 = 30\n"
    readings += "".join(f"  0 e{each} temperature of s1 = 20 from hut\n" for each in (1, 2))
    told(
        f"situation\n  {situation}\nreadings\n{readings}told\n  0 S=s1: {_causes_of(situation)}\n"
        "  open S=s1 since 0\n",
        start=-10,
    )


@pytest.mark.parametrize(
    "situation",
    [
        "count of temperature of S in the last 50 ms * 2 at most 4",
        "count of temperature of S in the last 50 ms - count of humidity of S in the last 9 ms > 0",
        "6 / count of temperature of S in the last 50 ms = 3",
        "1 / (count of temperature of S in the last 50 ms - 3) below 9",
        "humidity of S * count of temperature of S in the last 50 ms below 100 %",
    ],
)
def test_a_calculation_with_a_lower_bound_leaves_open_what_depends_on_more(
    told: SituationCase, situation: str
) -> None:
    never(
        told,
        situation,
        "h humidity of s1 = 30",
        "e1 temperature of s1 = 20 from hut",
        "e2 temperature of s1 = 20 from hut",
    )


def _causes_of(situation: str) -> str:
    return " ".join((["e2"] if "temperature" in situation else []) + ["h"] * ("humid" in situation))


def test_a_term_is_counted_with_the_value_of_each_of_its_readings(told: SituationCase) -> None:
    told("""
situation
  count of (temperature of S above 30 degC) in the last 50 ms at least 2
readings
  0 e1 temperature of s1 = 31 from hut
  0 e2 temperature of s1 = 20 from hut
  10 e3 temperature of s1 = 31 from hut
told
  10 S=s1: e3
  open S=s1 since 10
""")


def test_a_term_is_counted_with_the_present_values_of_everything_else(told: SituationCase) -> None:
    told("""
situation
  count of (temperature of S above 30 degC AND humidity of S above 50 %) in the last 50 ms above 1
readings
  0 e1 temperature of s1 = 31 from hut
  0 h2 humidity of s1 = 60
  10 h3 humidity of s1 = 40
  20 e4 temperature of s1 = 32 from hut
  30 h5 humidity of s1 = 70
told
  0 S=s1: h2
  open S=s1 since 0
""")


def test_what_a_table_changes_later_does_not_change_a_count(told: SituationCase) -> None:
    told(
        """
situation
  count of (temperature of S above limit of S) in the last 50 ms at least 1
readings
  0 e1 temperature of s1 = 31 from hut
  20 e2 temperature of s1 = 29 from hut
  70 e3 temperature of s1 = 29 from hut
told
  0 S=s1: e1
  50 S=s1 since 0:
  70 S=s1: e3
  open S=s1 since 70
""",
        tables=[
            SituationTables(station={"s1": {"limit": limit}}).version(since)
            for limit, since in ((30.0, None), (40.0, 10), (20.0, 30))
        ],
    )


def test_who_is_inside_is_counted_by_the_readings_of_one(told: SituationCase) -> None:
    told("""
concepts
  person A (status='guest')
  room R (security='restricted')
situation
  count of (A is inside R) in the last 50 ms at least 2
readings
  0 p1 position of ann = 5, 5
  10 p2 position of ann = 50, 5
  20 p3 position of ann = 10, 10
told
  20 A=ann R=lab: p3
  open A=ann R=lab since 20
""")


def test_readings_of_two_identities_are_not_counted(told: SituationCase) -> None:
    with pytest.raises(InvalidInput, match="one identity"):
        told("""
concepts
  person A
  person B
situation
  count of (A is within 5 m of B) in the last 50 ms at least 2
readings
  0 p1 position of ann = 5, 5
told
""")


# Causes.


def test_causes_are_the_true_atoms_with_the_nots_before_them(told: SituationCase) -> None:
    told("""
situation
  NOT (temperature of S above 30 degC OR (humidity of S above 50 % AND NOT level of S above 1 m))
readings
  0 a1 temperature of s1 = 20 from hut
  0 b2 humidity of s1 = 60
  0 c3 level of s1 = 2
told
  0 S=s1: a1 c3
  open S=s1 since 0
""")


def test_what_is_under_a_false_for_is_no_cause(told: SituationCase) -> None:
    told("""
situation
  temperature of S above 30 degC OR (humidity of S above 50 % for 20 ms)
readings
  0 h1 humidity of s1 = 40
  10 h2 humidity of s1 = 60
  20 e3 temperature of s1 = 31 from hut
  20 e4 temperature of s2 = 20 from hut
told
  20 S=s1: e3
  open S=s1 since 20
""")


def test_what_is_under_an_unknown_for_is_a_cause(told: SituationCase) -> None:
    told("""
situation
  temperature of S above 30 degC OR (humidity of S above 50 % for 20 ms)
readings
  0 h1 humidity of s1 = 60
  0 e2 temperature of s1 = 31 from hut
told
  0 S=s1: e2 h1
  open S=s1 since 0
""")


@pytest.mark.parametrize(
    "false", ["level of S between 2 m and 3 m", "door of S is not one of ('open', 'shut')"]
)
def test_a_range_and_a_choice_are_one_atom_each(told: SituationCase, false: str) -> None:
    told(f"""
situation
  temperature of S above 30 degC OR {false}
readings
  0 a1 level of s1 = 1
  0 b2 door of s1 = open
  10 c3 temperature of s1 = 31 from hut
told
  10 S=s1: c3
  open S=s1 since 10
""")


def test_causes_have_no_repetition_and_stand_by_time_and_id(told: SituationCase) -> None:
    told("""
situation
  temperature of S above 30 degC
  humidity of S above 50 %
  temperature of S at most 40 degC AND max of humidity of S in the last 1 s above 50 %
readings
  0 z1 humidity of s1 = 60
  10 a2 temperature of s1 = 31 from hut
  10 B3 humidity of s2 = 31
told
  10 S=s1: z1 a2
  open S=s1 since 10
""")


def test_causes_of_some_are_those_of_the_first_that_count(told: SituationCase) -> None:
    told(
        """
concepts
  room R (security='restricted')
situation
  some person B with (NOT B is inside R)
readings
  0 p1 position of 10 = 50, 5
  0 p2 position of 9 = 51, 5
  0 p3 position of 2 = 5, 5
told
  0 R=lab: p2
  open R=lab since 0
"""
    )


def test_an_end_has_the_causes_of_what_cleared_it(told: SituationCase) -> None:
    told("""
situation
  temperature of S above 30 degC
cleared by
  temperature of S below 29 degC OR humidity of S above 50 %
readings
  0 a1 temperature of s1 = 31 from hut
  10 b2 humidity of s1 = 60
  20 a3 temperature of s1 = 29.5 from hut
told
  0 S=s1: a1
  20 S=s1 since 0: b2
""")


def test_ends_stand_before_beginnings_of_the_same_time(told: SituationCase) -> None:
    told("""
situation
  temperature of S above 30 degC
readings
  0 e1 temperature of s2 = 31 from hut
  10 e2 temperature of s1 = 31 from hut
  10 e3 temperature of s2 = 20 from hut
told
  0 S=s2: e1
  10 S=s2 since 0:
  10 S=s1: e2
  open S=s1 since 10
""")
