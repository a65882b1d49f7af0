"""The subscriber: raw channels in, `events` and `quarantine` out, at least once and never twice."""

import asyncio

import pytest

from rapport.channel.backends.local import open_embedded, open_memory
from rapport.core.errors import ChannelUnavailable, TooLarge
from rapport.core.event import check_envelope
from rapport.kernel.clock import ManualClock, SystemClock
from rapport.mediation.interpretations.repository import ActiveInterpretations, Repository
from rapport.mediation.reader import MediationReader


@pytest.fixture(params=["memory", "embedded"])
def open_channels(request, tmp_path):
    """Opens the same channels every time it is called (in memory: new ones)."""
    if request.param == "memory":
        return lambda clock: open_memory(clock)
    return lambda clock: open_embedded(tmp_path / "data", clock)


@pytest.fixture
def make_reader(feeds, bind, tables):
    def make_reader(channels, clock, **more):
        bindings = [
            bind("badges", "badge-readers"),
            bind("cameras", "cameras"),
            bind("plain", key="person"),
        ]
        options = {
            "bindings": bindings,
            "repository": Repository(ActiveInterpretations(feeds)),
            "lookups": tables,
        } | more
        return MediationReader(
            channels, options.pop("bindings"), options.pop("repository"), clock, **options
        )

    return make_reader


async def everything(channels, name):
    return [stored.event for stored in await channels.channel(name).read_after(0, limit=10_000)]


