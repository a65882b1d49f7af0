"""What components publish, and what of their knowledge cannot be."""

from __future__ import annotations

import datetime
import enum
import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput, TooLarge
from rapport.core.event import MAX_NAME
from rapport.ensemble import Component, Ensemble, Local, Role
from rapport.ensemble.model.host import Host
from rapport.ensemble.model.replicas import ReplicaReading
from rapport.ensemble.model.snapshots import snapshot_of
from rapport.ensemble.protocol import (
    MAX_DEPTH,
    MAX_MESSAGE,
    MAX_WORDS,
    PublishedKnowledge,
    decode,
    encode,
    values_of,
)
from rapport.kernel.clock import Now

At = Callable[[float], Now]
MakeHost = Callable[..., Host]


class Colour(enum.Enum):
    RED = "red"


class Leaf(msgspec.Struct, frozen=True):
    number: int


class Tree(Role):
    leaves: dict[str, list[Leaf]]
    by_number: dict[int, str]
    colour: Colour
    planted: datetime.date


class Oak(Component, Tree):
    secret: Local[object] = None
    thing: Any = None


def oak(**given: Any) -> Oak:
    usual = {
        "id": "oak",
        "leaves": {"a": [Leaf(1), Leaf(2)]},
        "by_number": {7: "seven"},
        "colour": Colour.RED,
        "planted": datetime.date(2020, 2, 29),
    }
    return Oak(**{**usual, **given})


def test_knowledge_is_published_as_plain_data_without_local_fields(
    make_host: MakeHost, at: At
) -> None:
    host = make_host()
    host.add(oak(secret=object()), at(0))
    snapshot = host.snapshot("oak")
    assert snapshot is not None
    assert snapshot.roles == ("Oak", "Tree")
    assert snapshot.values == {
        "leaves": {"a": [{"number": 1}, {"number": 2}]},
        "by_number": {"7": "seven"},
        "colour": "red",
        "planted": "2020-02-29",
        "thing": None,
    }
    assert msgspec.msgpack.decode(snapshot.body) == snapshot.values
    assert host.snapshot("nobody") is None


@pytest.mark.parametrize("as_bytes", [True, False])
def test_what_was_published_has_the_same_values_elsewhere(as_bytes: bool) -> None:
    snapshot = snapshot_of(oak(), (), most_bytes=10_000, most_levels=9)
    body = snapshot.body if as_bytes else snapshot.values
    read = ReplicaReading(PublishedKnowledge("oak", 1, 1, "there", snapshot.roles, body)).as_role(
        Tree
    )
    assert read.leaves == {"a": [Leaf(1), Leaf(2)]}
    assert read.by_number == {7: "seven"}
    assert read.colour is Colour.RED
    assert read.planted == datetime.date(2020, 2, 29)


def cyclic() -> list[Any]:
    cycle: list[Any] = []
    cycle.append({"again": cycle})
    return cycle


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


UNPUBLISHABLE: dict[str, Callable[[], Any]] = {
    "cyclic": cyclic,
    "deep": lambda: deep(100),
    "very_deep": lambda: deep(100_000),
    "nan": lambda: math.nan,
    "infinite": lambda: [1, {"x": math.inf}],
    "object": object,
    "object_inside": lambda: [1, {2}, object()],
    "huge_number": lambda: 2**80,
    "half_a_character": lambda: "\ud800",
    "odd_key": lambda: {(1, 2): 3},
    "large": lambda: "x" * 70_000,
}


@pytest.mark.parametrize("thing", UNPUBLISHABLE)
def test_what_cannot_be_published_is_a_fault_and_withheld_until_it_can(
    thing: str, make_host: MakeHost, at: At
) -> None:
    host, tree = make_host(), oak()
    host.add(tree, at(0))
    good = host.snapshot("oak")
    tree.thing = UNPUBLISHABLE[thing]()
    host.tick(at(7))
    assert host.snapshot("oak") is None
    host.tick(at(9))
    assert host.snapshot("oak") is None
    (fault,) = host.faults
    what = "too_large" if thing == "large" else "not_plain"
    assert (fault.code, fault.component) == (f"ensemble.knowledge_{what}", "oak")
    assert fault.hint
    (withheld,) = host.withheld.values()
    assert (withheld.component, withheld.code) == ("oak", fault.code)
    assert withheld.since_ms == at(7).wall_ms
    tree.thing = None
    assert host.snapshot("oak") == good
    assert host.withheld == {}
    assert len(host.faults) == 1


