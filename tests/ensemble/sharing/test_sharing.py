"""Texts shared by gossip: told while they are wanted, and the latest counts everywhere. [EN-14,
ME-12]
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport.core.knowledge import Knowledge
from rapport.ensemble.model.host import Host
from rapport.ensemble.sharing import (
    MOST_BYTES,
    Offer,
    Shelf,
    Wishing,
    digest_of,
    newer_of,
    shared_by,
)
from rapport.kernel.chance import Chance
from rapport.kernel.clock import Now


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


OFFERS = st.builds(
    Offer,
    st.sampled_from("xyz"),
    st.sampled_from(["d1", "d2", "d3"]),
    st.integers(1, 5),
    st.sampled_from("ab"),
)


@settings(max_examples=200, deadline=None)
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
    assert shared_by({"told": {true: "text", false: "text"}}).told == {true: "text"}


def test_knowledge_that_is_no_shelf_is_refused() -> None:
    with pytest.raises(InvalidInput) as refused:
        shared_by({"offers": [["us"]]})
    assert refused.value.code == "ensemble.bad_shelf"
