"""What a stranger, a liar and a broken node cannot do."""

from __future__ import annotations

from rapport.ensemble.grouping.group_client import GroupClient
from rapport.ensemble.grouping.group_tables import (
    Announcement,
    GroupingSettings,
    GroupTable,
    TableEntry,
    encode_body,
    read_table,
)
from rapport.ensemble.grouping.grouper import GrouperMachine
from rapport.ensemble.protocol import PublishedKnowledge
from rapport.kernel.clock import Chance, Now
from rapport.transport.base import Address, Sender

OWN: Address = ("10.1.0.1", 1)
GROUPER: Address = ("10.0.0.1", 1)
STRANGER: Address = ("10.6.6.6", 1)
VICTIM: Address = ("10.7.7.7", 1)
NOW = Now(1_000_000, 0.0)


def client(groups: tuple[str, ...] = ("red",), **settings: int) -> GroupClient:
    made = GroupClient(
        "me",
        OWN,
        Chance(1),
        GroupingSettings(**settings),  # type: ignore[arg-type]
        groupers=[GROUPER],
        groups_of=lambda component: groups,
    )
    assert made.to_publish("car", NOW) == [GROUPER]
    return made


def grouper(**options: object) -> GrouperMachine:
    return GrouperMachine("bus", GROUPER, Chance(1), NOW, **options)  # type: ignore[arg-type]


def table(
    *members: Address, by: Address = GROUPER, group: str = "red", version: int = 1
) -> PublishedKnowledge:
    entries = tuple(TableEntry(*member) for member in members)
    body = encode_body(GroupTable(group, (by,), entries, 0, 1))
    return PublishedKnowledge(f"grouper/{by}/{group}", version, 1, "bus", ("GroupTable",), body, by)


def knowledge(
    address: Address | None, version: int = 1, component: str = "car"
) -> PublishedKnowledge:
    return PublishedKnowledge(component, version, 1, "someone", ("Car",), b"", address, ("red",))


def announcement(by: Address, *others: Address) -> PublishedKnowledge:
    body = encode_body(Announcement(0, False, tuple(TableEntry(*other) for other in others)))
    return PublishedKnowledge(
        f"grouper/{by}", 1, 1, "bus", ("Grouper",), body, by, ("rapport.groupers",)
    )


def peers(here: GroupClient) -> list[Address]:
    return here.peers.members("red", NOW)


def test_a_strangers_table_is_not_taken() -> None:
    here = client()
    here.received(table(VICTIM, by=STRANGER), Sender(STRANGER), NOW)
    here.received(table(VICTIM, by=GROUPER), Sender(STRANGER), NOW)
    assert (peers(here), here.refused) == ([], 2)


def test_a_grouper_that_was_introduced_is_believed() -> None:
    here = client()
    body = encode_body(GroupTable("red", (STRANGER,)))
    introduction = PublishedKnowledge("grouper/x", 1, 1, "bus", ("GroupTable",), body, GROUPER)
    here.received(introduction, Sender(GROUPER), NOW)
    here.received(table(VICTIM, by=STRANGER), Sender(STRANGER), NOW)
    assert peers(here) == [VICTIM]


def test_tables_of_groups_that_the_node_is_not_in_are_not_taken() -> None:
    here = client()
    here.received(table(VICTIM, group="blue"), Sender(GROUPER), NOW)
    assert here.peers.groups() == []


def test_a_table_cannot_make_a_node_flood_somebody_who_never_spoke() -> None:
    here = client()
    sent = 0
    for version in range(20):
        here.received(table(VICTIM, version=version + 1), Sender(GROUPER), NOW)
        sent += here.to_publish("car", NOW).count(VICTIM)
    assert sent == 3
    here.received(knowledge(VICTIM), Sender(VICTIM), NOW)
    assert VICTIM in here.to_publish("car", NOW)


def test_who_never_spoke_is_tried_again_seldom() -> None:
    here = client()
    sent = []
    for period in range(60):
        now = Now(0, 5_000.0 * period)
        here.received(table(VICTIM, version=period + 1), Sender(GROUPER), now)
        for _component in range(4):
            sent += [period] * here.to_publish("car", now).count(VICTIM)
    assert sent == [0, 0, 0, 12, 24, 36, 48]


