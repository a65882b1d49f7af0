"""Changes of interpretations as events: order, repetition, files against changes, versions.

[ME-6, ME-12]
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.channel.backends.local import open_memory
from rapport.core.errors import Corrupt, UnknownName
from rapport.core.event import Event, StoredEvent, make_event
from rapport.kernel.clock import ManualClock
from rapport.mediation.concepts import ConceptAttribute
from rapport.mediation.config import SiteInterpretations, interpretation_digest
from rapport.mediation.conversion.conversions import Call, Formula, Rename, converts
from rapport.mediation.interpretations.change_log import (
    CHANGE_EVENT,
    CHANNEL,
    MAX_CHANGE_NUMBER,
    ChangeLog,
    ChangeRecord,
    FilesRecord,
    change_event,
    change_id,
    files_event,
    read_version,
    version_events,
)
from rapport.mediation.interpretations.change_requests import (
    MOST_CHANGES,
    MOST_TYPES,
    check_changes,
)
from rapport.mediation.interpretations.change_state import CombinedState, combine
from rapport.mediation.interpretations.model import FieldsInterpretation as FieldsForm
from rapport.mediation.interpretations.model import (
    FormatChoice,
    IdentityRule,
    Interpretation,
    RenameAttribute,
    Rule,
    SourceLocation,
    TypeMapping,
    ValueRule,
)
from rapport.mediation.interpretations.type_changes import (
    Augment,
    Change,
    Declare,
    Remove,
    ReplaceType,
)
from rapport.mediation.types import Attribute, ComplexType, PrimitiveType
from support.examples import examples

CONCEPTS = {"station": {"temperature": ConceptAttribute("number", "degC")}}


def us(factor: float = 1.0, name: str = "us", parent: str = "root") -> Interpretation:
    """A feed whose temperature is multiplied on its way to root."""
    word = name.replace("/", "-")
    return Interpretation(
        name=name,
        parent=parent,
        types=(
            PrimitiveType(f"{word}-degrees", "number"),
            ComplexType(
                f"{word}-weather",
                (Attribute("station", "text"), Attribute("temperature", f"{word}-degrees")),
            ),
        ),
        mappings=(
            TypeMapping(
                f"{word}-weather", "station", "in", shape=(RenameAttribute("station", "key"),)
            ),
        ),
        rules=(Rule(f'"{word}-degrees"', f"{word}-convert", "in"),),
        conversions=(
            converts(f"{word}-convert", f"{word}-degrees", "degC", Formula(multiply=factor)),
        ),
    )


def factor_of(together: CombinedState, name: str = "us") -> float | None:
    typed = together.standing.in_force.typed
    if name not in typed:
        return None
    how = typed.named(name).conversions[0].how
    assert isinstance(how, Formula)
    return how.multiply


def files(*typed: Interpretation) -> SiteInterpretations:
    return SiteInterpretations(
        typed={each.name: each for each in typed},
        concepts=CONCEPTS,
        said={each.name: interpretation_digest(each) for each in typed},
    )


class Log:
    """One node's channel, without a channel."""

    def __init__(self, node: str = "a") -> None:
        self.kept = ChangeLog(node)
        self.events: list[Event] = []

    def put(self, event: Event) -> None:
        if all((one.source, one.id) != (event.source, event.id) for one in self.events):
            self.events.append(event)
            self.kept.add(StoredEvent(len(self.events), 0, event))

    def change(self, *changes: Change, **more: Any) -> ChangeRecord:
        last = self.kept.last_change()
        changed = ChangeRecord(
            number=self.kept.next_number(), after=last.id if last else "", changes=changes, **more
        )
        self.put(change_event(changed, 0))
        return changed

    def take(self, given: SiteInterpretations) -> CombinedState:
        """A start of the node with these files."""
        if dict(given.said) != dict(self.kept.last_digests()):
            taken = FilesRecord(number=self.kept.next_number(), said=dict(given.said))
            self.put(files_event(taken, self.kept.node, 0))
        return combine(given, self.kept, given.said)


def states(together: CombinedState) -> list[str]:
    return [each.state for each in together.outcomes.values()]


