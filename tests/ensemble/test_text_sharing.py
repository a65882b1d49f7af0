"""Texts shared by gossip: told while they are wanted, and the latest counts everywhere. [EN-14,
ME-12]
"""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport.core.knowledge import Knowledge
from rapport.ensemble.model.host import Host
from rapport.ensemble.model.work_scheduler import HostSettings
from rapport.ensemble.text_sharing import (
    MOST_BYTES,
    MOST_OFFERS,
    Offer,
    Shelf,
    Wishing,
    capacities_in,
    digest_of,
    fitting,
    newer_of,
    page,
    parse_shared,
)
from rapport.kernel.clock import Chance, Now


class Office:
    """Hosts with one shelf each, told of each other by hand."""

    def __init__(self, *names: str) -> None:
        self.time_ms = 100_000
        self.hosts = {name: Host(name, [Wishing], Chance(2)) for name in names}
        self.versions = itertools.count(1)
        for name, host in self.hosts.items():
            host.add(Shelf(id=f"shelf of {name}"), self.now())

    def now(self) -> Now:
        return Now(self.time_ms, float(self.time_ms))

    def shelf(self, name: str) -> Shelf:
        found = self.hosts[name].components[f"shelf of {name}"]
        assert isinstance(found, Shelf)
        return found

    def put(self, name: str, texts: dict[str, str]) -> None:
        offers = [Offer(one, digest_of(text), 1, name) for one, text in texts.items()]
        values = {"offers": offers, "texts": {digest_of(text): text for text in texts.values()}}
        self.hosts[name].assign(f"shelf of {name}", values, self.now())

    def tell(self, source: str, to: str) -> None:
        told = self.hosts[source].snapshot(f"shelf of {source}")
        assert told is not None
        self.hosts[to].replace(
            Knowledge(
                f"shelf of {source}",
                source,
                told.roles,
                next(self.versions),
                self.time_ms,
                told.values,
            ),
            self.now(),
        )

    def run(self, ms: int = 3_000) -> None:
        self.time_ms += ms
        for host in self.hosts.values():
            host.run(self.now())


def test_a_text_is_told_while_somebody_wants_it_and_no_longer() -> None:
    office = Office("a", "b")
    office.put("a", {"us": "text", "other": "nobody wants it"})
    office.run()
    assert office.shelf("a").told == {}
    office.hosts["b"].assign("shelf of b", {"wanted": [digest_of("text")]}, office.now())
    office.tell("b", "a")
    office.run()
    assert office.shelf("a").told == {digest_of("text"): "text"}
    office.hosts["b"].assign("shelf of b", {"wanted": []}, office.now())
    office.tell("b", "a")
    for _ in range(30):
        office.run()
    assert office.shelf("a").told == {}


