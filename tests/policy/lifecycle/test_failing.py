"""A policy that fails while events flow: the others go on, it is shown, and resumed it begins anew.
[PO-9]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from rapport.core.errors import Conflict
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
        with pytest.raises(Conflict) as caught:
            await world.life.shadow("brittle", world.texts["or"])
        assert caught.value.code == "policy.not_running"
        await world.life.pause("brittle", by="ana")
        assert world.states() == {"brittle": "paused"}
        await world.life.delete("brittle", by="ana")
        assert world.states() == {}
        assert world.engine.failed() == {}

    play(story)


BESIDE = "concepts\n  person A\n  room R\n  room Q\n"
BESIDE += "conditions\n  A is inside R\n  Q is beside R\nactions\n  look\n"
PLEASANT = BESIDE.replace("room Q", "room Q (security='public')")


def with_beside(world: World, monkeypatch: pytest.MonkeyPatch, is_brittle: list[bool]) -> None:
    """A relationship of two tables' instances, which raises once the tables hold what it cannot
    stand.
    """

    @relations.relation(first="rectangle", second="rectangle")
    def beside(first: Sequence[float], second: Sequence[float], parameter: float | None) -> bool:
        if is_brittle:
            raise ValueError("a room without walls")
        return True

    monkeypatch.setitem(relations._loaded, "tests:beside", beside)
    area = ("room", "area")
    names = {"beside": Relationship("beside", area, area, "tests:beside")}
    names |= dict(world.ontology.relationships)
    world.ontology = msgspec.structs.replace(world.ontology, relationships=names)


@pytest.mark.parametrize("restarts", [False, True], ids=["new-tables", "restart"])
@pytest.mark.parametrize("brittle", [(BESIDE,), (BESIDE, PLEASANT)], ids=["one", "two"])
def test_a_policy_that_cannot_stand_new_tables_fails_and_the_others_go_on(
    play: Play, monkeypatch: pytest.MonkeyPatch, brittle: tuple[str, ...], restarts: bool
) -> None:
    async def story(world: World) -> None:
        is_brittle: list[bool] = []
        with_beside(world, monkeypatch, is_brittle)
        names = {f"b{number}": text for number, text in enumerate(brittle)}
        texts = {"or": world.texts["or"], **names}
        await world.start(texts=texts)
        await world.send(world.position(NOW, "a", "2"))
        await world.until(NOW + 10)
        is_brittle.append(True)
        if restarts:
            await world.engine.commit()
            await world.start(texts=texts)
        else:
            await world.engine.refresh_pull(world.with_guest("99"))
        assert world.states() == {"or": "running", **dict.fromkeys(names, "failed")}
        assert "walls" in world.life.policy("b0").problems[0].message
        await world.send(world.position(NOW + 20, "b", "2"))
        await world.until(NOW + 40)
        assert ("or", NOW + 20) in await world.found()
        is_brittle.clear()
        assert (await world.life.resume("b0")).changed
        assert world.states()["b0"] == "running"

    play(story)


def test_a_shadow_that_fails_on_the_tables_is_reported_and_stops_no_policy(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        is_brittle = [True]
        with_beside(world, monkeypatch, is_brittle)
        await world.start("or")
        await world.send(world.position(NOW, "a", "2"))
        await world.until(NOW + 10)
        assert (await world.life.shadow("or", BESIDE)).changed
        for start in range(2):  # the second time it meets the change on record
            await world.send(world.position(NOW + 20 + start, f"b{start}", "2"))
            await world.until(NOW + 20 + start)
            [problem] = world.life.policy("or").problems
            assert (problem.code, bool(problem.hint)) == ("policy.shadow_failed", True)
            assert world.states() == {"or": "running"}
            await world.start("or")
        await world.until(NOW + 30)
        assert [time for _, time in await world.found()] == [NOW, NOW + 20, NOW + 21]
        is_brittle.clear()
        await world.life.drop("or")
        await world.life.shadow("or", BESIDE)
        assert world.life.policy("or").problems == ()

    play(story)
