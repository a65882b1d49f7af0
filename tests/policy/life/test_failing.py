"""A policy that fails while events flow: the others go on, it is shown, and resumed it begins anew.
[PO-9]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from rapport.policy import relations
from rapport.policy.ontology import Relationship

World = Any
Play = Callable[[Callable[[World], Any]], None]
NOW = 100_000
TEXT = "concepts\n  person A\n  room R\nconditions\n  A is touching R\nactions\n  look\n"


@relations.relation(first="point", second="rectangle")
def brittle(first: Sequence[float], second: Sequence[float], parameter: float | None) -> bool:
    """Cannot stand the number 6."""
    if first[0] == 6:
        raise ValueError("six")
    return True


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(relations._loaded, "tests:brittle", brittle)


def with_touching(world: World) -> None:
    touching = Relationship("touching", ("person", "position"), ("room", "area"), "tests:brittle")
    names = dict(world.ontology.relationships) | {"touching": touching}
    world.ontology = msgspec.structs.replace(world.ontology, relationships=names)


def test_a_policy_that_fails_is_shown_with_the_reason_and_resumed_begins_anew(play: Play) -> None:
    async def story(world: World) -> None:
        with_touching(world)
        await world.start(texts={"or": world.texts["or"], "brittle": TEXT})
        await world.send(world.position(NOW, "a", "2"), world.position(NOW + 1, "b", "2", x=6))
        await world.until(NOW + 2)
        assert world.states() == {"or": "running", "brittle": "failed"}
        shown = world.life.policy("brittle")
        assert [problem.code for problem in shown.problems] == ["policy.failed"]
        assert "six" in shown.problems[0].message
        assert shown.counts.errors == 1
        assert ("or", NOW) in await world.found()
        await world.start(texts={"or": world.texts["or"], "brittle": TEXT})
        await world.drain()
        assert world.states()["brittle"] == "failed"
        assert (await world.life.resume("brittle", by="ana")).changed
        assert world.states() == {"or": "running", "brittle": "running"}
        await world.send(world.position(NOW + 10, "c", "2"))
        await world.until(NOW + 20)
        assert ("brittle", NOW + 10) in await world.found()

    play(story)


def test_a_failed_policy_can_be_paused_replaced_and_deleted(play: Play) -> None:
    async def story(world: World) -> None:
        with_touching(world)
        await world.start(texts={"brittle": TEXT})
        await world.send(world.position(NOW, "a", "2", x=6))
        await world.until(NOW + 2)
        assert world.states() == {"brittle": "failed"}
        assert (await world.life.replace("brittle", TEXT, by="ana")).changed
        assert world.states() == {"brittle": "running"}
        await world.send(world.position(NOW + 10, "b", "2", x=6))
        await world.until(NOW + 12)
        assert world.states() == {"brittle": "failed"}
        await world.life.pause("brittle", by="ana")
        assert world.states() == {"brittle": "paused"}
        await world.life.delete("brittle", by="ana")
        assert world.states() == {}
        assert world.engine.failed() == {}

    play(story)
