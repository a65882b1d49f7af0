"""Hand-made plans, one per kind of term and window: what the operator finds, at which border."""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import Any

import msgspec
import numpy as np
import pytest

from rapport.core.errors import Unsupported
from rapport.policy.ontology import Ontology, PushSource
from rapport.policy.operators import make_operator
from rapport.policy.operators.base import END_OF_TIME
from rapport.policy.plan import (
    Absent,
    Clause,
    Compared,
    Constant,
    Constraint,
    ConstraintTerm,
    CorrelationTerm,
    LookedUp,
    Measure,
    Plan,
    Positive,
    QueryTerm,
    ReadingTerm,
    Sequence,
    Side,
    SideValue,
)
from rapport.tables.instances import Instances
from support.judge.occurrences import Reading
from support.varied.worlds import Pull, readings_batch


def source(name: str, attribute: str, uncertainty_ms: int = 0) -> PushSource:
    concept = "person" if attribute == "position" else "station"
    value = ("x", "y") if attribute == "position" else ("value",)
    return PushSource(
        name=name,
        concept=concept,
        attribute=attribute,
        key="key",
        value=value,
        uncertainty_ms=uncertainty_ms,
    )


ONTOLOGY = Ontology(
    concepts={
        "station": {"temperature": "number", "dewpoint": "number", "limit": "number"},
        "person": {"position": "point"},
        "room": {"area": "rectangle", "building": "text"},
        "building": {"name": "text", "security": "text"},
    },
    relationships={},
    sources={
        one.name: one
        for one in (
            source("hut", "temperature"),
            source("vague", "temperature", 10),
            source("cellar", "dewpoint"),
            source("badges", "position"),
        )
    },
)
PULL = Pull(
    {
        "station": Instances("station", ["s", "t"], {"limit": np.array([30.0, float("nan")])}),
        "room": Instances(
            "room",
            ["lab", "hall"],
            {
                "area": np.array([[0.0, 0.0, 9.0, 9.0]] * 2),
                "building": np.array(["west", "east"], object),
            },
        ),
        "building": Instances(
            "building",
            ["b1", "b2"],
            {
                "name": np.array(["west", "east"], object),
                "security": np.array(["none", "staff"], object),
            },
        ),
    },
    {"least": {("ann", "bob"): 4.0, ("bob", "ann"): 4.0}},
)
TEMPERATURE = Side("S", "station", "temperature", (), "station.temperature")
DEWPOINT = Side("S", "station", "dewpoint", (), "station.dewpoint")
LIMIT = Side("T", "station", "limit", (), None)
ANN = Side("A", "person", "position", (), "person.position")
BOB = Side("B", "person", "position", (), "person.position")
OWN = SideValue(0, "temperature")
HOT = ReadingTerm(TEMPERATURE, Compared(OWN, ">", Constant(30.0)))
COLD = ReadingTerm(TEMPERATURE, Compared(OWN, "<", Constant(0.0)))


def temperatures(*told: tuple[int, str, float] | tuple[int, str, float, str]) -> list[Reading]:
    rows = [(*each, "hut")[:4] for each in told]
    return [
        Reading(time, f"e{number}", "station.temperature", who, (value,), source)
        for number, (time, who, value, source) in enumerate(rows)
    ]


def positions(*told: tuple[int, str, float]) -> list[Reading]:
    return [
        Reading(time, f"p{number}", "person.position", who, (x, 0.0))
        for number, (time, who, x) in enumerate(told)
    ]


def plan(terms: Several[Any], *clauses: Clause, **more: Any) -> Plan:
    return Plan(
        policy="p", terms=tuple(terms), clauses=clauses, actions=(), **({"window_ms": 100} | more)
    )


def found(made: Plan, readings: Several[Reading], pull: Pull = PULL) -> list[tuple[int, str, str]]:
    """Time, bindings and causes; the same in one piece and reading by reading, saved in between."""
    ordered = sorted(readings, key=lambda each: (each.time, each.id))
    operator = make_operator(made, pull, sources=ONTOLOGY.sources)
    whole = operator.process(readings_batch(ordered, ONTOLOGY), END_OF_TIME)
    operator, single = make_operator(made, pull, sources=ONTOLOGY.sources), []
    for time in sorted({each.time for each in ordered}):
        now = [each for each in ordered if each.time == time]
        single += operator.process(readings_batch(now, ONTOLOGY), time + 1)
        saved = operator.snapshot()
        operator = make_operator(made, pull, sources=ONTOLOGY.sources)
        operator.restore(saved)
    single += operator.process(readings_batch([], ONTOLOGY), END_OF_TIME)
    assert sorted(map(repr, whole)) == sorted(map(repr, single))
    return [
        (
            each.time,
            " ".join(f"{alias}={who}" for alias, who in sorted(each.bindings.items())),
            " ".join(id for _, id in each.causes),
        )
        for each in whole
    ]


