"""Each rule accepts small stories that keep it, and alone refuses the ones spoilt for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rapport.ensemble.trace import IP, RADIO, Kind
from rapport_lab.ensemble.rules.check import RULES, check, check_all

Story = Any
NAMES = ("radio", "parts", "ip", "groups", "pull")
VERSION_100 = 1_000_100
Spoiling = tuple[str, str, set[int], Callable[[Story], None]]
"""A name, the story, the rules that are broken, and what is done to the story."""


@pytest.mark.parametrize("name", NAMES)
def test_the_stories_break_no_rule(stories: dict[str, Callable[[], Story]], name: str) -> None:
    assert check_all(stories[name]().trace()) == []


def _own_component_replaced(story: Story) -> None:
    story.at(120, Kind.REPLACED, "a", "A", version=100)


def _talks_to_itself(story: Story) -> None:
    story.at(0, Kind.LINKED, "b", other="b", medium=RADIO)
    story.at(120, Kind.KNOWLEDGE_RECEIVED, "b", "A", version=100, other="b", medium=RADIO)


def _newer_version_ignored(story: Story) -> None:
    story.drop(120, Kind.REPLACED, "c")
    story.drop(200, Kind.EVALUATED, "c")
    story.drop(200, Kind.EXCHANGED, "c")


def _another_version_seen(story: Story) -> None:
    story.change(200, Kind.EVALUATED, "c", version=VERSION_100 - 1)


def _heard_too_soon(story: Story) -> None:
    story.change(120, Kind.DECIDED, "c", time_ms=115)
    story.change(120, Kind.REPLACED, "c", time_ms=115)
    story.change(120, Kind.KNOWLEDGE_RECEIVED, "c", time_ms=115)


def _heard_out_of_reach(story: Story) -> None:
    story.at(50, Kind.UNLINKED, "b", other="c", medium=RADIO)


def _heard_what_nobody_sent(story: Story) -> None:
    story.at(500, Kind.KNOWLEDGE_RECEIVED, "b", "A", version=100, other="a", medium=RADIO)


def _vanished_on_ip(story: Story) -> None:
    story.drop(120, Kind.REPLACED, "d")
    story.drop(120, Kind.KNOWLEDGE_RECEIVED, "d")


def _not_heard_by_all(story: Story) -> None:
    for kind in (Kind.REPLACED, Kind.KNOWLEDGE_RECEIVED, Kind.DECIDED):
        story.drop(120, kind, "c")
    story.drop(200, Kind.EVALUATED, "c")
    story.drop(200, Kind.EXCHANGED, "c")


def _addressed_on_the_radio(story: Story) -> None:
    story.change(100, Kind.KNOWLEDGE_SENT, "a", other="b")


def _put_and_never_sent(story: Story) -> None:
    story.change(120, Kind.DECIDED, "c", detail="pass")
    story.at(120, Kind.BOUNDED, "c", "A", version=100, detail="inside")
    story.at(120, Kind.PASSED_ON, "c", "A", version=100, detail="strategy")


def _a_part_not_sent(story: Story) -> None:
    story.drop(101, Kind.PART_SENT, "a")
    story.drop(111, Kind.LOST, "b")
    story.drop(150, Kind.PART_PULL_SENT, "b")
    story.drop(160, Kind.PART_PULL_RECEIVED, "a")
    story.drop(160, Kind.PART_SENT, "a")
    story.drop(170, Kind.PART_RECEIVED, "b")
    story.drop(170, Kind.REPLACED, "b")


def _old_state_published(story: Story) -> None:
    story.change(100, Kind.PUBLISHED, "a", value=VERSION_100 - 50)


def _local_seen_as_replica(story: Story) -> None:
    story.change(200, Kind.EVALUATED, "a", version=VERSION_100)


def _remote_seen_without_replica(story: Story) -> None:
    story.change(200, Kind.EVALUATED, "c", version=0)


def _taken_before_it_was_whole(story: Story) -> None:
    story.change(170, Kind.REPLACED, "b", time_ms=115)


def _sent_without_being_put(story: Story) -> None:
    story.change(110, Kind.DECIDED, "b", detail="keep")
    story.drop(110, Kind.PASSED_ON, "b")


def _part_nobody_asked_for(story: Story) -> None:
    part = {"component": "A", "version": 90}
    story.radio(300, Kind.PART_SENT, "a", "b", entries=(("1", 2),), **part)


def _published_off_schedule(story: Story) -> None:
    story.told("a", knowledge_offset_ms=50)


def _a_period_left_out(story: Story) -> None:
    story.told("a", knowledge_ms=300)


def _a_part_not_heard_by_all(story: Story) -> None:
    story.drop(111, Kind.LOST, "b")


def _sent_to_too_many(story: Story) -> None:
    story.told("a", fan_out=1)


def _sent_to_a_stranger(story: Story) -> None:
    story.at(50, Kind.FORGOTTEN, "a", other="b")


def _strategy_not_followed(story: Story) -> None:
    story.change(120, Kind.DECIDED, "c", detail="pass")


def _against_the_strategy(story: Story) -> None:
    story.change(110, Kind.DECIDED, "b", detail="keep")


def _said_twice(story: Story) -> None:
    story.at(300, Kind.PASSED_ON, "b", "A", version=100, detail="strategy")
    story.radio(300, Kind.KNOWLEDGE_SENT, "b", "ac", component="A", version=100)


def _sent_twice(story: Story) -> None:
    story.radio(300, Kind.KNOWLEDGE_SENT, "b", "ac", component="A", version=100)


def _answered_nobody(story: Story) -> None:
    story.at(300, Kind.PASSED_ON, "b", "A", version=100, detail="answer")
    story.radio(300, Kind.KNOWLEDGE_SENT, "b", "ac", component="A", version=100)


def _beyond_the_boundary(story: Story) -> None:
    story.change(110, Kind.BOUNDED, "b", detail="outside")


def _boundary_not_asked(story: Story) -> None:
    story.drop(110, Kind.BOUNDED, "b")


def _two_groups_in_one_part(story: Story) -> None:
    page = "grouper/g/north/0"
    told = {"version": 50, "detail": "east", "entries": (("a", 0), ("c", 0))}
    story.at(50, Kind.TABLE_PUBLISHED, "g", page, other="a", medium=IP, **told)


def _table_to_a_stranger(story: Story) -> None:
    told = {"version": 50, "detail": "north", "entries": (("a", 0), ("b", 0))}
    story.at(50, Kind.TABLE_PUBLISHED, "g", "grouper/g/north/0", other="c", medium=IP, **told)


def _table_by_radio(story: Story) -> None:
    told = {"version": 50, "detail": "north", "entries": (("a", 0), ("b", 0))}
    story.at(50, Kind.TABLE_PUBLISHED, "g", "grouper/g/north/0", other="b", medium=RADIO, **told)


def _knowledge_outside_the_groups(story: Story) -> None:
    story.drop(60, Kind.TABLE_APPLIED, "a")


def _older_table_applied(story: Story) -> None:
    told = {"version": 40, "detail": "north", "entries": (("a", 0), ("b", 0))}
    page = "grouper/g/north/0"
    story.at(40, Kind.TABLE_PUBLISHED, "g", page, other="b", medium=IP, **told)
    story.at(70, Kind.TABLE_APPLIED, "b", page, other="g", **told)


def _headers_passed_on(story: Story) -> None:
    entries = (("A", VERSION_100 + 10),)
    story.radio(210, Kind.HEADERS_SENT, "c", "b", entries=entries)


def _pull_passed_on(story: Story) -> None:
    story.radio(1_310, Kind.PULL_SENT, "c", "b", entries=(("A", VERSION_100),))
    story.at(1_320, Kind.FLAG_SET, "b", "A")


def _no_header_for_a_version(story: Story) -> None:
    for time_ms in (4_210, 3_210):
        story.drop(time_ms, Kind.HEADERS_RECEIVED, "b")
        story.at(time_ms, Kind.LOST, "b", other="c", medium=RADIO, detail="loss")
    story.drop(2_110, Kind.HEADER_ADDED, "b")


def _header_with_another_time(story: Story) -> None:
    story.change(2_110, Kind.HEADER_ADDED, "b", value=VERSION_100 + 2_005)
    story.change(2_200, Kind.HEADERS_SENT, "b", entries=(("A", VERSION_100 + 2_005),))
    for node in "ac":
        entries = (("A", VERSION_100 + 2_005),)
        story.change(2_210, Kind.HEADERS_RECEIVED, node, entries=entries)


def _headers_off_schedule(story: Story) -> None:
    story.radio(2_250, Kind.HEADERS_SENT, "b", "ac", entries=(("A", VERSION_100 + 2_020),))


def _headers_left_out(story: Story) -> None:
    for time_ms, node in ((4_200, "b"), (4_210, "c")):
        kind = Kind.HEADERS_SENT if node == "b" else Kind.HEADERS_RECEIVED
        story.drop(time_ms, kind, node)


def _a_header_left_out(story: Story) -> None:
    story.change(4_200, Kind.HEADERS_SENT, "b", entries=())
    story.change(4_210, Kind.HEADERS_RECEIVED, "c", entries=())


def _header_not_taken(story: Story) -> None:
    story.drop(2_210, Kind.HEADER_ADDED, "b")
    for time_ms in (3_200, 4_200):
        entries = (("A", VERSION_100 + 2_010),)
        story.change(time_ms, Kind.HEADERS_SENT, "b", entries=entries)
        story.change(time_ms + 10, Kind.HEADERS_RECEIVED, "c", entries=entries)
    for time_ms in (3_210, 4_210):
        story.drop(time_ms, Kind.HEADERS_RECEIVED, "b")
        story.at(time_ms, Kind.LOST, "b", other="c", medium=RADIO, detail="loss")


def _pulled_off_schedule(story: Story) -> None:
    story.radio(3_250, Kind.PULL_SENT, "b", "c", entries=(("A", VERSION_100 + 2_000),))
    story.at(3_260, Kind.FLAG_SET, "c", "A")


def _pulled_what_is_fresh(story: Story) -> None:
    story.radio(2_300, Kind.PULL_SENT, "b", "ac", entries=(("A", VERSION_100 + 2_000),))
    story.at(2_310, Kind.FLAG_SET, "c", "A")


def _not_pulled(story: Story) -> None:
    story.drop(4_300, Kind.PULL_SENT, "c")
    story.drop(4_310, Kind.PULL_RECEIVED, "b")


def _not_flagged(story: Story) -> None:
    story.drop(3_310, Kind.FLAG_SET, "c")


def _pulled_and_not_passed_on(story: Story) -> None:
    story.drop(2_120, Kind.PASSED_ON, "c")
    story.drop(2_120, Kind.KNOWLEDGE_SENT, "c")
    story.drop(2_130, Kind.KNOWLEDGE_RECEIVED, "b")


def _passed_on_as_pulled(story: Story) -> None:
    story.drop(1_310, Kind.PULL_RECEIVED, "c")
    story.at(1_310, Kind.LOST, "c", other="b", medium=RADIO, detail="loss")
    story.drop(1_310, Kind.FLAG_SET, "c")


def _flag_cleared_too_soon(story: Story) -> None:
    story.change(5_200, Kind.FLAG_CLEARED, "c", time_ms=4_500)


def _old_header_told(story: Story) -> None:
    for node in "bc":
        story.change(5_200, Kind.HEADER_EXPIRED, node, time_ms=5_250)
        story.change(5_200, Kind.FLAG_CLEARED, node, time_ms=5_250)
    story.radio(5_200, Kind.HEADERS_SENT, "b", "c", entries=(("A", VERSION_100 + 2_020),))


def _old_header_pulled(story: Story) -> None:
    for node in "bc":
        story.change(5_200, Kind.HEADER_EXPIRED, node, time_ms=5_350)
        story.change(5_200, Kind.FLAG_CLEARED, node, time_ms=5_350)
    story.radio(5_300, Kind.PULL_SENT, "b", "c", entries=(("A", VERSION_100 + 2_000),))
    story.at(5_310, Kind.FLAG_SET, "c", "A")


def _header_removed_too_soon(story: Story) -> None:
    for node in "bc":
        story.change(5_200, Kind.HEADER_EXPIRED, node, time_ms=4_400)


SPOILINGS: list[Spoiling] = [
    ("own component replaced", "radio", {1}, _own_component_replaced),
    # Who hears itself is also in no range of itself.
    (
        "talks to itself",
        "ip",
        {1, 3},
        lambda story: story.change(120, Kind.KNOWLEDGE_RECEIVED, "d", other="d"),
    ),
    ("newer version ignored", "radio", {2}, _newer_version_ignored),
    ("another version seen", "radio", {2}, _another_version_seen),
    ("heard too soon", "radio", {3}, _heard_too_soon),
    ("heard out of reach", "radio", {3}, _heard_out_of_reach),
    ("heard what nobody sent", "radio", {3}, _heard_what_nobody_sent),
    ("vanished on IP", "ip", {3}, _vanished_on_ip),
    ("not heard by all", "radio", {4}, _not_heard_by_all),
    ("addressed on the radio", "radio", {4}, _addressed_on_the_radio),
    ("put and never sent", "radio", {5}, _put_and_never_sent),
    ("a part not sent", "parts", {5}, _a_part_not_sent),
    ("old state published", "radio", {6}, _old_state_published),
    ("local seen as replica", "radio", {6}, _local_seen_as_replica),
    ("remote seen without replica", "radio", {6}, _remote_seen_without_replica),
    ("taken before it was whole", "parts", {7}, _taken_before_it_was_whole),
    ("sent without being put", "radio", {8}, _sent_without_being_put),
    ("part nobody asked for", "parts", {8}, _part_nobody_asked_for),
    ("published off schedule", "radio", {9}, _published_off_schedule),
    ("a period left out", "radio", {9}, _a_period_left_out),
    ("a part not heard by all", "parts", {10}, _a_part_not_heard_by_all),
    ("sent to too many", "ip", {11}, _sent_to_too_many),
    ("sent to a stranger", "ip", {11}, _sent_to_a_stranger),
    ("strategy not followed", "radio", {12}, _strategy_not_followed),
    ("against the strategy", "radio", {12}, _against_the_strategy),
    ("said twice", "radio", {13}, _said_twice),
    ("sent twice", "radio", {13}, _sent_twice),
    ("answered nobody", "radio", {13}, _answered_nobody),
    ("beyond the boundary", "radio", {14}, _beyond_the_boundary),
    ("boundary not asked", "radio", {14}, _boundary_not_asked),
    ("two groups in one part", "groups", {15}, _two_groups_in_one_part),
    ("table to a stranger", "groups", {16}, _table_to_a_stranger),
    ("table by radio", "groups", {16}, _table_by_radio),
    ("knowledge outside the groups", "groups", {17}, _knowledge_outside_the_groups),
    ("older table applied", "groups", {17}, _older_table_applied),
    ("headers passed on", "pull", {18}, _headers_passed_on),
    ("pull passed on", "pull", {18}, _pull_passed_on),
    # A header that was not added is neither told in time.
    ("no header for a version", "pull", {19, 20}, _no_header_for_a_version),
    ("header with another time", "pull", {19}, _header_with_another_time),
    ("headers off schedule", "pull", {20}, _headers_off_schedule),
    ("headers left out", "pull", {20}, _headers_left_out),
    ("a header left out", "pull", {20}, _a_header_left_out),
    ("header not taken", "pull", {21}, _header_not_taken),
    ("pulled off schedule", "pull", {22}, _pulled_off_schedule),
    ("pulled what is fresh", "pull", {22}, _pulled_what_is_fresh),
    ("not pulled", "pull", {22}, _not_pulled),
    ("not flagged", "pull", {23}, _not_flagged),
    ("pulled and not passed on", "pull", {24}, _pulled_and_not_passed_on),
    ("passed on as pulled", "pull", {24}, _passed_on_as_pulled),
    ("flag cleared too soon", "pull", {24}, _flag_cleared_too_soon),
    # What is told or pulled after its time is also not what the buffer should say.
    ("old header told", "pull", {20, 25}, _old_header_told),
    ("old header pulled", "pull", {22, 25}, _old_header_pulled),
    ("header removed too soon", "pull", {25}, _header_removed_too_soon),
]


@pytest.mark.parametrize(
    ("name", "rules", "spoil"),
    [spoiling[1:] for spoiling in SPOILINGS],
    ids=[spoiling[0] for spoiling in SPOILINGS],
)
def test_a_spoilt_story_breaks_the_rule_it_was_spoilt_for(
    stories: dict[str, Callable[[], Story]],
    name: str,
    rules: set[int],
    spoil: Callable[[Story], None],
) -> None:
    story = stories[name]()
    spoil(story)
    breaches = check_all(story.trace())
    assert {breach.rule for breach in breaches} == rules
    assert all(breach.events and breach.why for breach in breaches)


def test_every_rule_has_a_story_that_breaks_it_alone() -> None:
    alone = {min(rules) for _name, _story, rules, _spoil in SPOILINGS if len(rules) == 1}
    assert alone == {rule.number for rule in RULES}


def test_one_rule_is_checked_alone_by_its_number(
    stories: dict[str, Callable[[], Story]],
) -> None:
    story = stories["radio"]()
    _said_twice(story)
    assert check(12, story.trace()) == []
    assert {breach.rule for breach in check(13, story.trace())} == {13}


def test_rounds_in_which_knowledge_was_withheld_are_not_left_out(
    stories: dict[str, Callable[[], Story]],
) -> None:
    story = stories["radio"]()
    _a_period_left_out(story)
    for time_ms in (400, 700):
        story.at(time_ms, Kind.WITHHELD, "a", "A")
    assert check(9, story.trace()) == []