def test_nothing_is_told_while_nothing_could_ever_be_published(make_host: MakeHost, at: At) -> None:
    host = make_host()
    host.add(oak(thing=math.nan), at(0))
    assert host.snapshot("oak") is None


def test_a_deleted_field_is_a_fault(make_host: MakeHost, at: At) -> None:
    host, tree = make_host(), oak()
    host.add(tree, at(0))
    del tree.thing
    assert host.snapshot("oak") is None
    assert "it was deleted" in next(iter(host.faults)).message


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(PLAIN)
def test_plain_knowledge_survives_the_way(thing: Any) -> None:
    snapshot = snapshot_of(oak(thing=thing), (), most_bytes=100_000, most_levels=32)
    read = ReplicaReading(PublishedKnowledge("oak", 1, 1, "there", snapshot.roles, snapshot.body))
    assert read.as_role(Oak).thing == thing
    assert read.values() == snapshot.values


def test_a_component_whose_knowledge_cannot_be_copied_harms_only_itself(
    make_host: MakeHost, at: At
) -> None:
    class Stubborn:
        def __deepcopy__(self, _memo: Any) -> Any:
            raise TypeError("there is only one")

    class Looking(Ensemble, every="1 s"):
        coordinator: Oak
        member: Tree

        @staticmethod
        def membership(coordinator: Oak, member: Tree) -> bool:
            return coordinator.thing is None

        @staticmethod
        def exchange(coordinator: Oak, member: Tree) -> None:
            coordinator.thing = member.id

    host, bad, good = make_host(Looking), oak(id="bad"), oak(id="good")
    host.add(bad, at(0))
    host.add(good, at(0))
    bad.thing = Stubborn()
    host.run(at(1_000))
    assert good.thing == "bad"
    assert "there is only one" in next(iter(host.faults)).message


@pytest.mark.parametrize("name", ["most_bytes", "most_levels"])
def test_more_than_a_message_carries_cannot_be_allowed(name: str, make_host: MakeHost) -> None:
    for value in (0, 10**7):
        with pytest.raises(InvalidInput) as refused:
            make_host(**{name: value})
        assert refused.value.code == "ensemble.bad_settings"


def test_as_much_as_may_be_allowed_is_read_at_the_other_end(make_host: MakeHost, at: At) -> None:
    class Box(Component):
        content: Any = None

    host = make_host(most_bytes=MAX_MESSAGE - 131_072, most_levels=MAX_DEPTH)
    nested: Any = "x" * 900_000
    for _ in range(MAX_DEPTH):
        nested = [nested]
    host.add(Box(id="b", content=nested), at(0))
    snapshot = host.snapshot("b")
    assert snapshot is not None
    assert snapshot.values == {"content": nested}
    roles = ("r" * MAX_NAME,) * MAX_WORDS
    message = PublishedKnowledge("b", 1, 1, "n" * MAX_NAME, roles, snapshot.body, None, roles)
    heard = decode(encode(message))
    assert isinstance(heard, PublishedKnowledge)
    assert values_of(heard.body) == {"content": nested}


def test_more_groups_than_a_message_carries_cannot_be_published() -> None:
    groups = tuple(f"Team:{number}" for number in range(MAX_WORDS + 1))
    assert snapshot_of(oak(), groups[1:], most_bytes=10_000, most_levels=9).groups == groups[1:]
    with pytest.raises(TooLarge, match="65 groups"):
        snapshot_of(oak(), groups, most_bytes=10_000, most_levels=9)