def test_a_start_takes_the_files_and_then_the_changes_made_since():
    log = Log()
    assert factor_of(log.take(files(us(1.0)))) == 1.0
    log.change(Declare(us(2.0)))
    assert factor_of(log.take(files(us(1.0)))) == 2.0
    log.change(Declare(us(7.0, "fr")))
    again = log.take(files(us(1.0)))
    assert (factor_of(again), factor_of(again, "fr")) == (2.0, 7.0)


def test_a_file_that_changed_after_a_change_wins_with_a_warning_that_names_the_change():
    log = Log()
    log.take(files(us(1.0)))
    log.change(Declare(us(2.0)))
    together = log.take(files(us(3.0)))
    assert factor_of(together) == 3.0
    (outcome,) = together.outcomes.values()
    (problem,) = outcome.problems
    assert (outcome.state, problem.severity) == ("lost", "warning")
    assert problem.code == "interpretation.change_lost"
    assert "declare us" in problem.message
    log.change(Declare(us(4.0)))
    assert factor_of(log.take(files(us(3.0)))) == 4.0


def test_a_change_that_was_moved_into_a_file_is_lost_without_a_warning():
    log = Log()
    log.take(files())
    log.change(Declare(us(2.0)))
    together = log.take(files(us(2.0)))
    assert factor_of(together) == 2.0
    assert [each.problems for each in together.outcomes.values()] == [()]


def test_a_file_that_is_gone_takes_its_interpretation_along_but_not_those_of_changes():
    log = Log()
    log.take(files(us(1.0)))
    log.change(Declare(us(2.0)))
    log.change(Declare(us(5.0, "fr")))
    together = log.take(files())
    assert (factor_of(together), factor_of(together, "fr")) == (None, 5.0)


def test_a_removed_interpretation_stays_removed_while_its_file_stays_as_it_is():
    log = Log()
    log.take(files(us(1.0)))
    log.change(Remove("us"))
    assert factor_of(log.take(files(us(1.0)))) is None
    assert factor_of(log.take(files(us(9.0)))) == 9.0


def test_types_added_to_the_canonical_model_stay_when_files_change_and_are_not_duplicated():
    log = Log()
    log.take(files())
    gust = ComplexType("Gust", (Attribute("speed", "number"),))
    log.change(Augment("root", types=(gust,)))
    root = Interpretation(name="root", parent="", types=(gust,))
    for given_files in (files(us(1.0)), files(root), files(root, us(2.0))):
        together = log.take(given_files)
        assert states(together) == ["in force"]
        assert [each for each in together.standing.in_force.typed.canonical.types if each == gust]


def test_a_change_that_fits_no_longer_is_refused_and_stops_no_other():
    log = Log()
    log.take(files(us(1.0)))
    log.change(Declare(us(2.0, "us/east", "us")))
    log.change(Declare(us(3.0, "fr")))
    together = log.take(files())
    assert states(together) == ["refused", "in force"]
    (refused, _) = together.outcomes.values()
    assert refused.problems[0].code == "interpretation.unknown_parent"


def test_a_child_in_a_file_is_in_force_once_its_changed_parent_is():
    log = Log()
    below = files(us(2.0, "us/east", "us"))
    assert "us/east" in log.take(below).standing.in_force.refused
    log.change(Declare(us(1.0)))
    together = log.take(below)
    assert factor_of(together, "us/east") == 2.0
    assert not together.standing.in_force.refused


def test_changes_made_together_are_in_force_together_or_not_at_all():
    log = Log()
    log.take(files())
    log.change(Declare(us(1.0)), Declare(us(2.0, "fr", "nobody")))
    together = log.take(files())
    assert states(together) == ["refused"]
    assert factor_of(together) is None


def test_formats_come_and_go_with_their_interpretation():
    log = Log()
    log.take(files())
    log.change(Declare(us(1.0)), formats={"us": FormatChoice("csv", {"delimiter": ";"})})
    assert log.take(files()).standing.in_force.format_of("us").name == "csv"
    log.change(Declare(us(2.0)))
    assert log.take(files()).standing.in_force.format_of("us").name == "json"
    log.change(Remove("us"))
    assert log.take(files()).standing.in_force.formats == {}


