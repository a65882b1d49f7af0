"""The order of things, what a curve shows of many readings, and rates found in a log."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from rapport.core.event import make_event
from rapport.kernel.clock import ManualClock
from rapport.kernel.settings import NodeSettings
from rapport.node.rates import MINUTE_MS, Rates
from rapport.node.things import ReadingScan, Things, natural_order, shown_points
from rapport.node.wiring import make_node
from rapport.site.site import load_site
from support.freezer_site import write_freezer_site


@given(st.lists(st.text(max_size=6)), st.integers(0, 99), st.integers(100, 999))
def test_any_ids_can_be_sorted_and_numbers_in_them_count(
    ids: list[str], small: int, large: int
) -> None:
    assert sorted(sorted(ids, key=natural_order)) == sorted(ids)
    assert natural_order(f"r{small}x") < natural_order(f"r{large}x")


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=2_000))
def test_a_curve_of_many_readings_keeps_the_lowest_the_highest_and_the_last(
    numbers: list[float],
) -> None:
    samples = [(at, at, f"e{at}", f"[{one}]".encode(), "f1") for at, one in enumerate(numbers)]
    times, values, readings, low, high = shown_points(samples, "number")
    assert len(times) == len(values) == len(readings) <= 600
    assert (min(low), max(high)) == (min(numbers), max(numbers))
    assert (values[-1], readings[-1]) == (numbers[-1], f"e{len(numbers) - 1}")
    assert times == sorted(set(times))


def test_of_texts_a_curve_shows_the_changes() -> None:
    texts = [b'["open"]' if at in (2, 3) else b'["shut"]' for at in range(6)]
    samples = [(at, at, f"e{at}", text, "d1") for at, text in enumerate(texts)]
    times, values, *_ = shown_points(samples, "text")
    assert list(zip(times, values, strict=True)) == [(0, "shut"), (2, "open"), (4, "shut")]


def test_the_fold_reads_back_until_it_has_seen_the_whole_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock(10 * MINUTE_MS)
        site = load_site(write_freezer_site(tmp_path / "site"))
        node = make_node(site, NodeSettings(), clock)
        events = node.channels.channel("events")
        for minute in range(4):
            clock.set_ms(minute * MINUTE_MS + 10 * MINUTE_MS)
            await events.append(
                [
                    make_event(
                        source="freezers",
                        id=f"e{minute}-{number}",
                        type="freezer.temperature",
                        subject="freezer/f1",
                        time=clock.now_ms() - number,
                        data={"key": f"f{number}", "value": [-number]},
                    )
                    for number in range(minute)
                ]
            )
        things = Things(node.channels, clock)
        await things.refresh()
        assert things.is_complete
        assert things.sources["freezers"].count == 6
        found = await things.find(site.ontology, site.tables, concept="freezer")
        assert [one.id for one in found.things] == ["f0", "f1", "f2", "f3"]
        rate = await Rates(node.channels).rate("events", clock.now_ms(), 5)
        assert rate.minutes == [0, 0, 1, 2, 3]
        rates, other = Rates(node.channels), make_event(source="h", id="r", type="hut.rain", time=0)
        await events.append([other])
        typed = await rates.rate("events", clock.now_ms(), 5, of_type="freezer.temperature")
        assert typed.minutes == [0, 0, 1, 2, 3]
        assert (await rates.rate("events", clock.now_ms(), 5)).minutes == [0, 0, 1, 2, 4]
        scan = ReadingScan("freezer.temperature", "f1", since=0, until=2**60)
        assert await scan.read(events)
        assert [id for _time, _position, id, _value, _key in sorted(scan.found)] == ["e2-1", "e3-1"]
        await node.stop()

    asyncio.run(scenario())