async def until(condition, seconds=10):
    """Waits for a condition on a real clock, with a deadline."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the condition is of a real channel
            await asyncio.sleep(0.005)


def test_both_feeds_become_readings_and_the_rest_is_quarantined(
    open_channels, make_reader, badge, camera, event
):
    async def scenario():
        clock = ManualClock(1_000)
        channels = open_channels(clock)
        reader = make_reader(channels, clock)
        await channels.channel("raw.badges").append(
            [event(badge, id="b1"), event(badge | {"tag": "??"}, id="b2"), event(badge, id="b3")]
        )
        await channels.channel("raw.cameras").append([event(camera, id="c1")])
        assert await reader.lane("badges").step() == 3
        assert await reader.lane("cameras").step() == 1
        events = await everything(channels, "events")
        assert [(one.id, one.subject) for one in events] == [
            ("b1", "person/p5"),
            ("b3", "person/p5"),
            ("c1", "person/p17"),
        ]
        assert [one.headers["rawposition"] for one in events] == ["1", "3", "1"]
        (held,) = await everything(channels, "quarantine")
        check_envelope(held)
        assert held.type == "rapport.mediation.rejected"
        assert held.causes() == ("b2",)
        assert held.headers["rawchannel"] == "raw.badges"
        data = held.payload()
        assert data["reason"] == "identity.unknown"
        assert data["source"] == "badges"
        assert data["raw"]["id"] == "b2"
        assert data["raw"]["data"] == badge | {"tag": "??"}
        counts = reader.counts()["badges"]
        assert (counts.read, counts.accepted, counts.rejected) == (3, 2, {"identity.unknown": 1})
        await channels.close()

    asyncio.run(scenario())


def test_an_unbound_source_is_quarantined_with_the_nearest_name(make_reader, badge, event):
    async def scenario():
        channels = open_memory(ManualClock())
        reader = make_reader(channels, ManualClock())
        await channels.channel("raw.badge").append([event(badge)])
        await reader.lane("badge").step()
        (held,) = await everything(channels, "quarantine")
        assert held.payload()["reason"] == "source.unbound"
        assert held.payload()["hint"] == "did you mean 'badges'?"
        assert await everything(channels, "events") == []

    asyncio.run(scenario())


def test_a_source_with_an_unknown_interpretation_is_quarantined(make_reader, bind, badge, event):
    async def scenario():
        channels = open_memory(ManualClock())
        reader = make_reader(channels, ManualClock(), bindings=[bind("badges", "badge-reader")])
        await channels.channel("raw.badges").append([event(badge)])
        await reader.lane("badges").step()
        (held,) = await everything(channels, "quarantine")
        assert held.payload()["reason"] == "interpretation.unknown"
        assert held.payload()["hint"] == "did you mean 'badge-readers'?"

    asyncio.run(scenario())


def test_an_interpretation_that_does_not_fit_its_source_is_refused_alone(
    make_reader, bind, badge, event
):
    async def scenario():
        channels = open_memory(ManualClock())
        bindings = [
            bind("odd", "badge-readers", type="text", attribute="name"),
            bind("fit", "badge-readers"),
        ]
        reader = make_reader(channels, ManualClock(), bindings=bindings)
        for source in ("odd", "fit"):
            await channels.channel(f"raw.{source}").append([event(badge, id=source)])
            await reader.lane(source).step()
        (held,) = await everything(channels, "quarantine")
        assert held.payload()["reason"] == "mediation.part_missing"
        assert [one.id for one in await everything(channels, "events")] == ["fit"]

    asyncio.run(scenario())


def test_bytes_that_are_no_json_are_kept_in_quarantine_as_they_were(make_reader, event):
    async def scenario():
        channels = open_memory(ManualClock())
        reader = make_reader(channels, ManualClock())
        deep = b"[" * 5_000 + b"]" * 5_000
        await channels.channel("raw.badges").append(
            [
                event(b"\xff{", id="a"),
                event(deep, id="b"),
                event(b'"' + b"x" * 200_000 + b'"', id="c"),
            ]
        )
        await reader.lane("badges").step()
        held = [one.payload()["raw"] for one in await everything(channels, "quarantine")]
        assert held[0]["data_base64"] == "/3s="
        assert "data_base64" in held[1]
        assert held[2]["datatoolarge"] == 200_002
        assert "data" not in held[2]

    asyncio.run(scenario())


def test_a_raw_event_too_large_to_be_copied_is_still_quarantined(make_reader, event):
    async def scenario():
        channels = open_memory(ManualClock(), max_data_bytes=1_000)
        reader = make_reader(channels, ManualClock())
        await channels.channel("raw.badges").append(
            [event({"tag": "x" * 900}, id="big"), event({}, id="small")]
        )
        await reader.lane("badges").step()
        held = await everything(channels, "quarantine")
        assert [one.causes() for one in held] == [("big",), ("small",)]
        assert held[0].payload()["raw"] == {"source": "building", "id": "big"}
        assert held[0].headers["rawposition"] == "1"

    asyncio.run(scenario())


def test_mediating_again_after_a_crash_before_the_commit_adds_nothing(
    open_channels, make_reader, badge, event
):
    async def scenario():
        clock = ManualClock()
        channels = open_channels(clock)
        raw = [event(badge, id=f"e{n}") for n in range(10)] + [event(b"{", id="bad")]
        await channels.channel("raw.badges").append(raw)
        lane = make_reader(channels, clock).lane("badges")
        lane._subscription = await channels.subscribe("raw.badges", "mediation")

        async def crash(position, state=None):
            raise ChannelUnavailable("the disk went away")

        lane._subscription.commit = crash
        with pytest.raises(ChannelUnavailable):
            await lane.step()
        again = make_reader(channels, clock)
        assert await again.lane("badges").step() == 11
        assert len(await everything(channels, "events")) == 10
        assert len(await everything(channels, "quarantine")) == 1
        assert again.counts()["badges"].duplicates == 10
        assert await again.lane("badges").step(timeout_ms=0) == 0
        await channels.close()

    asyncio.run(scenario())


def test_after_a_restart_it_goes_on_where_it_was(tmp_path, make_reader, badge, event):
    async def session(ids):
        clock = ManualClock()
        channels = open_embedded(tmp_path / "data", clock)
        reader = make_reader(channels, clock)
        await channels.channel("raw.badges").append([event(badge, id=one) for one in ids])
        read = await reader.lane("badges").step()
        events = [one.id for one in await everything(channels, "events")]
        await reader.stop()
        await channels.close()
        return read, events

    assert asyncio.run(session(["a", "b"])) == (2, ["a", "b"])
    assert asyncio.run(session(["c"])) == (1, ["a", "b", "c"])


def test_a_started_reader_mediates_new_events_and_finds_new_sources(make_reader, badge, event):
    async def scenario():
        clock = SystemClock()
        channels = open_memory(clock)
        reader = make_reader(channels, clock)
        await reader.start()
        await channels.channel("raw.badges").append([event(badge, id="a")])
        await channels.channel("raw.surprise").append([event(badge, id="b")])
        await until(lambda: channels.channel("events").last_position() == 1)
        reader.watch("told")
        reader.watch("told")
        await channels.channel("raw.told").append([event(badge, id="c")])
        await until(lambda: channels.channel("quarantine").last_position() == 2)
        assert sorted(reader.counts()) == ["badges", "cameras", "plain", "surprise", "told"]
        await reader.stop()

    asyncio.run(scenario())


def test_a_channel_that_is_unavailable_for_a_while_loses_nothing(make_reader, badge, event):
    async def scenario():
        clock = ManualClock()
        channels = open_memory(clock)
        reader = make_reader(channels, clock)
        events = channels.channel("events")
        append, failures = events.append, iter(range(2))

        async def sometimes(batch):
            if next(failures, None) is not None:
                raise ChannelUnavailable("no space left")
            return await append(batch)

        events.append = sometimes
        await channels.channel("raw.badges").append([event(badge, id="a")])
        await reader.start()
        await clock.advance(10_000)
        assert [one.id for one in await everything(channels, "events")] == ["a"]
        await reader.stop()

    asyncio.run(scenario())


def test_a_changed_interpretation_takes_effect_with_the_next_batch(
    make_reader, feeds, load, feeds_text, camera, event
):
    async def scenario():
        clock = ManualClock()
        channels = open_memory(clock)
        repository = Repository(ActiveInterpretations(feeds))
        reader = make_reader(channels, clock, repository=repository)
        changed, _problems = load(feeds_text.replace('unit = "ft"', 'unit = "m"'))
        for number in (1, 2, 3):
            await channels.channel("raw.cameras").append([event(camera, id=f"c{number}")])
            await reader.lane("cameras").step()
            if number == 1:
                repository.swap(ActiveInterpretations(changed))
        before, after, still = await everything(channels, "events")
        assert before.headers["interpretation"] != after.headers["interpretation"]
        assert before.data != after.data
        assert (after.headers["interpretation"], after.data) == (
            still.headers["interpretation"],
            still.data,
        )

    asyncio.run(scenario())


def test_a_change_that_does_not_fit_leaves_the_old_version_in_force(
    make_reader, feeds, load, feeds_text, camera, event
):
    async def scenario():
        clock = ManualClock()
        channels = open_memory(clock)
        repository = Repository(ActiveInterpretations(feeds))
        reader = make_reader(channels, clock, repository=repository)
        broken, _problems = load(feeds_text.replace('unit = "ft"', 'unit = "degC"'))
        for number in (1, 2):
            await channels.channel("raw.cameras").append([event(camera, id=f"c{number}")])
            await reader.lane("cameras").step()
            repository.swap(ActiveInterpretations(broken))
        first, second = await everything(channels, "events")
        assert first.headers["interpretation"] == second.headers["interpretation"]

    asyncio.run(scenario())


def test_new_tables_are_used_from_the_next_batch_on(make_reader, tables, badge, event):
    async def scenario():
        clock = ManualClock()
        channels = open_memory(clock)
        reader = make_reader(channels, clock)
        await channels.channel("raw.badges").append([event(badge, id="a")])
        await reader.lane("badges").step()
        tables.tables["sensors"]["r7"]["x_m"] = "100"
        tables.revision += 1
        await channels.channel("raw.badges").append([event(badge, id="b")])
        await reader.lane("badges").step()
        found = [one.payload()["value"][0] for one in await everything(channels, "events")]
        assert found == [11.7, 101.2]

    asyncio.run(scenario())


def test_a_reading_the_channel_refuses_is_quarantined_and_the_others_go_in(
    make_reader, badge, event
):
    async def scenario():
        clock = ManualClock()
        channels = open_memory(clock, max_data_bytes=2_000)
        reader = make_reader(channels, clock)
        events = channels.channel("events")
        append = events.append

        async def picky(batch):
            if any(one.id == "bad" for one in batch):
                raise TooLarge("too large")
            return await append(batch)

        events.append = picky
        await channels.channel("raw.badges").append(
            [event(badge, id="a"), event(badge, id="bad"), event(badge, id="c")]
        )
        await reader.lane("badges").step()
        assert [one.id for one in await everything(channels, "events")] == ["a", "c"]
        (held,) = await everything(channels, "quarantine")
        assert held.payload()["reason"] == "input.too_large"

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_hanging_conversion_stops_no_other_source(
    make_reader, feeds, load, bind, tmp_path, badge, event
):
    (tmp_path / "hanging_plugin.py").write_text("def wait(x):\n    while True: pass\n")
    text = """
    [interpretations.hanging]
    identity = { field = "id" }
    value.x = { field = "x", unit = "m" }
    value.y = { field = "y", unit = "m" }
    convert = [{ call = "hanging_plugin:wait", take = "x", give = "x", deadline = "300ms" }]
    """

    async def scenario():
        clock = SystemClock()
        channels = open_memory(clock)
        hanging, _problems = load(text)
        reader = make_reader(
            channels,
            clock,
            bindings=[bind("badges", "badge-readers"), bind("hanging", "hanging")],
            repository=Repository(ActiveInterpretations(feeds | hanging)),
            import_paths=[str(tmp_path)],
        )
        await reader.start()
        await channels.channel("raw.hanging").append(
            [event({"id": "p", "x": 1, "y": 2}, id=f"h{n}") for n in range(3)]
        )
        await until(lambda: reader.lane("hanging")._thread is not None)
        await channels.channel("raw.badges").append([event(badge, id=f"b{n}") for n in range(100)])
        await until(lambda: channels.channel("events").last_position() == 100, seconds=2)
        assert channels.channel("quarantine").last_position() == 0
        await until(lambda: channels.channel("quarantine").last_position() == 3)
        assert reader.counts()["hanging"].rejected == {"conversion.timeout": 3}
        await channels.channel("raw.hanging").append([event({"id": "p", "x": 1, "y": 2}, id="h9")])
        await reader.stop()

    asyncio.run(scenario())


def test_a_source_that_somebody_looked_at_first_is_mediated_all_the_same(make_reader, badge, event):
    async def scenario():
        clock = SystemClock()
        channels = open_memory(clock)
        reader = make_reader(channels, clock, bindings=[])
        await reader.start()
        reader.isolated_transformer("badges")  # as who reads the raw channel in his own words does
        await channels.channel("raw.badges").append([event(badge, id="b1")])
        reader.watch("badges")
        await until(lambda: reader.counts()["badges"].read == 1)
        await reader.stop()

    asyncio.run(scenario())


def test_a_source_that_the_site_binds_no_longer_is_held_back(make_reader, badge, event):
    async def scenario():
        clock = ManualClock(1_000)
        channels = open_memory(clock)
        reader = make_reader(channels, clock)
        raw, lane = channels.channel("raw.badges"), reader.lane("badges")
        await raw.append([event(badge, id="b1")])
        await lane.step()
        now = reader._repository
        prepared = reader.prepare(now.in_force, {}, reader.lookups)
        now.swap(now.in_force)
        reader.take_over(prepared, {}, reader.lookups)
        await raw.append([event(badge, id="b2")])
        await lane.step()
        now.swap(now.in_force)
        await raw.append([event(badge, id="b3")])
        await lane.step()
        assert [one.id for one in await everything(channels, "events")] == ["b1"]
        held = await everything(channels, "quarantine")
        assert [one.payload()["reason"] for one in held] == ["source.unbound"] * 2

    asyncio.run(scenario())


def test_rows_that_change_while_a_change_is_prepared_are_used(make_reader, tables, badge, event):
    """What was prepared knows of places as they were before."""

    async def scenario():
        clock = ManualClock(1_000)
        channels = open_memory(clock)
        reader = make_reader(channels, clock)
        raw, lane = channels.channel("raw.badges"), reader.lane("badges")
        await raw.append([event(badge, id="b1")])
        await lane.step()
        now = reader._repository
        prepared = reader.prepare(now.in_force, reader.bindings, tables)
        tables.tables["sensors"]["r7"]["x_m"] = "110.5"
        tables.revision += 1
        now.swap(now.in_force)
        reader.take_over(prepared, reader.bindings, tables)
        await raw.append([event(badge, id="b2")])
        await lane.step()
        found = await everything(channels, "events")
        assert [round(one.payload()["value"][0], 3) for one in found] == [11.7, 111.7]

    asyncio.run(scenario())