def test_the_same_change_after_the_same_change_has_the_same_id_and_any_other_another():
    one = ChangeRecord(number=1, changes=(Declare(us(1.0)),))
    assert change_id(one) == change_id(msgspec.structs.replace(one, by="x", node="y"))
    others = [
        msgspec.structs.replace(one, after="x"),
        msgspec.structs.replace(one, number=2),
        msgspec.structs.replace(one, changes=(Declare(us(2.0)),)),
        msgspec.structs.replace(one, formats={"us": FormatChoice("csv")}),
    ]
    assert len({change_id(each) for each in (one, *others)}) == 5


def test_there_and_back_and_there_again_are_three_changes():
    log = Log()
    log.take(files())
    for factor in (1.0, 2.0, 1.0, 2.0):
        log.change(Declare(us(factor)))
    together = log.take(files())
    assert len(together.outcomes) == 4
    assert factor_of(together) == 2.0


def test_foreign_events_in_the_change_log_are_ignored_and_counted():
    kept = ChangeLog("a")
    good = change_event(ChangeRecord(number=1, changes=(Remove("us"),)), 0)
    false_id = msgspec.structs.replace(good, id="0" * 32)
    broken = [
        make_event(source="x", id="1", type=CHANGE_EVENT, time=0, data={"number": 1}),
        make_event(
            source="x", id="2", type=CHANGE_EVENT, time=0, data={"number": 0, "changes": []}
        ),
        Event("x", "3", CHANGE_EVENT, "", 0, b"[" * 100_000),
        Event("x", "4", CHANGE_EVENT, "", 0, b"\xff"),
        Event("x", "5", "something.else", "", 0, b"{}"),
        false_id,
    ]
    for position, event in enumerate(broken, start=1):
        assert kept.add(StoredEvent(position, 0, event)) is None
    assert kept.add(StoredEvent(9, 0, good)) is not None
    assert kept.add(StoredEvent(10, 0, good)) is None
    assert (kept.unreadable, kept.position, len(kept.changes())) == (5, 10, 1)


def test_change_numbers_stay_at_the_maximum():
    log = Log()
    log.put(change_event(ChangeRecord(number=MAX_CHANGE_NUMBER, changes=(Declare(us(1.0)),)), 0))
    assert log.kept.next_number() == MAX_CHANGE_NUMBER
    log.change(Declare(us(2.0, "fr")))
    together = log.take(files())
    assert (factor_of(together), factor_of(together, "fr")) == (1.0, 2.0)


CHANGES: list[Change] = [
    Declare(us(1.0)),
    Declare(us(2.0)),
    Declare(us(3.0, "fr")),
    Declare(us(4.0, "us/east", "us")),
    Augment("us", types=(ComplexType("Ping", ()),)),
    Augment("root", types=(ComplexType("Pong", ()),)),
    Remove("us"),
    Remove("us/east"),
]


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(
    made=st.lists(st.tuples(st.integers(0, 2), st.sampled_from(CHANGES)), max_size=8),
    meetings=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=6),
    seed=st.randoms(use_true_random=False),
    given_files=st.sampled_from([files(), files(us(0.5))]),
)
def test_nodes_that_have_seen_the_same_have_the_same_in_force(made, meetings, seed, given_files):
    """Changes made at three nodes that meet now and then, each taking in what it lacks in any
    order: when all have met, all have the same in force, and so has who begins anew.
    """
    nodes = [Log(name) for name in "abc"]
    for node in nodes:
        node.take(given_files)

    def meet(one: Log, other: Log) -> None:
        for giver, taker in ((one, other), (other, one)):
            arriving = list(giver.events)
            seed.shuffle(arriving)
            for event in arriving:
                taker.put(event)

    for step, (where, change) in enumerate(made):
        nodes[where].change(change)
        if step < len(meetings):
            meet(*(nodes[each] for each in meetings[step]))
    for one, other in (*itertools.combinations(nodes, 2), *itertools.combinations(nodes, 2)):
        meet(one, other)
    found = [node.take(given_files) for node in nodes]
    assert len({msgspec.json.encode(_said(each)) for each in found}) == 1
    assert len({tuple(states(each)) for each in found}) == 1


def _said(together: CombinedState) -> Any:
    typed = together.standing.in_force.typed
    return [typed.canonical_versions, typed.replacements, sorted(typed.registered.items())]


# --- versions ---


