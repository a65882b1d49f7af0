import asyncio

import pytest

from rapport.channel.backends.local import open_memory
from rapport.channel.event_lookup import CauseNode, cause_tree, stage_of
from rapport.core.errors import UnknownName
from rapport.core.event import CAUSE, make_event
from rapport.kernel.clock import ManualClock


def explain(appended: list[tuple[str, str, str]], event_id: str) -> CauseNode:
    """The tree after appending (channel, id, causes) in order."""

    async def scenario() -> CauseNode:
        channels = open_memory(ManualClock(5))
        for channel, id, causes in appended:
            headers = {CAUSE: causes} if causes else {}
            event = make_event(source="s", id=id, type="t", time=1, headers=headers)
            await channels.channel(channel).append([event])
        try:
            return await cause_tree(channels, event_id)
        finally:
            await channels.close()

    return asyncio.run(scenario())


def test_a_reading_leads_to_its_raw_event_though_both_have_one_id() -> None:
    tree = explain([("raw.a", "e1", ""), ("events", "e1", "e1"), ("detections", "d", "e1")], "d")
    assert (tree.causes[0].channel, tree.causes[0].causes[0].channel) == ("events", "raw.a")


def test_a_cause_that_is_gone_is_named() -> None:
    assert explain([("detections", "d", "e1 e2")], "d").missing == ["e1", "e2"]


def test_causes_that_lead_in_a_circle_end() -> None:
    tree = explain([("log", "a", ""), ("log", "b", "a"), ("log", "c", "b a")], "c")
    assert [node.id for node in tree.causes] == ["b"]
    assert [node.id for node in tree.causes[0].causes] == ["a"]


def test_an_event_nobody_has_seen_is_unknown() -> None:
    with pytest.raises(UnknownName):
        explain([], "nothing")


def test_stages_follow_the_walk() -> None:
    walk = ["raw.readers", "events", "detections", "log", "output.mail", "control"]
    assert sorted(walk, key=stage_of) == walk