def test_texts_that_do_not_fit_together_take_turns() -> None:
    office = Office("a", "b")
    texts = {f"n{number}": f"{number}" * (MOST_BYTES // 2) for number in range(5)}
    office.put("a", texts)
    digests = [digest_of(text) for text in texts.values()]
    office.hosts["b"].assign("shelf of b", {"wanted": digests}, office.now())
    seen = set()
    for _ in range(40):
        office.tell("b", "a")
        office.run()
        told = office.shelf("a").told
        assert sum(map(len, told.values())) <= MOST_BYTES
        seen |= set(told)
    assert seen == set(digests)


def test_nodes_that_have_much_and_want_as_much_of_each_other_come_to_have_it() -> None:
    office = Office("yard", "hall")
    seen: dict[str, set[str]] = {"yard": set(), "hall": set()}
    texts = {
        node: {
            f"{node}-{number:03}".ljust(40, "x"): f"{node}{number:03}" * 200
            for number in range(120)
        }
        for node in seen
    }
    for node, own in texts.items():
        office.put(node, own)
    for _ in range(80):
        for source, to in (("yard", "hall"), ("hall", "yard")):
            office.tell(source, to)
            shown = office.hosts[to].replicas[f"shelf of {source}"].values
            seen[to] |= set(shown["told"])
            wanted = {offer[1] for offer in shown["offers"]} - seen[to]
            office.hosts[to].assign(f"shelf of {to}", {"wanted": sorted(wanted)}, office.now())
        office.run()
    assert seen["hall"] == {digest_of(text) for text in texts["yard"].values()}
    assert seen["yard"] == {digest_of(text) for text in texts["hall"].values()}
    assert not [fault for host in office.hosts.values() for fault in host.faults]


@settings(deadline=None)
@given(
    most_bytes=st.sampled_from([4_096, 65_536, 400_000]),
    name=st.integers(1, 200),
    size=st.integers(1, 3_000),
    turn=st.integers(0, 10),
)
def test_a_shelf_that_is_as_full_as_it_may_be_can_be_published(
    most_bytes: int, name: int, size: int, turn: int
) -> None:
    rooms = capacities_in(most_bytes)
    own = [f"{number:04}".ljust(min(size, rooms.texts), "t") for number in range(300)]
    offers = [Offer("n".ljust(name, "x"), digest_of(one), 2**40, "origin", "v") for one in own]
    texts = {digest_of(one): one for one in own}
    host = Host("a", [], Chance(1), HostSettings(most_bytes=most_bytes))
    host.add(Shelf(id="shelf of a", room=rooms.texts), Now(1, 1.0))
    values = {
        "offers": page(offers, rooms.offers, MOST_OFFERS, turn),
        "wanted": page(list(texts), rooms.wanted, 300, turn),
        "told": fitting(texts, turn, rooms.texts),
        "asked": dict.fromkeys(texts, 2**40),
        "texts": texts,
    }
    host.assign("shelf of a", values, Now(1, 1.0))
    assert host.snapshot("shelf of a") is not None
    assert not list(host.faults)


@given(st.lists(st.text(max_size=40), unique=True), st.integers(10, 200), st.integers(1, 9))
def test_everything_that_fits_at_all_has_its_turn(items: list[str], room: int, most: int) -> None:
    turns = [page(items, room, most, turn) for turn in range(len(items) + 1)]
    sizes = [len(msgspec.msgpack.encode(one)) for one in items]
    shown: list[str] = []
    for one in turns:
        if shown and one == turns[0]:
            break
        assert len(one) <= most
        assert sum(len(msgspec.msgpack.encode(item)) for item in one) <= room
        shown += one
    small = [one for one, size in zip(items, sizes, strict=True) if size <= room]
    assert set(shown) == set(small)


OFFERS = st.builds(
    Offer,
    st.sampled_from("xyz"),
    st.sampled_from(["d1", "d2", "d3"]),
    st.integers(1, 5),
    st.sampled_from("ab"),
)


@given(st.lists(OFFERS, max_size=12), st.randoms(use_true_random=False))
def test_who_hears_the_same_offers_in_any_order_comes_to_the_same(
    offers: list[Offer], draw: object
) -> None:
    def settled(heard: list[Offer]) -> dict[str, str]:
        own: dict[str, Offer] = {}
        for offer in heard:
            own |= newer_of([offer], own, before_ms=10)
        return {name: offer.digest for name, offer in own.items()}

    # Who has a text already keeps its own time for it; what counts is which text it is.
    once = list({(one.name, one.digest): one for one in offers}.values())
    mixed = list(once)
    draw.shuffle(mixed)  # type: ignore[attr-defined]
    assert settled(once) == settled(mixed) == settled([*mixed, *once])


def test_an_offer_from_the_future_does_not_count_until_then() -> None:
    offer = Offer("us", "d", 5_000, "a")
    assert newer_of([offer], {}, before_ms=4_999) == {}
    assert newer_of([offer], {}, before_ms=5_000) == {"us": offer}


def test_a_text_that_is_not_what_its_digest_says_is_left_out() -> None:
    true, false = digest_of("text"), digest_of("other")
    assert parse_shared({"told": {true: "text", false: "text"}}).told == {true: "text"}


def test_knowledge_that_is_no_shelf_is_refused() -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_shared({"offers": [["us"]]})
    assert refused.value.code == "ensemble.bad_shelf"
