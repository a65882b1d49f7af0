"""A node puts the rows that its policies see on record, and whoever looks back later finds them:
after a restart, in an explanation, in a replay. [PO-2, PO-11]
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from rapport.channel.channel import Channels
from rapport.core.detection import Detection
from rapport.core.errors import ChannelUnavailable
from rapport.core.event import Event
from rapport.kernel.clock import ManualClock
from rapport.node.table_updates import READER
from rapport.policy.engine.engine import ALLOWED_SKEW_MS
from rapport.policy.explain.answer import WhyNotAnswer
from rapport.policy.explain.why_not import WhyNotQuestion
from rapport.policy.replay.log_replay import LogReplay
from rapport.policy.table_history import RecordedTableRows
from rapport.site.explain import explainer_of
from rapport.site.site import Site, load_site
from rapport.tables.row_history import ROWS_CHANNEL
from support.varied.changing_tables import NOW, SITE, WHO, Life, living, make_place, people, seen

pytestmark = pytest.mark.slow


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return make_place(tmp_path)


async def replayed(site: Site, channels: Channels, *, then: bool) -> list[Detection]:
    log = LogReplay(
        channels,
        site.ontology,
        site.tables,
        tables=site.tables if then else None,
        lateness_ms=site.lateness_ms,
        skew_ms=ALLOWED_SKEW_MS,
        since=None,
        until=NOW + 10**9,
        is_open=True,
    )
    plans = [one.plan for one in site.policies.values()]
    return (await log.run(plans)).detections


def as_set(found: Sequence[Detection]) -> set[str]:
    return {one.id() for one in found}


def test_the_first_rows_and_every_change_are_on_record_and_nothing_undeclared(place: Path) -> None:
    async def story(life: Life) -> None:
        [first] = await life.versions()
        assert first.tables["people"].rows == [
            ("ann", "guest"),
            ("bob", "employee"),
            ("eve", "guest"),
        ]
        assert first.tables.keys() == {"people", "rooms"}
        await life.send(seen("e1", "ann", NOW))
        people(place, "employee", "employee", "guest")
        life.clock.set_ms(NOW + 500)
        await life.refresh()
        last = (await life.versions())[-1]
        assert last.changed == {"people"}
        assert (last.place.time, last.place.after) == (NOW + 500, 1)
        assert last.place.since == NOW - 1_000  # by now everything before was decided
        await life.refresh()
        assert len(await life.versions()) == 2
        kept = await life.node.channels.channel(ROWS_CHANNEL).read_after(0)
        assert not any(b"salary" in one.event.data or b"1000" in one.event.data for one in kept)

    living(place, story)


def test_a_restart_records_nothing_again_and_takes_rows_changed_meanwhile(place: Path) -> None:
    async def nothing(life: Life) -> None:
        assert len(await life.versions()) == 1

    async def changed(life: Life) -> None:
        assert [one.changed for one in await life.versions()][1:] == [{"people"}]

    living(place, nothing)
    living(place, nothing)
    people(place, "employee", "employee", "guest")
    living(place, changed)


def test_retention_finds_the_nodes_own_reader_at_the_last_base(place: Path) -> None:
    async def story(life: Life) -> None:
        for number in range(70):
            people(place, "guest", "employee", f"guest {number}")
            await life.refresh()
        versions = await life.versions()
        bases = [one for one in versions if one.is_base]
        assert len(versions) == 71
        assert len(bases) == 2
        reader = await life.node.channels.subscribe(ROWS_CHANNEL, READER)
        kept = await life.node.channels.channel(ROWS_CHANNEL).read_after(reader.position)
        assert kept[0].position <= bases[-1].position

    living(place, story)


def test_rows_that_cannot_be_recorded_are_not_used(place: Path) -> None:
    async def story(life: Life) -> None:
        people(place, "employee", "employee", "employee")
        channel = life.node.channels.channel(ROWS_CHANNEL)

        async def full(_events: Sequence[Event]) -> None:
            raise ChannelUnavailable("the disk is full")

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(type(channel), "append", lambda _self, events: full(events))
            with pytest.raises(ChannelUnavailable):
                await life.refresh()
        assert life.node.policy.pull.instances("person").columns["status"][0] == "guest"
        await life.node.fresh_tables.settle()
        assert life.node.policy.pull.instances("person").columns["status"][0] == "employee"
        assert len(await life.versions()) == 2

    living(place, story)


@pytest.mark.parametrize("seed", range(6), ids=str)
def test_a_replay_after_a_kill_finds_what_the_node_found_with_tables_that_changed(
    place: Path, seed: int
) -> None:
    chance, clock = random.Random(seed), ManualClock(NOW)
    number = iter(range(10_000))

    def some(count: int) -> list[Event]:
        """Readings in a mixed order, none late."""
        made = []
        for _ in range(count):
            clock.set_ms(clock.now_ms() + chance.randrange(400))
            time = clock.now_ms() - chance.randrange(900)
            x = chance.choice((5.0, 5.0, 20.0))
            made.append(seen(f"e{next(number)}", chance.choice(WHO), time, x=x))
        return made

    def other_rows() -> None:
        people(place, *(chance.choice(("guest", "employee")) for _ in WHO))

    async def live(life: Life) -> None:
        for _ in range(chance.randrange(1, 4)):
            for _ in range(chance.randrange(1, 5)):
                await life.send(*some(chance.randrange(1, 12)))
            if chance.random() < 0.3:
                await life.pass_by(chance.randrange(1, 8_000))
            other_rows()
            await life.refresh()
        await life.send(*some(5))

    async def again(life: Life) -> None:
        # What it had read before it was killed is read by the rows of then.
        while await life.node.policy.step(timeout_ms=0):
            pass
        await life.node.fresh_tables.settle()
        await live(life)
        for _ in range(40):
            await life.pass_by(1_000)

    async def compare(life: Life) -> None:
        wanted = as_set(await life.told())
        assert wanted
        site = load_site(place)
        assert as_set(await replayed(site, life.node.channels, then=True)) == wanted
        if seed == 0:
            assert as_set(await replayed(site, life.node.channels, then=False)) != wanted

    living(place, live, clock)
    other_rows()
    living(place, again, clock)
    other_rows()
    living(place, compare, clock)


def test_why_not_tells_by_the_rows_of_then_also_after_a_restart(place: Path) -> None:
    clock = ManualClock(NOW)

    async def guest(life: Life) -> None:
        await life.send(seen("e1", "ann", NOW))
        await life.pass_by(5_000)
        people(place, "employee", "employee", "guest")
        await life.refresh()

    async def later(life: Life) -> None:
        await life.pass_by(60_000)
        await life.send(seen("e2", "ann", clock.now_ms()))
        await life.pass_by(5_000)

        async def asked(at: int) -> WhyNotAnswer:
            asking = explainer_of(life.node.site, life.node.channels)
            return await asking.why_not("inside", WhyNotQuestion(at=at, given={"A": "ann"}))

        then = await asked(NOW)
        assert then.fired
        assert [one.text for one in then.fired[0].known] == ["status of ann = 'guest'"]
        assert not (await asked(NOW + 65_000)).fired
        [found] = [one for one in await life.told() if one.policy == "inside"]
        explained = await explainer_of(life.node.site, life.node.channels).why(found)
        assert explained.held is not None
        # Who may not read the record is told by the rows of now.
        deaf = explainer_of(life.node.site, life.node.channels, may_read=lambda _name: False)
        assert not (await deaf.why_not("inside", WhyNotQuestion(at=NOW, given={"A": "ann"}))).fired

    living(place, guest, clock)
    living(place, later, clock)


def test_what_is_not_on_record_is_said(place: Path) -> None:
    clock = ManualClock(NOW)
    (place / "site.toml").write_text(
        SITE.replace('csv = "people.csv"', 'csv = "people.csv"\nrecord_rows = 2')
    )

    async def guest(life: Life) -> None:
        await life.send(seen("e1", "ann", NOW))
        await life.pass_by(5_000)
        people(place, "employee", "employee", "guest")
        await life.refresh()

    async def later(life: Life) -> None:
        asking = explainer_of(life.node.site, life.node.channels)
        answer = await asking.why_not("inside", WhyNotQuestion(at=NOW, given={"A": "ann"}))
        assert not answer.fired
        [note] = [one for one in answer.notes if "rows of today" in one.text]
        assert "only their number is on record, 3" in note.text

    living(place, guest, clock)
    living(place, later, clock)


def test_rows_of_then_that_no_longer_fit_the_site_give_way_to_those_of_now(place: Path) -> None:
    async def nothing(_life: Life) -> None:
        return

    async def look(life: Life) -> None:
        assert life.node.policy.pull.instances("person").columns["status"][0] == "guest"
        first, last = await life.versions()
        assert last.tables["people"].header == ("id", "state")
        record = RecordedTableRows(life.node.site.tables)
        record.at(first)
        assert record.unusable.keys() == {"people"}

    living(place, nothing)
    (place / "site.toml").write_text(SITE.replace('status = "status"', 'status = "state"'))
    text = (place / "people.csv").read_text()
    (place / "people.csv").write_text(text.replace("status", "state"))
    living(place, look)


def test_what_was_read_before_a_kill_is_judged_by_the_rows_of_then(place: Path) -> None:
    """Not by those that the table has got while the node was down."""
    clock = ManualClock(NOW + 1_500)  # all three have happened when they arrive

    async def killed(life: Life) -> None:
        events = [
            seen("e1", "ann", NOW),
            seen("e2", "bob", NOW + 1),
            seen("e3", "bob", NOW + 1_500),
        ]
        await life.send(*events)  # nothing is committed after this
        assert {one.bindings["A"] for one in await life.told()} == {"ann"}

    async def again(life: Life) -> None:
        assert life.node.policy.is_catching_up
        assert len(await life.versions()) == 1
        await life.send()
        assert {one.bindings["A"] for one in await life.told()} == {"ann"}
        await life.node.fresh_tables.settle()
        [_first, second] = await life.versions()
        assert (second.place.after, second.place.since) == (3, NOW + 500)
        clock.set_ms(NOW + 4_000)
        await life.send(seen("e4", "bob", NOW + 4_000))  # and with it the one that waited
        assert {one.causes for one in await life.told() if one.bindings["A"] == "bob"} == {
            ((NOW + 1_500, "e3"),)
        }

    living(place, killed, clock)
    people(place, "guest", "guest", "guest")
    living(place, again, clock)


def test_a_reload_puts_rows_on_record_at_its_place(place: Path) -> None:
    async def story(life: Life) -> None:
        await life.send(seen("e1", "ann", NOW))
        people(place, "employee", "employee", "guest")
        await life.node.policies.reload()
        [_first, second] = await life.versions()
        assert (second.place.after, second.place.since) == (1, NOW - 1_000)
        assert life.node.policy.pull.instances("person").columns["status"][0] == "employee"
        # A table that goes is no longer on record.
        text = (place / "site.toml").read_text()
        begin, end = text.index("[tables.rooms]"), text.index("[sources.badges]")
        (place / "site.toml").write_text(text[:begin] + text[end:])
        for name in ("inside", "alone", "lasting"):
            (place / f"{name}.dpl").unlink()
        await life.node.policies.reload()
        last = (await life.versions())[-1]
        assert (last.is_base, last.changed, last.tables.keys()) == (True, {"rooms"}, {"people"})

    living(place, story)
