"""The directory: the site file's people and the store's, as deliveries and people ask for them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rapport.channel.backends.local import open_memory
from rapport.communication.adapters.adapter_config import BUILT_IN
from rapport.communication.directory import PEOPLE_CHANGED, DirectoryChanges, StoredDirectory
from rapport.communication.duty import Roster, Shift
from rapport.communication.peers import Collective, Peer, SiteDirectory
from rapport.core.errors import Conflict, InvalidInput, SiteError, UnknownName
from rapport.core.message import Identifier
from rapport.kernel.clock import Chance, Ids, ManualClock

ADAPTERS = ("inbox", "mail", "webhook")


class People:
    """A directory over a record store that outlives it."""

    def __init__(self, channels: Any = None) -> None:
        self.clock = ManualClock(1_772_452_800_000)
        self.channels = channels or open_memory(self.clock)
        declared = SiteDirectory(
            {"ana": Peer(name="ana", addresses=("inbox:",))},
            {"guards": Collective(name="guards", members=("ana",))},
        )
        self.directory = StoredDirectory(declared, self.channels.records)
        self.touched: list[str] = []
        self.changes = DirectoryChanges(
            self.directory,
            self.channels.records,
            self.channels,
            self.clock,
            new_id=Ids(self.clock, Chance(7)).new,
            adapters=lambda: ADAPTERS,
            built_in=BUILT_IN,
        )
        self.changes.changed.append(self.touched.append)

    async def log(self) -> list[Any]:
        stored = await self.channels.channel("log").read_after(0, limit=10_000)
        return [each.event.payload() for each in stored if each.event.type == PEOPLE_CHANGED]


@pytest.fixture
def people() -> People:
    return People()


def test_a_peer_is_added_changed_and_removed_while_the_node_runs(people: People) -> None:
    async def scenario() -> None:
        await people.changes.put_peer("ben", {"addresses": "mail:ben@example.org"}, by="boss")
        assert people.directory.peer("ben") == Peer(name="ben", addresses=("mail:ben@example.org",))
        await people.changes.change_peer(
            "ben", {"quiet": "22:00-07:00", "zone": "Europe/Vienna"}, by="boss"
        )
        ben = people.directory.peer("ben")
        assert ben is not None
        assert ben.privacy
        await people.changes.change_peer("ben", {"quiet": None, "zone": None}, by="boss")
        assert people.directory.show_peer("ben").settings == {"addresses": ["mail:ben@example.org"]}
        await people.changes.remove_peer("ben", by="boss")
        assert people.directory.peer("ben") is None
        assert people.touched == ["ben"] * 4
        assert [(each["change"], each["by"]) for each in await people.log()] == [
            ("added", "boss"),
            ("changed", "boss"),
            ("changed", "boss"),
            ("removed", "boss"),
        ]

    asyncio.run(scenario())


def test_what_the_site_file_refuses_is_refused_here_with_every_fault(people: People) -> None:
    async def scenario() -> None:
        with pytest.raises(SiteError) as refused:
            await people.changes.put_peer(
                "ben",
                {"addresses": ["mial:b", "mail:no"], "quiet": "25:00-1:00", "colour": 1},
                by="",
            )
        codes = {problem.code for problem in refused.value.problems}
        assert {"adapter.unknown", "peer.bad_address", "site.unknown_key"} <= codes
        assert len(codes) == 4
        with pytest.raises(SiteError):
            await people.changes.put_collective("town", {"delivery": "to-some"}, by="")
        with pytest.raises(SiteError):
            await people.changes.put_peer("ben", {"addresses": []}, by="")
        assert people.directory.peer("ben") is None
        assert await people.log() == []

    asyncio.run(scenario())


def test_an_address_whose_adapter_does_not_run_here_says_what_to_do(people: People) -> None:
    with pytest.raises(InvalidInput) as refused:
        asyncio.run(people.changes.put_peer("ben", {"addresses": ["mqtt:ben/phone"]}, by=""))
    assert refused.value.code == "adapter.not_running"
    assert "[adapters.mqtt] to site.toml" in refused.value.hint


@pytest.mark.parametrize("name", ["", " ben", "a\nb", "x" * 101])
def test_a_name_that_could_not_stand_in_an_address_is_refused(people: People, name: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        asyncio.run(people.changes.put_peer(name, {"addresses": ["inbox:"]}, by=""))
    assert refused.value.code == "people.bad_name"


def test_names_of_the_site_file_are_changed_in_the_site_file(people: People) -> None:
    async def scenario() -> None:
        for change in (
            people.changes.put_peer("ana", {"addresses": ["inbox:"]}, by=""),
            people.changes.change_peer("ana", {"delivery": "preferred"}, by=""),
            people.changes.remove_peer("ana", by=""),
            people.changes.put_collective("guards", {}, by=""),
            people.changes.remove_collective("guards", by=""),
            people.changes.leave("guards", ["ana"], by=""),
        ):
            with pytest.raises(Conflict) as refused:
                await change
            assert refused.value.code == "people.in_site_file"
            assert "site.toml" in refused.value.message

    asyncio.run(scenario())


def test_members_join_and_leave_also_in_a_collective_of_the_site_file(people: People) -> None:
    async def scenario() -> None:
        for name in ("ben", "lea"):
            await people.changes.put_peer(name, {"addresses": ["inbox:"]}, by="")
        assert await people.changes.join("guards", ["lea", "ben", "ana"], by="") == 2
        assert await people.changes.join("guards", ["lea"], by="") == 0
        assert people.directory.member_names("guards") == ["ana", "ben", "lea"]
        assert people.directory.show_peer("lea").collectives == ["guards"]
        assert await people.changes.leave("guards", ["lea", "lea"], by="") == 1
        await people.changes.remove_peer("ben", by="")
        assert people.directory.member_names("guards") == ["ana"]

    asyncio.run(scenario())


def test_nobody_is_in_a_collective_that_is_gone_from_the_site_file(people: People) -> None:
    async def scenario() -> None:
        await people.changes.put_peer("ben", {"addresses": ["inbox:"]}, by="")
        await people.changes.join("guards", ["ben"], by="")
        declared = people.directory.declared
        await people.changes.use_file(SiteDirectory({}, {}), by="")
        assert people.directory.member_names("guards") == []
        await people.changes.use_file(declared, by="")
        assert people.directory.member_names("guards") == ["ana", "ben"]

    asyncio.run(scenario())


def test_a_collective_of_the_store_has_the_members_that_were_given_last(people: People) -> None:
    async def scenario() -> None:
        for name in ("ben", "lea", "tom"):
            await people.changes.put_peer(name, {"addresses": ["inbox:"]}, by="")
        await people.changes.put_collective(
            "town", {"delivery": "at-least 2"}, ["ben", "lea"], by=""
        )
        await people.changes.put_collective(
            "town", {"delivery": "at-least 2"}, ["lea", "tom"], by=""
        )
        town = Collective(name="town", members=(), delivery="at-least", least=2)
        assert people.directory.policy_of("town") == town
        assert people.directory.member_names("town") == ["lea", "tom"]
        await people.changes.put_collective("town", {"delivery": "to-any"}, by="")
        assert people.directory.member_names("town") == ["lea", "tom"]
        with pytest.raises(UnknownName):
            await people.changes.put_collective("town", {}, ["nobody"], by="")
        await people.changes.remove_collective("town", by="")
        assert people.directory.policy_of("town") is None
        await people.changes.put_collective("town", {}, by="")
        assert people.directory.member_names("town") == []

    asyncio.run(scenario())


def test_a_large_collective_is_read_in_slices(people: People) -> None:
    async def scenario() -> None:
        names = [f"p{number:04}" for number in range(2_500)]
        for name in names:
            people.channels.records.put(
                "people.peers", name, b'{"settings":{"addresses":["inbox:"]}}'
            )
        assert await people.changes.join("guards", names, by="") == 2_500
        found, after = list[str](), ""
        while page := people.directory.member_names("guards", after=after, limit=700):
            assert len(page) <= 700
            found += page
            after = page[-1]
        assert found == ["ana", *names]
        told = [each for each in await people.log() if each["change"] == "joined"]
        assert [len(each["members"]) for each in told] == [1_000, 1_000, 500]

    asyncio.run(scenario())


def test_one_name_is_never_the_beginning_of_another_ones_members(people: People) -> None:
    async def scenario() -> None:
        await people.changes.put_peer("x/y", {"addresses": ["inbox:"]}, by="")
        await people.changes.put_collective("a", {}, ["x/y"], by="")
        await people.changes.put_collective("a/x", {}, by="")
        assert people.directory.member_names("a") == ["x/y"]
        assert people.directory.member_names("a/x") == []
        await people.changes.remove_collective("a/x", by="")
        assert people.directory.member_names("a") == ["x/y"]

    asyncio.run(scenario())


def test_a_wrong_name_is_answered_with_the_nearest_one(people: People) -> None:
    async def scenario() -> None:
        await people.changes.put_peer("benjamin", {"addresses": ["inbox:"]}, by="")
        with pytest.raises(UnknownName) as refused:
            people.directory.check(Identifier("peer", "benjamn"))
        assert "'benjamin'" in refused.value.hint
        with pytest.raises(UnknownName) as refused:
            people.directory.check(Identifier("peer", "guards"))
        assert refused.value.hint == "did you mean collective:guards?"
        people.directory.check(Identifier("collective", "guards"))
        people.directory.check(Identifier("component", "anything"))

    asyncio.run(scenario())


def test_the_log_shows_no_secret_of_an_address(people: People) -> None:
    async def scenario() -> None:
        secret = "webhook:https://user:secret@example.org/hook?key=secret"
        await people.changes.put_peer("ben", {"addresses": [secret]}, by="")
        told = await people.log()
        assert "secret" not in repr(told)
        assert "secret" not in repr(people.directory.show_peer("ben"))
        assert "secret" not in repr(people.directory.peers())
        ben = people.directory.peer("ben")
        assert ben is not None
        assert ben.addresses == (secret,)

    asyncio.run(scenario())


def test_a_change_that_a_crash_left_unreported_is_reported_on_opening(people: People) -> None:
    async def scenario() -> None:
        append = people.channels.channel("log").append

        async def crash(events: Any) -> Any:
            raise OSError("the power went")

        people.channels.channel("log").append = crash
        with pytest.raises(OSError, match="power"):
            await people.changes.put_peer("ben", {"addresses": ["inbox:"]}, by="boss")
        people.channels.channel("log").append = append
        again = People(people.channels)
        assert again.directory.peer("ben") is not None
        await again.changes.open()
        await again.changes.open()
        assert [each["name"] for each in await again.log()] == ["ben"]

    asyncio.run(scenario())


def test_peers_and_collectives_are_listed_in_pages(people: People) -> None:
    async def scenario() -> None:
        for name in ("zoe", "aaron", "ben"):
            await people.changes.put_peer(name, {"addresses": ["inbox:"]}, by="")
        assert [entry.name for entry in people.directory.peers(limit=2)] == ["aaron", "ana"]
        rest = people.directory.peers(after="ana")
        assert [(entry.name, entry.origin) for entry in rest] == [
            ("ben", "store"),
            ("zoe", "store"),
        ]
        await people.changes.put_collective("east", {}, by="boss")
        listed = people.directory.collectives()
        assert [(entry.name, entry.by) for entry in listed] == [("east", "boss"), ("guards", "")]

    asyncio.run(scenario())


def test_a_kept_peer_that_cannot_be_read_has_no_address(people: People) -> None:
    """Their quiet hours may be what cannot be read."""
    people.channels.records.put(
        "people.peers", "ben", b'{"settings":{"addresses":["inbox:"],"quiet":"whenever"}}'
    )
    assert people.directory.peer("ben") == Peer(name="ben", addresses=())


def test_a_privacy_function_must_lie_in_the_site(people: People, tmp_path: Path) -> None:
    people.directory.site = tmp_path
    settings = {"addresses": ["inbox:"], "privacy": [{"ask": "rules:quiet"}]}
    with pytest.raises(SiteError):
        asyncio.run(people.changes.put_peer("ben", settings, by=""))
    (tmp_path / "rules.py").write_text("def quiet(facts):\n    return True\n")
    asyncio.run(people.changes.put_peer("ben", settings, by=""))
    ben = people.directory.peer("ben")
    assert ben is not None
    assert ben.privacy[0].ask == "rules:quiet"


def test_a_change_whose_caller_goes_away_is_done_wholly(people: People) -> None:
    """Who depends on a peer (its sessions, its kept addresses) hears that it is gone."""

    async def scenario() -> None:
        await people.changes.put_peer("ben", {"addresses": "mail:ben@example.org"}, by="boss")
        people.touched.clear()
        removing = asyncio.create_task(people.changes.remove_peer("ben", by="boss"))
        await asyncio.sleep(0)
        removing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await removing
        assert people.directory.peer("ben") is None
        assert people.touched == ["ben"]
        assert [said["change"] for said in await people.log()] == ["added", "removed"]
        await people.changes.put_peer("cy", {"addresses": "mail:cy@example.org"}, by="boss")

    asyncio.run(scenario())


NIGHTS = {"roster": [{"person": "ana", "hours": "20:00-08:00"}], "zone": "Europe/Vienna"}


def test_a_stored_group_has_a_roster_of_its_members(people: People) -> None:
    async def scenario() -> None:
        with pytest.raises(SiteError) as caught:
            await people.changes.put_collective("night", NIGHTS, by="boss")
        assert [one.code for one in caught.value.problems] == ["collective.not_a_member"]
        warnings = await people.changes.put_collective("night", NIGHTS, ["ana"], by="boss")
        assert [one.code for one in warnings] == ["collective.roster_gap"]
        assert people.directory.show_collective("night").settings == NIGHTS
        roster = People(people.channels).directory.roster_of("night")  # as after a restart
        assert (roster.zone, [each.person for each in roster.shifts]) == ("Europe/Vienna", ["ana"])
        with pytest.raises(UnknownName, match="there is no roster"):
            people.directory.roster_of("guards")

    asyncio.run(scenario())


def test_nobody_leaves_a_group_who_has_shifts_in_it(people: People) -> None:
    async def scenario() -> None:
        await people.changes.put_peer("ben", {"addresses": "inbox:"}, by="boss")
        shifts = {"roster": [{"person": "ben"}]}
        await people.changes.put_collective("night", shifts, ["ana", "ben"], by="boss")
        with pytest.raises(Conflict, match="has shifts in 'night'"):
            await people.changes.leave("night", ["ben"], by="boss")
        with pytest.raises(Conflict, match="has shifts in 'night'"):
            await people.changes.remove_peer("ben", by="boss")
        await people.changes.put_collective("night", {}, by="boss")
        assert await people.changes.leave("night", ["ben"], by="boss") == 1

    asyncio.run(scenario())


def test_a_stored_roster_without_a_zone_has_that_of_the_site(people: People) -> None:
    async def scenario() -> None:
        await people.changes.put_collective("all", {"roster": [{"person": "ana"}]}, ["ana"], by="x")
        people.directory.declared = SiteDirectory({}, {}, "Asia/Tokyo")
        assert people.directory.roster_of("all").zone == "Asia/Tokyo"

    asyncio.run(scenario())


def test_a_changed_roster_of_the_site_file_is_a_change_in_the_log(people: People) -> None:
    async def scenario() -> None:
        ana = {"ana": Peer(name="ana", addresses=("inbox:",))}
        roster = Roster(shifts=(Shift(person="ana"),), zone="Europe/Vienna")
        group = Collective(name="guards", members=("ana",), roster=roster)
        await people.changes.use_file(SiteDirectory(ana, {"guards": group}), by="reload")
        (change,) = await people.log()
        assert change["settings"]["roster"] == [{"person": "ana"}]
        shown = people.directory.show_collective("guards").settings
        assert shown == {
            "delivery": "to-any",
            "roster": [{"person": "ana"}],
            "zone": "Europe/Vienna",
        }

    asyncio.run(scenario())