def test_a_reading_term_occurs_with_every_event_for_which_it_holds() -> None:
    told = temperatures((1, "s", 31.0), (2, "s", 30.0), (3, "t", 40.0), (4, "u", 35.0))
    assert found(plan([HOT], Clause((Positive(0),))), told) == [
        (1, "S=s", "e0"),
        (3, "S=t", "e2"),
        (4, "S=u", "e3"),
    ]
    above_limit = ReadingTerm(TEMPERATURE, Compared(OWN, ">", SideValue(0, "limit")))
    made = plan([above_limit], Clause((Positive(0),)))
    assert found(made, told) == [(1, "S=s", "e0")]


def test_a_comparison_with_tables_occurs_per_matching_instance() -> None:
    term = QueryTerm(TEMPERATURE, LIMIT, "", compared=Compared(OWN, ">", SideValue(1, "limit")))
    made = plan([term], Clause((Positive(0),)))
    assert found(made, temperatures((1, "x", 31.0), (2, "s", 29.0))) == [(1, "S=x T=s", "e0")]


def test_a_comparison_of_two_streams_of_one_alias_pairs_readings_of_one_identity() -> None:
    term = CorrelationTerm(
        TEMPERATURE, DEWPOINT, "", compared=Compared(OWN, "<=", SideValue(1, "dewpoint"))
    )
    told = temperatures((1, "s", 5.0), (2, "t", 5.0), (140, "s", 6.0))
    told += [
        Reading(time, f"d{time}", "station.dewpoint", "s", (7.0,)) for time in (50, 100, 101, 139)
    ]
    made = plan([term], Clause((Positive(0),)))
    assert found(made, told) == [(50, "S=s", "e0 d50"), (140, "S=s", "d100 e2")]
    recent = msgspec.structs.replace(made, consumption="recent")
    assert found(recent, told) == [(50, "S=s", "e0 d50"), (140, "S=s", "d139 e2")]


def test_recent_discards_older_events_of_the_other_stream_only() -> None:
    term = CorrelationTerm(
        TEMPERATURE, DEWPOINT, "", compared=Compared(OWN, "!=", SideValue(1, "dewpoint"))
    )
    told = temperatures((1, "s", 1.0), (4, "s", 2.0))
    told += [Reading(time, f"d{time}", "station.dewpoint", "s", (9.0,)) for time in (2, 3, 5)]
    made = plan([term], Clause((Positive(0),)), consumption="recent")
    assert found(made, told) == [(2, "S=s", "e0 d2"), (4, "S=s", "d3 e1")]


def test_a_distance_below_a_looked_up_number_finds_only_known_pairs() -> None:
    distance = Measure("distance", (SideValue(0, "position"), SideValue(1, "position")))
    least = LookedUp("least", (SideValue(0, "id"), SideValue(1, "id")))
    term = CorrelationTerm(ANN, BOB, "", compared=Compared(distance, "<", least))
    told = positions((1, "ann", 0.0), (2, "bob", 3.0), (3, "cid", 0.0), (4, "bob", 4.0))
    made = plan([term], Clause((Positive(0),)))
    assert found(made, told) == [(2, "A=ann B=bob", "p0 p1"), (2, "A=bob B=ann", "p0 p1")]


def test_a_fact_compares_what_tables_know_of_one_alias() -> None:
    inside = QueryTerm(TEMPERATURE, LIMIT, "", compared=Compared(OWN, ">", Constant(0.0)))
    fact = ConstraintTerm(
        LIMIT, LIMIT, "", compared=Compared(SideValue(0, "limit"), ">=", Constant(30.0))
    )
    made = plan([inside, fact], Clause((Positive(0),)), Clause((Positive(1),)))
    assert found(made, temperatures((1, "x", 1.0))) == [(1, "S=x T=s", "e0")]