def test_a_publication_goes_to_no_more_than_the_limit() -> None:
    here = client(recipients=10)
    many = [("10.2.0.0", port) for port in range(100)]
    here.received(table(*many), Sender(GROUPER), NOW)
    chosen = here.to_publish("car", NOW)
    assert len(chosen) == len(set(chosen)) == 10
    assert chosen[0] == GROUPER


def test_a_publication_goes_to_a_random_few_if_so_wished() -> None:
    here = client(fan_out=2, tries=1_000)
    many = [("10.2.0.0", port) for port in range(20)]
    here.received(table(*many, OWN), Sender(GROUPER), NOW)
    drawn = [here.to_publish("car", NOW) for _ in range(60)]
    assert {len(one) for one in drawn} == {3}
    assert {address for one in drawn for address in one} == {GROUPER, *many}
    assert len(here.to_publish("", NOW)) == 2


def test_clients_never_pass_on_what_others_say() -> None:
    assert client().to_pass_on(knowledge(VICTIM), NOW) == []


def test_nobody_can_be_registered_by_a_third() -> None:
    here = grouper()
    here.received(knowledge(VICTIM), Sender(STRANGER), NOW)
    here.received(knowledge(None), Sender(STRANGER), NOW)
    assert (len(here.register), here.refused) == (0, 2)
    here.received(knowledge(STRANGER), Sender(STRANGER), NOW)
    assert len(here.register) == 1


def test_what_another_grouper_passes_on_is_registered_with_its_own_address() -> None:
    here = grouper()
    here.received(announcement(STRANGER), Sender(STRANGER), NOW)
    for number in range(20):
        said = PublishedKnowledge(f"car {number}", 1, 1, "n", ("Car",), b"", VICTIM, (f"{number}",))
        here.received(said, Sender(STRANGER), NOW)
    assert {entry.address for entry in here.register.entries("1", NOW)} == {VICTIM}


def test_only_those_who_may_are_groupers() -> None:
    here = grouper(may_be_grouper=lambda sender: sender.identity == "town")
    here.received(announcement(STRANGER), Sender(STRANGER, "somebody"), NOW)
    here.received(announcement(VICTIM), Sender(STRANGER, "town"), NOW)
    assert (len(here.others), here.refused) == (1, 2)
    here.received(announcement(STRANGER), Sender(STRANGER, "town"), NOW)
    assert len(here.others) == 2


def test_clients_of_a_network_are_no_groupers_unless_allowed() -> None:
    here = grouper()
    here.received(announcement(STRANGER), Sender(STRANGER, "a", "client"), NOW)
    assert len(here.others) == 1


def test_an_announcement_cannot_make_a_grouper_flood_those_it_names() -> None:
    here = grouper()
    sent = 0
    here.received(announcement(STRANGER, VICTIM), Sender(STRANGER), NOW)
    for step in range(20):
        here.tick(Now(0, 1_250.0 * step))
        sent += sum(outgoing.to == VICTIM for outgoing in here.outbox)
        here.outbox.clear()
    assert sent == 3


def test_broken_bodies_do_no_harm() -> None:
    here, there = grouper(), client()
    for role in ("GroupTable", "Grouper"):
        for body in (b"\xc1", None, 7, b"\x80"):
            broken = PublishedKnowledge("x", 1, 1, "n", (role,), body, GROUPER)
            here.received(broken, Sender(GROUPER), NOW)
            there.received(broken, Sender(GROUPER), NOW)
    assert here.outbox == []
    assert peers(there) == []


def test_a_version_is_passed_on_once_and_its_sender_is_told_to_whom() -> None:
    here = grouper()
    here.received(announcement(STRANGER), Sender(STRANGER), NOW)
    here.outbox.clear()
    # With a single copy of each, about half of the groups belong to the other one alone.
    here = grouper(settings=GroupingSettings(copies=1))
    here.received(announcement(STRANGER), Sender(STRANGER), NOW)
    group = next(g for g in map(str, range(99)) if here.others.publisher(g) == STRANGER)
    said = PublishedKnowledge("car", 5, 1, "n", ("Car",), b"", OWN, (group,))
    here.outbox.clear()
    here.received(said, Sender(OWN), NOW)
    here.received(said, Sender(OWN), NOW)
    passed_on, told = here.outbox
    assert (passed_on.message, passed_on.to) == (said, STRANGER)
    assert told.to == OWN
    assert isinstance(told.message, PublishedKnowledge)
    assert read_table(told.message) == GroupTable(group, (STRANGER,))
