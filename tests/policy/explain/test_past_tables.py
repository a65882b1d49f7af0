"""What tables said when something happened, and that they say otherwise now. [PO-11]"""

from __future__ import annotations

import asyncio

import numpy as np

from rapport.channel.backends.local import open_memory
from rapport.core.detection import DETECTED, Detection
from rapport.core.event import Event, make_event
from rapport.kernel.clock import ManualClock
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.engine.engine import PolicyEngine
from rapport.policy.explain.explainer import Explainer
from rapport.policy.explain.past_tables import VersionedTables
from rapport.policy.explain.why_not import WhyNotQuestion
from rapport.policy.plan import Plan
from rapport.tables.instances import Instances
from rapport.tables.tables import BEGINNING_OF_TIME, Tables
from support.varied.worlds import ONTOLOGY

INSIDE = """concepts
  person A (status='guest')
  room R
conditions
  A is inside R
actions
  look
"""
RELOADED = 10_000


def people(status: str | None) -> Instances:
    return Instances("person", ["7", "8"], {"status": np.array([status, "guest"], object)})


def tables() -> Tables:
    """Person 7 is a guest at first."""
    made = Tables(ONTOLOGY.concepts)
    area = {"area": np.array([(0, 0, 5, 5)], np.float64)}
    made.add_version(BEGINNING_OF_TIME, Instances("room", ["lab"], area))
    made.add_version(BEGINNING_OF_TIME, people("guest"))
    return made


def plan_of(name: str, text: str) -> Plan:
    return compile_policy(text, name=name, ontology=ONTOLOGY, window_ms=1_000).plan


def seen(id: str, time_ms: int) -> Event:
    return make_event(
        source="badges",
        id=id,
        type="person.position",
        subject="person/7",
        time=time_ms,
        data={"key": "7", "value": [1.0, 1.0]},
    )


def test_a_detection_is_explained_by_the_tables_of_its_time_and_says_what_changed() -> None:
    async def scenario() -> None:
        clock, pull = ManualClock(0), tables()
        channels = open_memory(clock)
        engine = PolicyEngine(
            channels,
            clock,
            name="site",
            ontology=ONTOLOGY,
            pull=pull,
            plans=[plan_of("p", INSIDE)],
            lateness_ms=0,
            commit_every_ms=0,
        )
        asking = Explainer(channels, ONTOLOGY, pull, {"p": INSIDE}, plan_of, lateness_ms=0)
        for id, at in (("e1", 1_000), ("e2", RELOADED + 1_000)):
            clock.set_ms(at)
            if at > RELOADED:
                pull.add_version(RELOADED, people("employee"))
                await engine.refresh_pull(pull)
            await channels.channel("events").append([seen(id, at)])
            while await engine.step(timeout_ms=0):
                pass
            clock.set_ms(at + 2_000)
            await engine.step(timeout_ms=0)
        kept = await channels.channel("detections").read_after(0)
        [found] = [Detection.from_event(one.event) for one in kept if one.event.type == DETECTED]
        explained = await asking.why(found)
        assert explained.held is not None
        [known] = explained.held.known
        assert known.text == "status of 7 = 'guest'"
        assert "until 1970-01-01T00:00:10" in known.told
        then = await asking.why_not("p", WhyNotQuestion(at=1_000, given={"A": "7"}))
        assert then.fired
        later = await asking.why_not("p", WhyNotQuestion(at=RELOADED + 1_000, given={"A": "7"}))
        assert not later.fired
        assert not any(one.known for one in later.candidates)

    asyncio.run(scenario())


def test_who_did_not_change_is_not_spoken_of_but_the_loading_is_noted() -> None:
    pull = tables()
    pull.add_version(RELOADED, people("employee"))
    pull.add_version(RELOADED + 5, people(None))
    then = VersionedTables(pull, 1_000)
    assert then.known("person", "8") == ()
    assert then.known("room", "lab") == ()
    [known] = then.known("person", "7")
    assert known.text == "status of 7 = 'guest'"
    [note] = then.notes(["person", "room"])
    assert (note.kind, note.time) == ("tables", RELOADED + 5)
    assert "tables of person were loaded again with other rows, 2 times" in note.text
    assert VersionedTables(pull, RELOADED + 5).notes(["person"]) == []


def test_removed_and_new_rows_are_reported_too() -> None:
    pull = tables()
    pull.add_version(RELOADED, Instances("person", ["9"], {"status": np.array(["guest"], object)}))
    then = VersionedTables(pull, 1_000)
    assert [one.text for one in then.known("person", "7")] == ["status of 7 = 'guest'"]
    assert [one.text for one in then.known("person", "9")] == ["status of 9 = none"]