def test_facts_constrain_and_enrich_what_events_show_as_in_figure_5_9() -> None:
    """A is near B, and in a room that belongs to a building without security staff."""
    near = CorrelationTerm(ANN, BOB, "within", 5.0)
    room = Side("R", "room", "area", (), None)
    inside = QueryTerm(ANN, room, "inside")
    belongs = ConstraintTerm(
        Side("R", "room", "building", (), None),
        Side("H", "building", "name", (Constraint("security", "=", "none"),), None),
        "same",
    )
    made = plan(
        [near, inside, belongs],
        Clause((Positive(0),)),
        Clause((Positive(1),)),
        Clause((Positive(2),)),
        distinct=(("A", "B"),),
    )
    told = positions((1, "ann", 8.0), (2, "bob", 10.0))
    assert found(made, told) == [(2, "A=ann B=bob H=b1 R=lab", "p0 p1")]


def test_a_sequence_uses_its_own_window() -> None:
    told = temperatures((0, "s", 31.0), (149, "s", -1.0), (150, "s", -2.0))
    for child, ends in ((Sequence(0, 1), []), (Sequence(0, 1, window_ms=150), [149])):
        made = plan([HOT, COLD], Clause((child,)))
        assert [time for time, _, _ in found(made, told)] == ends
    clause = Clause((Sequence(0, 1),), window_ms=151)
    assert [time for time, _, _ in found(plan([HOT, COLD], clause), told)] == [149, 150]
    inner = Clause((Sequence(0, 1, window_ms=150),), window_ms=20)
    assert [time for time, _, _ in found(plan([HOT, COLD], inner), told)] == [149]


def test_what_must_not_follow_or_precede_uses_the_sequences_window() -> None:
    told = temperatures((0, "s", 31.0), (150, "s", -1.0))
    follow = Sequence(0, 1, second_negated=True, window_ms=150)
    assert found(plan([HOT, COLD], Clause((follow,))), told) == [(150, "S=s", "e0")]
    longer = msgspec.structs.replace(follow, window_ms=151)
    assert found(plan([HOT, COLD], Clause((longer,))), told) == []
    precede = Sequence(0, 1, first_negated=True, window_ms=150)
    assert found(plan([HOT, COLD], Clause((precede,))), told) == [(150, "S=s", "e1")]
    longer = msgspec.structs.replace(precede, window_ms=151)
    assert found(plan([HOT, COLD], Clause((longer,))), told) == []


def test_equal_sequences_with_different_windows_are_decided_each_by_itself() -> None:
    warm = ReadingTerm(TEMPERATURE, Compared(OWN, ">", Constant(10.0)))
    terms = [HOT, COLD, warm]
    told = temperatures((0, "s", 31.0), (30, "s", -1.0), (60, "s", 11.0))

    def either(first_ms: int, second_ms: int) -> list[tuple[int, str, str]]:
        children = (
            Sequence(0, 1, second_negated=True, window_ms=first_ms),
            Sequence(0, 2, second_negated=True, window_ms=second_ms),
        )
        return found(plan(terms, Clause(children)), told)

    assert either(80, 80) == []
    assert either(80, 50) == [(50, "S=s", "e0")]


def test_absence_waits_as_long_as_its_clause_says() -> None:
    told = temperatures((0, "s", 31.0), (200, "s", -1.0))
    for window_ms, times in ((50, [50]), (200, [200]), (201, [])):
        clauses = Clause((Positive(0),)), Clause((Absent(1),), window_ms=window_ms)
        assert [time for time, _, _ in found(plan([HOT, COLD], *clauses), told)] == times


def test_a_mixed_clause_looks_as_far_as_it_says() -> None:
    warm = ReadingTerm(DEWPOINT, Compared(SideValue(0, "dewpoint"), ">", Constant(0.0)))
    told = temperatures((0, "s", 31.0))
    told += [Reading(150, "d", "station.dewpoint", "s", (1.0,))]
    for window_ms, expected in (
        (150, [(150, "S=s", "e0")]),
        (151, [(150, "S=s", "e0 d")]),
        (None, [(100, "S=s", "e0")]),
    ):
        clauses = Clause((Positive(0),)), Clause((Positive(2), Absent(1)), window_ms=window_ms)
        assert found(plan([HOT, COLD, warm], *clauses), told) == expected


