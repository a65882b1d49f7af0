"""Policies that set each other off, and contrary actions. [PO-12]"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from rapport.policy.lint.policy_set import (
    CONTRARY,
    Pair,
    action_statements,
    contrary_to,
    effect_of,
    exclude_each_other,
    policy_graph,
    reads_of,
    shortest_cycle,
)

TEXT = """concepts
  station S (kind='mast')
conditions
  {condition}
actions
  go
"""


def contrary_target(one: str, other: str, pairs: Iterable[Pair] = CONTRARY) -> str | None:
    """The target of which both phrases state contrary things; None if there is none."""
    known = list(pairs)
    theirs = {contrary_to(statement) for statement in action_statements(other, known)}
    return next((one.target for one in action_statements(one, known) if one in theirs), None)


def plan(stations: Any, condition: str) -> Any:
    return stations.compile(TEXT.format(condition=condition)).plan


def test_a_policy_reads_streams_facts_and_properties(stations: Any) -> None:
    found = plan(stations, "temperature of S above 3\n  floor of S above 2")
    assert reads_of(found) == {"station.temperature", "station.floor", "station.kind"}


def test_what_an_action_appends_or_sets_is_what_policies_read(stations: Any) -> None:
    ontology = stations.ontology
    assert effect_of("a", {"append": "raw.temperatures"}, ontology).gives == {"station.temperature"}
    assert effect_of("a", {"set": "station.kind"}, ontology).gives == {"station.kind"}
    assert effect_of("a", {"append": "elsewhere", "type": "x.y"}, ontology).gives == frozenset()
    assert effect_of("a", {"append": "raw.unknown"}, ontology).gives == frozenset()
    assert effect_of("a", {"send_to": "peer:x", "append": 3}, ontology).gives == frozenset()


def test_policies_lead_to_the_readers_of_their_effects(stations: Any) -> None:
    plans = {
        "heat": plan(stations, "temperature of S above 3"),
        "wet": plan(stations, "humidity of S above 3"),
    }
    effects = {
        "heat": [effect_of("a", {"append": "raw.humiditys"}, stations.ontology)],
        "wet": [effect_of("b", {"set": "station.kind"}, stations.ontology)],
    }
    leads = policy_graph(plans, effects)
    assert leads == {"heat": {"wet"}, "wet": {"heat", "wet"}}
    assert shortest_cycle("heat", leads) == ("heat", "wet", "heat")
    assert shortest_cycle("wet", leads) == ("wet", "wet")


def test_the_shortest_way_round_is_found_in_any_graph() -> None:
    assert shortest_cycle("a", {"a": ["b"], "b": ["c"], "c": []}) == ()
    assert shortest_cycle("a", {"a": ["b", "c"], "b": ["b"], "c": ["d"], "d": ["a"]}) == (
        "a",
        "c",
        "d",
        "a",
    )
    long = {str(number): [str(number + 1)] for number in range(5_000)} | {"5000": ["0"]}
    assert len(shortest_cycle("0", long)) == 5_002


@pytest.mark.parametrize(
    ("one", "other", "target"),
    [
        ("open door", "close door", "door"),
        ("Open the main door", "shut main door", "main door"),
        ("turn light on", "switch off the light", "light"),
        ("unlock gate 3", "lock gate 3", "gate 3"),
        ("lower blinds", "raise the blinds", "blinds"),
        ("open", "close", ""),
        ("open door", "open door", None),
        ("open door", "close window", None),
        ("raise alarm", "tell guards", None),
        ("", "", None),
    ],
)
def test_contrary_words_on_one_target_are_seen(one: str, other: str, target: str | None) -> None:
    assert contrary_target(one, other) == target
    assert contrary_target(other, one) == target


def test_a_sites_own_words_can_be_contrary() -> None:
    pairs = (("let in", "throw out"), *CONTRARY)
    assert contrary_target("let in guests", "throw out the guests", pairs) == "guests"
    assert contrary_target("let in guests", "throw out the guests") is None


def test_conditions_that_exclude_each_other_for_one_instance(stations: Any) -> None:
    hot, cold = "temperature of S above 30", "temperature of S below 20"
    assert exclude_each_other(plan(stations, hot), plan(stations, cold)) == "station"
    assert exclude_each_other(plan(stations, hot), plan(stations, hot)) == ""
    both = f"({hot} OR humidity of S above 3)"
    assert exclude_each_other(plan(stations, both), plan(stations, cold)) == ""