def test_every_version_is_found_by_its_stamp_with_its_ancestors():
    async def scenario() -> None:
        channels = open_memory(ManualClock(5))
        log = Log()
        log.take(files(us(1.0)))
        log.change(Declare(us(4.0, "us/east", "us")))
        newer = ComplexType("station2", _station_attributes())
        log.change(
            ReplaceType(
                "station",
                newer,
                converts("forth", "station", "station2", Rename(())),
                converts("back", "station2", "station", Rename(())),
            )
        )
        together = log.take(files(us(1.0)))
        assert states(together) == ["in force", "in force"]
        in_force = together.standing.in_force
        events = list(version_events(in_force, {}, 7))
        await channels.channel(CHANNEL).append(events)
        found = await read_version(channels, in_force.stamps["us/east"])
        assert [each.name for each in found.above] == ["root", "us"]
        assert found.time == 7
        assert len(found.version.later) == 1
        assert (
            await read_version(channels, in_force.stamps["root"])
        ).version.replacement is not None
        assert list(version_events(in_force, {each.id: 1 for each in events}, 8)) == []
        with pytest.raises(UnknownName):
            await read_version(channels, "us@000000000000")

    asyncio.run(scenario())


def _station_attributes() -> tuple[Attribute, ...]:
    return (
        Attribute("key", "text"),
        Attribute("time", "Time", optional=True),
        Attribute("temperature", "degC", optional=True),
    )


def test_the_fields_form_and_formats_have_versions_too():
    async def scenario() -> None:
        channels = open_memory(ManualClock(5))
        plain = FieldsForm(
            name="nodes",
            identity=IdentityRule(("station",)),
            values=(ValueRule("value", ("t",), unit="degC"),),
            about="a note",
            place=SourceLocation("site.toml", 3, 1),
        )
        given_files = msgspec.structs.replace(
            files(us(5)), fields={"nodes": plain}, formats={"us": FormatChoice("csv")}
        )
        in_force, _ = given_files.activate()
        await channels.channel(CHANNEL).append(list(version_events(in_force, {}, 0)))
        assert (await read_version(channels, plain.stamp())).version.name == "nodes"
        found = await read_version(channels, in_force.stamps["us"])
        assert found.version.format == FormatChoice("csv")
        without, _ = files(us(5)).activate()
        assert without.stamps["us"] != in_force.stamps["us"]

    asyncio.run(scenario())


def test_a_version_that_does_not_match_its_stamp_is_refused():
    async def scenario() -> None:
        channels = open_memory(ManualClock(5))
        in_force, _ = files(us(1.0)).activate()
        other, _ = files(us(2.0)).activate()
        stamp = in_force.stamps["us"]
        false = [
            msgspec.structs.replace(event, id=stamp)
            for event in version_events(other, {}, 0)
            if event.id == other.stamps["us"]
        ]
        roots = [event for event in version_events(other, {}, 0) if event.id.startswith("root@")]
        await channels.channel(CHANNEL).append([*false, *roots])
        with pytest.raises(Corrupt):
            await read_version(channels, stamp)

    asyncio.run(scenario())


# --- limits ---


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ((), "change.empty"),
        ((Remove("us"),) * (MOST_CHANGES + 1), "change.too_large"),
        ((Declare(Interpretation(name="x" * 600_000)),), "change.too_large"),
        (
            (
                Declare(
                    Interpretation(
                        name="big",
                        types=tuple(ComplexType(f"T{n}", ()) for n in range(MOST_TYPES + 1)),
                    )
                ),
            ),
            "change.too_large",
        ),
        ((Declare(Interpretation(name="a b")),), "interpretation.bad_name"),
        ((Declare(Interpretation(name="../x")),), "interpretation.bad_name"),
        (
            (Augment("us", conversions=(converts("x", "text", "text", Call("os:system")),)),),
            "change.unknown_function",
        ),
    ],
)
def test_a_request_beyond_the_limits_is_refused_before_it_is_tried(changes, code):
    (problem, *_) = check_changes(changes, {"site_code:fine"})
    assert (problem.code, bool(problem.hint)) == (code, True)


def test_functions_that_files_use_may_be_used_by_changes():
    fine = Augment("us", conversions=(converts("x", "text", "text", Call("site_code:fine")),))
    assert check_changes([fine], {"site_code:fine"}) == []
