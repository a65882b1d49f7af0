"""By which identity a plan is parted, and where readings belong then."""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from rapport.pipeline.history.keys import (
    EVERY,
    NOBODY,
    Key,
    Router,
    bucket_of,
    choose_key,
)
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.ontology import Ontology, PushSource, Relationship
from rapport.policy.plan import Plan
from rapport.policy.readings import readings_schema
from rapport.tables.instances import Instances
from support.varied.worlds import Pull

ONTOLOGY = Ontology(
    concepts={
        "person": {"status": "text", "position": "point"},
        "room": {"security": "text", "area": "rectangle"},
    },
    relationships={
        "inside": Relationship("inside", ("person", "position"), ("room", "area"), "inside"),
        "within": Relationship("within", ("person", "position"), ("person", "position"), "within"),
    },
    sources={
        "positions": PushSource(
            name="positions", concept="person", attribute="position", key="person", value=("x", "y")
        )
    },
)


def texts(*values: str | None) -> np.ndarray[tuple[int], np.dtype[np.object_]]:
    found = np.empty(len(values), object)
    found[:] = values
    return found


PULL = Pull(
    {
        "person": Instances(
            "person", ["g1", "e1", "e2", "e3"], {"status": texts("guest", *["employee"] * 3)}
        ),
        "room": Instances(
            "room", ["r"], {"security": texts("restricted"), "area": np.array([[0.0, 0, 9, 9]])}
        ),
    }
)


def plan_of(conditions: str, others: str = "person B (status='employee')", more: str = "") -> Plan:
    text = (
        f"concepts\n  person A (status='guest')\n  {others}\n  room R (security='restricted')\n"
        f"conditions\n  {conditions}\n{more}actions\n  raise alarm\n"
    )
    return compile_policy(text, name="p", ontology=ONTOLOGY, window_ms=5_000).plan


def readings(
    *keys: str, stream: str = "person.position", source: str = "positions"
) -> pa.RecordBatch:
    count = len(keys)
    values: dict[str, list[object]] = {
        "time": list(range(count)),
        "id": [f"e{n}" for n in range(count)],
        "stream": [stream] * count,
        "source": [source] * count,
        "key": list(keys),
        "person.position.x": [0.0] * count,
        "person.position.y": [0.0] * count,
    }
    return pa.RecordBatch.from_pydict(values, schema=readings_schema(ONTOLOGY))


def chosen(plan: Plan, sources: dict[str, PushSource] | None = None) -> Key:
    key = choose_key(plan, PULL, sources)
    assert isinstance(key, Key), key
    return key


def test_the_alias_whose_readings_need_one_bucket_most_often_is_the_key() -> None:
    key = chosen(plan_of("A is within 5m of B"))
    assert key.alias == "B"
    assert key.share == pytest.approx(3 / 5)  # three employees of four people and the unknown


def test_readings_go_to_the_bucket_of_the_key_or_to_every_one_or_to_nobody() -> None:
    key = chosen(plan_of("A is within 5m of B"))
    found = Router([key], PULL, 7).buckets(readings("e1", "g1", "e2", "ghost", "e1")).tolist()
    assert found == [bucket_of("e1", 7), EVERY, bucket_of("e2", 7), NOBODY, bucket_of("e1", 7)]


def test_readings_of_other_streams_are_nobodys() -> None:
    key = chosen(plan_of("A is within 5m of B"))
    assert Router([key], PULL, 7).buckets(readings("e1", stream="cart.place")).tolist() == [NOBODY]


def test_two_who_may_be_each_other_make_no_key() -> None:
    plan = plan_of("A is within 5m of B", others="person B (status='guest')")
    assert choose_key(plan, PULL) == "every event that may stand for A may stand for B too"


def test_an_alias_that_not_every_detection_names_is_no_key() -> None:
    plan = plan_of("A is within 5m of B or B is inside R", others="person B (status='employee')")
    assert chosen(plan).alias == "B"
    either = plan_of("A is inside R or B is inside R")
    assert choose_key(either, PULL) == (
        "there is no alias with events of its own that every detection names"
    )


def test_states_and_silences_have_the_key_of_who_is_in_them() -> None:
    assert chosen(plan_of("A is inside R for 20 s")).alias == "A"
    assert chosen(plan_of("no position of A for 3 s")).own[0].stream == "person.position"


def test_all_readings_of_a_watched_source_go_everywhere() -> None:
    plan = plan_of("A is inside R\n  A is not within 5m of B")
    silent = msgspec.structs.replace(ONTOLOGY.sources["positions"], period_ms=100)
    key = chosen(plan, {"positions": silent})
    assert key.watched == ("positions",)
    router = Router([key], PULL, 3)
    assert set(router.buckets(readings("e1", "g1", "ghost")).tolist()) == {EVERY}
    own = router.buckets(readings("g1", "ghost"), with_watched=False)
    assert own.tolist() == [bucket_of("g1", 3), NOBODY]


def test_buckets_are_the_same_in_every_process_and_release() -> None:
    assert [bucket_of(name, 16) for name in ("1", "ü ö", "", "日本")] == [7, 0, 0, 12]


def test_dictionaries_and_plain_texts_are_routed_alike() -> None:
    router = Router([chosen(plan_of("A is within 5m of B"))], PULL, 5)
    keys = pa.array([f"e{number % 4}" for number in range(100)] + ["g1"])
    plain = router.of_stream("person.position", keys)
    assert router.of_stream("person.position", keys.dictionary_encode()).tolist() == plain.tolist()
    known = router.places("person.position", ["g1", "e1"])
    assert known is not None
    assert known.tolist() == [EVERY, bucket_of("e1", 5)]
    assert router.places("room.area", ["r"]) is None


def test_a_bucket_owns_the_detections_of_its_identities() -> None:
    from rapport.core.detection import Detection

    key = chosen(plan_of("A is within 5m of B"))
    found = Detection(policy="p", time=1, bindings={"A": "g1", "B": "e2"}, causes=())
    owners = [bucket for bucket in range(5) if key.owns(found, bucket, 5)]
    assert owners == [bucket_of("e2", 5)]