def test_a_correlation_has_a_window_of_its_own() -> None:
    told = positions((0, "ann", 0.0), (150, "bob", 1.0))
    for window_ms, times in ((None, []), (150, []), (151, [150, 150])):
        near = CorrelationTerm(ANN, BOB, "within", 5.0, window_ms=window_ms)
        made = plan([near], Clause((Positive(0),)), distinct=(("A", "B"),))
        assert [time for time, _, _ in found(made, told)] == times


def test_the_ends_of_a_match_lie_within_the_policys_window_whatever_its_clauses_say() -> None:
    told = temperatures((0, "s", 31.0), (100, "s", -1.0))
    clauses = Clause((Positive(0),), window_ms=500), Clause((Positive(1),), window_ms=500)
    assert found(plan([HOT, COLD], *clauses), told) == []
    assert found(plan([HOT, COLD], *clauses, window_ms=101), told) == [(100, "S=s", "e0 e1")]


def test_an_order_that_is_not_certain_never_makes_a_detection() -> None:
    made = plan([HOT, COLD], Clause((Sequence(0, 1),)))
    for gap, count in ((10, 0), (11, 1), (99, 1), (100, 0)):
        told = temperatures((0, "s", 31.0, "vague"), (gap, "s", -1.0, "hut"))
        assert len(found(made, told)) == count
    both = temperatures((0, "s", 31.0, "vague"), (20, "s", -1.0, "vague"))
    assert found(made, both) == []


def test_what_may_have_followed_refutes_although_it_seems_to_come_before_or_too_late() -> None:
    made = plan([HOT, COLD], Clause((Sequence(0, 1, second_negated=True),)))
    for at, count in ((-10, 1), (-9, 0), (109, 0), (110, 1)):
        told = temperatures((0, "s", 31.0, "hut"), (at, "s", -1.0, "vague"))
        assert len(found(made, told)) == count
        turned = temperatures((0, "s", 31.0, "vague"), (at, "s", -1.0, "hut"))
        assert len(found(made, turned)) == count


def test_what_may_have_preceded_refutes_although_it_seems_to_come_after_or_too_early() -> None:
    made = plan([HOT, COLD], Clause((Sequence(0, 1, first_negated=True),)))
    for at, times in ((90, [200]), (91, []), (209, []), (210, [200])):
        told = temperatures((200, "s", -1.0, "hut"), (at, "s", 31.0, "vague"))
        assert [time for time, _, _ in found(made, told)] == times


def test_state_is_bounded_by_the_longest_window() -> None:
    child = Sequence(0, 1, second_negated=True, window_ms=400)
    operator = make_operator(plan([HOT, COLD], Clause((child,))), PULL, sources=ONTOLOGY.sources)
    sizes = []
    for start in range(0, 300_000, 10_000):
        told = temperatures(*((time, "s", 31.0) for time in range(start, start + 10_000, 10)))
        operator.process(readings_batch(told, ONTOLOGY), start + 10_000)
        sizes.append(len(operator.snapshot()))
    assert max(sizes[3:]) < 1.2 * sizes[3]


def test_a_snapshot_fits_after_a_source_says_how_wrong_its_clock_may_be() -> None:
    made = plan([HOT, COLD], Clause((Sequence(0, 1, second_negated=True),)))
    sure = {
        name: msgspec.structs.replace(one, uncertainty_ms=0)
        for name, one in ONTOLOGY.sources.items()
    }
    for before, after in ((sure, ONTOLOGY.sources), (ONTOLOGY.sources, sure)):
        first = make_operator(made, PULL, sources=before)
        told = temperatures((0, "s", 31.0, "vague"), (200, "s", 31.0, "vague"))
        first.process(readings_batch(told, ONTOLOGY), 201)
        second = make_operator(made, PULL, sources=after)
        second.restore(first.snapshot())
        [end] = second.process(readings_batch([], ONTOLOGY), END_OF_TIME)
        assert end.time == 300


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (plan([HOT], Clause((Positive(0),), window_ms=0)), "window"),
        (plan([HOT], Clause((Positive(0),)), once_per_ms=0), "at most once per"),
        (
            plan(
                [ReadingTerm(TEMPERATURE, Compared(Measure("nobody", (OWN,)), ">", OWN))],
                Clause((Positive(0),)),
            ),
            "nobody",
        ),
    ],
)
def test_what_cannot_be_executed_is_refused_with_the_reason(made: Plan, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        make_operator(made, PULL)
