"""Routing rules against the naive list, and what an index must not cost."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.communication.routing import RoutingRule, RoutingTable, with_id
from rapport.core.errors import DuplicateName, InvalidInput
from rapport.core.message import Identifier, Message

ANA, BEN, LEA = (Identifier("peer", name) for name in ("ana", "ben", "lea"))
GUARDS = Identifier("collective", "guards")
ARCHIVE = Identifier("component", "archive")


def message(**fields: Any) -> Message:
    return Message(**({"type": "TASK", "subtype": "REQUEST", "sender": ANA} | fields))


def naive(rules: list[RoutingRule], one: Message) -> tuple[Identifier, ...]:
    """The rules as the requirement says them: all that match, by priority, then by id."""

    def matches(rule: RoutingRule) -> bool:
        return (
            rule.type in ("", one.type)
            and rule.subtype in ("", one.subtype)
            and rule.receiver in (None, one.receiver)
            and rule.sender in (None, one.sender)
        )

    def rank(rule: RoutingRule) -> tuple[Any, ...]:
        empty = (not rule.type, not rule.subtype, rule.receiver is None, rule.sender is None)
        return (*empty, rule.id)

    found: list[Identifier] = []
    for rule in sorted((rule for rule in rules if matches(rule)), key=rank):
        for each in rule.to:
            if each not in found and each != one.receiver:
                found.append(each)
    return tuple(found)


words = st.sampled_from(["", "TASK", "A", "B"])
people = st.sampled_from([ANA, BEN, LEA, GUARDS, ARCHIVE])
anybody = st.one_of(st.none(), people)
rules = st.builds(
    RoutingRule,
    type=words,
    subtype=words,
    receiver=anybody,
    sender=anybody,
    to=st.lists(people, min_size=1, max_size=3).map(tuple),
).filter(lambda rule: any(rule.properties()))
messages = st.builds(
    Message,
    type=st.sampled_from(["TASK", "A", "C"]),
    subtype=st.sampled_from(["", "TASK", "A", "C"]),
    sender=people,
    receiver=anybody,
)


@given(st.lists(rules, max_size=25), st.lists(messages, min_size=1, max_size=5), st.data())
def test_the_index_gives_what_the_naive_list_gives(
    several: list[RoutingRule], asked: list[Message], data: st.DataObject
) -> None:
    routing, kept = RoutingTable(), {}
    for rule in several:
        kept[routing.add(rule)] = with_id(rule)
        for one in asked:
            assert routing.recipients(one) == naive(list(kept.values()), one)
    for gone in data.draw(st.lists(st.sampled_from(sorted(kept)), unique=True)) if kept else []:
        assert routing.remove(gone) == kept.pop(gone)
        for one in asked:
            assert routing.recipients(one) == naive(list(kept.values()), one)
    assert {rule.id for rule in routing.rules()} == set(kept)


@given(st.lists(rules, max_size=12).flatmap(lambda several: st.permutations(several)))
def test_the_order_of_adding_does_not_matter(several: list[RoutingRule]) -> None:
    one = message(receiver=BEN)
    forwards, backwards = RoutingTable(several), RoutingTable(several[::-1])
    assert forwards.recipients(one) == backwards.recipients(one)


def test_a_rule_that_matches_everything_is_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        RoutingTable().add(RoutingRule(to=(ANA,)))
    assert caught.value.code == "routing.matches_everything"


def test_a_rule_without_a_recipient_is_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        RoutingTable().add(RoutingRule(type="TASK"))
    assert caught.value.code == "routing.no_recipient"


@pytest.mark.parametrize(
    "rule",
    [
        RoutingRule(type="T" * 201, to=(ANA,)),
        RoutingRule(type="T\n", to=(ANA,)),
        RoutingRule(type="T", to=(Identifier("peer", "a\x1b"),)),
        RoutingRule(id="x\0", type="T", to=(ANA,)),
    ],
)
def test_names_that_cannot_be_printed_are_refused(rule: RoutingRule) -> None:
    with pytest.raises(InvalidInput) as caught:
        RoutingTable().add(rule)
    assert caught.value.code == "routing.bad_name"


def test_a_rule_names_at_most_a_thousand_recipients() -> None:
    crowd = tuple(Identifier("peer", str(number)) for number in range(1_001))
    with pytest.raises(InvalidInput) as caught:
        RoutingTable().add(RoutingRule(type="T", to=crowd))
    assert caught.value.code == "routing.too_many"


def test_all_matching_rules_count_the_more_important_property_first() -> None:
    routing = RoutingTable(
        [
            RoutingRule(sender=ANA, to=(LEA,)),
            RoutingRule(type="TASK", to=(BEN, LEA)),
            RoutingRule(receiver=BEN, to=(GUARDS,)),
            RoutingRule(type="TASK", subtype="REQUEST", to=(ARCHIVE,)),
        ]
    )
    assert routing.recipients(message()) == (ARCHIVE, BEN, LEA)
    assert routing.recipients(message(receiver=BEN)) == (ARCHIVE, LEA, GUARDS)


def test_a_rule_that_names_a_receiver_matches_no_message_without_one() -> None:
    routing = RoutingTable([RoutingRule(receiver=BEN, to=(LEA,))])
    assert routing.recipients(message()) == ()


def test_adding_the_same_rule_again_changes_nothing() -> None:
    routing = RoutingTable()
    first = routing.add(RoutingRule(type="TASK", to=(BEN,)))
    assert routing.add(RoutingRule(type="TASK", to=(BEN,))) == first
    assert len(routing) == 1


def test_an_id_belongs_to_one_rule() -> None:
    routing = RoutingTable([RoutingRule(id="r1", type="TASK", to=(BEN,))])
    with pytest.raises(DuplicateName) as caught:
        routing.add(RoutingRule(id="r1", type="TASK", to=(LEA,)))
    assert caught.value.code == "routing.id_taken"
    assert routing.recipients(message()) == (BEN,)


def test_removing_what_is_not_there_gives_nothing() -> None:
    assert RoutingTable().remove("r1") is None


def many_rules(count: int) -> RoutingTable:
    """Rules of every one of the fifteen ways, nearly all for other messages."""
    found = []
    for number in range(count):
        way = number % 15 + 1
        peer = Identifier("peer", f"p{number}")
        found.append(
            RoutingRule(
                type=f"T{number}" if way & 8 else "",
                subtype=f"S{number}" if way & 4 else "",
                receiver=peer if way & 2 else None,
                sender=peer if way & 1 else None,
                to=(ARCHIVE,),
            )
        )
    return RoutingTable(found)


class Counting(dict[Any, Any]):
    """A dictionary that counts how often it was asked."""

    asked = 0

    def get(self, *arguments: Any) -> Any:
        Counting.asked += 1
        return super().get(*arguments)


def look_ups(routing: RoutingTable, one: Message) -> int:
    """How many look-ups a message costs."""
    groups = {kind: Counting(group) for kind, group in routing._groups.items()}
    routing._groups = Counting(groups)
    Counting.asked = 0
    routing.recipients(one)
    return Counting.asked


@pytest.mark.parametrize("count", [15, 20_000])
def test_a_message_costs_a_few_look_ups_however_many_rules_there_are(count: int) -> None:
    assert look_ups(many_rules(count), message(receiver=BEN)) == 8


def test_a_message_that_everything_knows_costs_at_most_twenty_look_ups() -> None:
    every = [
        RoutingRule(
            type="TASK" if way & 8 else "",
            subtype="REQUEST" if way & 4 else "",
            receiver=BEN if way & 2 else None,
            sender=ANA if way & 1 else None,
            to=(ARCHIVE,),
        )
        for way in range(1, 16)
    ]
    assert look_ups(RoutingTable(every), message(receiver=BEN)) == 20


def test_rules_that_were_taken_out_leave_nothing_behind() -> None:
    routing = many_rules(30)
    for rule in routing.rules():
        routing.remove(rule.id)
    assert len(routing) == 0
    assert routing._groups == {}


def test_rules_that_change_in_another_thread_are_never_half_seen() -> None:
    routing, seen, stop = (
        RoutingTable([RoutingRule(type="TASK", to=(LEA,))]),
        set(),
        threading.Event(),
    )

    def ask() -> None:
        while not stop.is_set():
            seen.add(routing.recipients(message()))

    asking = threading.Thread(target=ask)
    asking.start()
    rule = RoutingRule(type="TASK", to=(BEN,))
    for _round in range(300):
        routing.remove(routing.add(rule))
        assert routing.recipients(message()) == (LEA,)
        routing.add(rule)
        assert set(routing.recipients(message())) == {BEN, LEA}
        routing.remove(with_id(rule).id)
    stop.set()
    asking.join()
    assert {frozenset(each) for each in seen} <= {frozenset({LEA}), frozenset({BEN, LEA})}


def measure(count: int, spread: int) -> float:
    """Microseconds per message with so many rules, messages spread over the first `spread`."""
    routing, best = many_rules(count), float("inf")
    asked = []
    for number in range(20_000):
        peer = Identifier("peer", f"p{number % spread}")
        kind = {"type": f"T{number % spread}", "subtype": f"S{number % spread}"}
        asked.append(Message(**kind, sender=peer, receiver=peer))
    for _round in range(9):
        began = time.perf_counter()
        for one in asked:
            routing.recipients(one)
        best = min(best, (time.perf_counter() - began) / len(asked))
    return best * 1e6


if __name__ == "__main__":
    for count, spread in ((10, 10), (100_000, 10), (100_000, 1_000), (100_000, 100_000)):
        print(f"{count:>7} rules, {spread:>7} in use: {measure(count, spread):.2f} us per message")
