"""Rows that change while a node runs reach mediation and policies, by lifetime and by reload."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rapport.core.detection import DETECTED
from rapport.core.errors import SiteError
from rapport.core.event import Event, make_event
from rapport.core.times import format_time
from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.node.node import Node
from rapport.node.wiring import make_node
from rapport.site.site import load_site
from support.running import play
from support.servers.rows import RowsServer, rows_server

__all__ = ["rows_server"]

pytestmark = pytest.mark.slow


@pytest.fixture
def site(building_site: Path) -> Path:
    """The secure building; its guest with tag E200-01 is an employee as yet."""
    change(building_site, "site.toml", 'lateness = "5s"', 'lateness = "200ms"')
    change(building_site, "site.toml", 'window = "5s"', 'window = "300ms"')
    change(building_site, "persons.csv", "Grace Hopper,guest", "Grace Hopper,employee")
    return building_site


def change(site: Path, name: str, old: str, new: str) -> None:
    text = (site / name).read_text()
    assert old in text
    (site / name).write_text(text.replace(old, new))


def badge(id: str, tag: str) -> Event:
    now = SystemClock().now_ms()
    seen = {"reader": "r1", "tag": tag, "dx": 0, "dy": 0, "t": format_time(now)}
    return make_event(source="readers", id=id, type="readers.raw", time=now, data=seen)


async def until_found(node: Node, wanted: str) -> list[str]:
    """Who was detected, once somebody is detected whose reading has the wanted id."""
    while True:
        kept = await node.channels.channel("detections").read_after(0, limit=1_000)
        found = [one.event.payload() for one in kept if one.event.type == DETECTED]
        if any(wanted in str(one) for one in found):
            return [one["bindings"]["A"] for one in found]
        await SystemClock().sleep(20)


async def until_changed(node: Node, table: str) -> None:
    while not any(one.table == table and one.changes for one in node.fresh_tables.status()):
        await SystemClock().sleep(20)
    # Policies get them at the next turn of the engine.
    while node.fresh_tables.waits():
        await SystemClock().sleep(20)


def test_rows_whose_lifetime_is_over_reach_policies_and_look_ups(site: Path) -> None:
    for table in ("persons", "badges"):
        change(
            site, "site.toml", f'csv = "{table}.csv"', f'csv = "{table}.csv"\nlifetime = "100ms"'
        )

    async def scenario(node: Node) -> None:
        await node.append("raw.readers", [badge("employee", "E200-01")])
        change(site, "persons.csv", "Grace Hopper,employee", "Grace Hopper,guest")
        change(site, "badges.csv", "E200-02,p02", "NEW-TAG,p01")
        await until_changed(node, "persons")
        await until_changed(node, "badges")
        await node.append("raw.readers", [badge("by-new-tag", "NEW-TAG")])
        assert "p01" in await until_found(node, "by-new-tag")

    play(site, scenario)


def test_a_node_starts_with_the_rows_of_before_when_a_server_is_down(
    site: Path, rows_server: RowsServer
) -> None:
    rows_server.body = b'[{"id": "p01", "status": "guest", "badge": "E200-01"}]'
    change(
        site, "site.toml", 'csv = "persons.csv"', f'url = "{rows_server.url}"\nlifetime = "10min"'
    )

    async def let_it_keep(node: Node) -> None:
        while not list((site / ".rapport/tables").glob("*.rows")):
            await SystemClock().sleep(20)

    async def look(node: Node) -> None:
        assert node.site.tables.lookup("persons", "p01", "status") == "guest"
        (persons,) = [one for one in node.fresh_tables.status() if one.table == "persons"]
        assert persons.failures >= 1

    play(site, let_it_keep)
    rows_server.status = 503
    # There is more to say, such as that the server names no employee.
    found = [one for one in load_site(site).problems if one.code.startswith("source.")]
    assert [(one.code, one.severity) for one in found] == [("source.bad_status", "warning")]
    play(site, look)


def test_rows_are_kept_in_the_data_directory_that_a_flag_names(
    site: Path, tmp_path: Path, rows_server: RowsServer
) -> None:
    rows_server.body = b'[{"id": "p01", "status": "guest", "badge": "E200-01"}]'
    change(
        site, "site.toml", 'csv = "persons.csv"', f'url = "{rows_server.url}"\nlifetime = "10min"'
    )
    data = tmp_path / "elsewhere"

    async def life(scenario: Callable[[Node], Awaitable[None]]) -> None:
        loaded = load_site(site, data_directory=data)
        node = make_node(loaded, NodeSettings(port=0, data=str(data)), SystemClock())
        try:
            await node.start()
            async with asyncio.timeout(20):
                await scenario(node)
        finally:
            await node.stop()

    async def let_it_keep(node: Node) -> None:
        while not list((data / "tables").glob("*.rows")):
            await SystemClock().sleep(20)

    async def look(node: Node) -> None:
        assert node.site.tables.lookup("persons", "p01", "status") == "guest"
        await node.reload()
        await node.policies.reload()
        await node.meanings.reload()
        assert node.site.tables.lookup("persons", "p01", "status") == "guest"

    asyncio.run(life(let_it_keep))
    rows_server.status = 503
    asyncio.run(life(look))
    assert not (site / ".rapport").exists()


def test_a_reload_brings_new_rows_and_tables_to_policies(site: Path) -> None:
    async def scenario(node: Node) -> None:
        change(site, "persons.csv", "Grace Hopper,employee", "Grace Hopper,guest")
        change(site, "badges.csv", "E200-02,p02", "NEW-TAG,p01")
        change(
            site,
            "site.toml",
            "[tables.rooms]",
            '[tables.more]\ncsv = "rooms.csv"\nkey = "id"\n[tables.rooms]',
        )
        await node.meanings.reload()
        while node.fresh_tables.waits():
            await SystemClock().sleep(20)
        assert "more" in [one.table for one in node.fresh_tables.status()]
        await node.append("raw.readers", [badge("by-new-tag", "NEW-TAG")])
        assert "p01" in await until_found(node, "by-new-tag")
        change(site, "site.toml", 'columns = { status = "status" }', "columns = {}")
        with pytest.raises(SiteError) as caught:
            await node.meanings.reload()
        assert [problem.code for problem in caught.value.problems] == ["reload.attribute_gone"]
        assert node.site.tables.gives("person", "status")

    play(site, scenario)


SHOP = """[site]
name = "shop"
[concepts.shop.attributes]
name = "text"
[tables.rates]
csv = "rates.csv"
key = ["currency", "valid_from"]
lifetime = "100ms"
[interpretations.root.types]
Euro = { kind = "number" }
Offer = { price = "Euro" }
[interpretations.desk.types]
Dollar = { kind = "number" }
Said = { price = "Dollar" }
[[interpretations.desk.mappings]]
from = "Offer"
to = "Said"
direction = "out"
[interpretations.desk.conversions.dollars]
from = "Euro"
to = "Dollar"
currency = { from_currency = "EUR", to = "USD", rates = { kind = "table", table = "rates", base = "EUR" } }
[[interpretations.desk.rules]]
match = "Euro"
convert = "dollars"
"""  # noqa: E501


def test_new_rates_reach_who_reads_in_another_currency(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(SHOP)
    rates = tmp_path / "rates.csv"
    rates.write_text("currency,rate,valid_from\nUSD,1.25,2026-01-01T00:00:00Z\n")

    async def scenario(node: Node) -> None:
        async def told(id: str) -> float:
            now = SystemClock().now_ms()
            offer = make_event(source="shop", id=id, type="Offer", time=now, data={"price": 100})
            await node.append("events", [offer])
            stored = await node.channels.channel("events").read_after(0)
            said = await node.outgoing.view("events", stored[-1:], "desk")
            found: float = said[0].event.payload()["price"]
            return found

        assert await told("before") == 125.0
        rates.write_text("currency,rate,valid_from\nUSD,1.5,2026-01-01T00:00:00Z\n")
        await until_changed(node, "rates")
        assert await told("after") == 150.0

    play(tmp_path, scenario)
