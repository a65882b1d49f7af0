"""What was given out is given out once, for as long as it may be found again, also across a
restart; then it is forgotten. [PO-7, PO-15]
"""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.detection import Detection, Undecided
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.ontology import Ontology, PushSource
from rapport.policy.runner.deployed_plans import OutputDedupe
from rapport.policy.runner.local import LocalRunner
from rapport.tables.instances import Instances
from support.judge.holding import Reading
from support.varied.worlds import Pull, readings_batch

TEXT = """concepts
  station S
  station T
conditions
  (NOT humidity of T > 10 FOLLOWED-BY temperature of S > 30) OR temperature of S > 20
actions
  look
"""


def source(name: str, **more: int) -> PushSource:
    return PushSource(
        name=name, concept="station", attribute=name, key="key", value=("value",), **more
    )


ONTOLOGY = Ontology(
    concepts={"station": {"temperature": "number", "humidity": "number"}},
    relationships={},
    sources={
        "temperature": source("temperature"),
        "humidity": source("humidity", uncertainty_ms=10),
    },
)
PULL = Pull({"station": Instances("station", ["s1"], {})}, {})


def found(time: int, policy: str = "p") -> Detection:
    return Detection(policy=policy, time=time, bindings={"S": "1"}, causes=((time, f"e{time}"),))


def runner_of(*names: str) -> LocalRunner:
    plans = [
        compile_policy(TEXT, name=name, ontology=ONTOLOGY, window_ms=100).plan for name in names
    ]
    return LocalRunner(plans, PULL, lateness_ms=0, sources=ONTOLOGY.sources)


def hot(time: int, id: str) -> pa.RecordBatch:
    reading = Reading(time, id, "station.temperature", "s1", (31.0,), "temperature")
    return readings_batch([reading], ONTOLOGY)


def test_what_was_given_out_is_no_news_until_it_cannot_come_again() -> None:
    lately = OutputDedupe()
    assert lately.unseen([found(1), found(2)], 10) == [found(1), found(2)]
    assert lately.unseen([found(2), found(3)], 10) == [found(3)]
    lately.forget_before(["p"], 12)
    assert lately.state(12) == {"p": {found(2).id(): 12, found(3).id(): 13}}
    lately.forget_before(["p"], 14)
    assert lately.state(14) == {}


def test_a_doubt_is_not_the_detection_it_would_have_been() -> None:
    lately = OutputDedupe()
    doubt = Undecided.of(found(1), ("gate",))
    assert lately.unseen([found(1)], 10) == [found(1)]
    assert lately.unseen([doubt, doubt], 10) == [doubt]


def test_policies_do_not_hide_what_others_found() -> None:
    lately = OutputDedupe()
    assert lately.unseen([found(1, "p"), found(1, "q")], 5) == [found(1, "p"), found(1, "q")]
    lately.forget("p")
    assert lately.unseen([found(1, "p"), found(1, "q")], 5) == [found(1, "p")]


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=20), st.integers(0, 50))
def test_nothing_that_can_come_again_is_given_out_twice(steps: list[list[int]], reach: int) -> None:
    """Each step finds things at most `reach` older than the time before it, saved in between."""
    lately, given_out, watermark = OutputDedupe(), list[str](), 0
    for ages in steps:
        things = [found(max(0, watermark - min(age, reach))) for age in ages]
        given_out += [item.id() for item in lately.unseen(things, reach)]
        watermark += 3
        lately.forget_before(["p"], watermark)
        saved, lately = lately.state(watermark), OutputDedupe()
        assert all(until >= watermark for own in saved.values() for until in list(own.values())[:1])
        lately.take_over(saved)
    assert len(given_out) == len(set(given_out))


def test_a_runner_that_starts_again_knows_what_it_gave_out() -> None:
    before = runner_of("p", "q")
    first = before.feed(hot(0, "e1")) + before.advance(5)
    assert [item.policy for item in first] == ["p", "q"]
    after = runner_of("p", "q")
    after.restore(before.snapshot())
    assert after.advance(50) == []
    assert [item.time for item in after.feed(hot(60, "e2")) + after.finish()] == [60, 60]


def test_a_policy_that_begins_anew_gives_out_what_it_finds() -> None:
    runner = runner_of("p")
    [once] = runner.feed(hot(0, "e1")) + runner.advance(5)
    runner.withdraw("p")
    runner.deploy(compile_policy(TEXT, name="p", ontology=ONTOLOGY, window_ms=100).plan)
    assert runner.snapshot().count(once.id().encode()) == 0
