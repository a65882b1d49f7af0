"""Tables of context: whom they ask for, what becomes of the answers, and of no answer. [PO-2,
CX-1]
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rapport.core.errors import SiteError, SourceUnavailable
from rapport.core.schema import AttributeType
from rapport.kernel.clock import Chance, ManualClock
from rapport.kernel.toml import TomlFile
from rapport.tables.config import tables_from_site
from rapport.tables.context_source import ContextQuery, context_query, rows_of_context
from rapport.tables.declaration import TableDeclaration
from rapport.tables.refresh import TableRefresher
from rapport.tables.tables import Tables

CONCEPTS: dict[str, dict[str, AttributeType]] = {
    "room": {"area": "rectangle", "status": "text", "warmth": "number", "door": "point"}
}
SITE = """
[tables.rooms]
concept = "room"
csv = "rooms.csv"
key = "no"
columns = { area = ["x1", "y1", "x2", "y2"] }
[tables.present]
concept = "room"
context = "room status"
ids_from = "rooms"
columns = { status = "status", warmth = "celsius", door = "at" }
values = ["guard"]
"""


class Broker:
    """Knows what it was told, by entity."""

    def __init__(self, known: dict[str, dict[str, object]]) -> None:
        self.known, self.asked, self.fails = known, list[ContextQuery](), False

    def ask(self, question: ContextQuery) -> list[list[str]]:
        self.asked.append(question)
        if self.fails:
            raise SourceUnavailable("the broker is down", hint="wait")
        return [question.row(one, self.known[one]) for one in question.ids if one in self.known]


def declared(directory: Path) -> list[TableDeclaration]:
    (directory / "site.toml").write_text(SITE)
    (directory / "rooms.csv").write_text("no,x1,y1,x2,y2\nr1,0,0,1,1\nr2,1,1,2,2\nr3,2,2,3,3\n")
    file = TomlFile.load(directory / "site.toml", name="site.toml")
    found, problems = tables_from_site(file, directory, CONCEPTS)
    assert problems == []
    return found


def loaded(directory: Path) -> Tables:
    return Tables.load(directory, declared(directory), CONCEPTS)


def test_a_declaration_has_the_query_of_a_broker(tmp_path: Path) -> None:
    present = declared(tmp_path)[1]
    assert (present.kind, present.key, present.lifetime_ms) == ("context", "id", 5_000)
    question = context_query(present, ["r1", "r1", "", "r2"])
    assert (question.type, question.scope, question.within_ms) == ("room", "status", 2_000)
    assert question.ids == ("r1", "r2")
    assert question.fields == ("id", "status", "celsius", "at", "guard")


def test_without_a_broker_nobody_is_known(tmp_path: Path) -> None:
    tables = loaded(tmp_path)
    assert tables.instances("room").ids == ["r1", "r2", "r3"]
    assert tables.instances("room").columns["status"].tolist() == [None, None, None]
    assert tables.gives("room", "status")


def test_a_broker_is_queried_for_the_keys_of_another_table(tmp_path: Path) -> None:
    tables = loaded(tmp_path)
    broker = Broker(
        {
            "r1": {"status": "open", "celsius": 21.5, "at": [1, 2.5], "guard": True},
            "r3": {"status": "closed"},
            "r9": {"status": "open"},
        }
    )
    tables.use_context(broker)
    read = tables.read_again("present")
    assert read is not None
    tables.switch(tables.prepared([read]), 7)
    assert broker.asked[0].ids == ("r1", "r2", "r3")
    columns = tables.instances("room").columns
    assert columns["status"].tolist() == ["open", None, "closed"]
    assert columns["warmth"].tolist()[0] == 21.5
    assert columns["door"].tolist()[0] == [1.0, 2.5]
    assert tables.lookup("present", "r1", "guard") == "true"
    assert tables.lookup("present", "r2", "guard") is None
    assert tables.read_again("present") is None


def test_an_invalid_number_is_left_out_and_the_rest_of_the_row_stays(tmp_path: Path) -> None:
    tables = loaded(tmp_path)
    hot = {"status": "open", "celsius": "hot"}
    tables.use_context(Broker({"r1": hot, "r2": {"status": "open", "celsius": 20}}))
    read = tables.read_again("present")
    assert read is not None
    tables.switch(tables.prepared([read]), 7)
    columns = tables.instances("room").columns
    assert columns["status"].tolist() == ["open", "open", None]
    assert columns["warmth"].tolist()[1] == 20
    assert columns["warmth"].tolist()[0] != columns["warmth"].tolist()[0]
    assert tables.read_again("present") is None


def test_a_broker_that_does_not_answer_is_a_source_that_fails(tmp_path: Path) -> None:
    tables = loaded(tmp_path)
    broker = Broker({})
    broker.fails = True
    tables.use_context(broker)
    with pytest.raises(SiteError) as caught:
        tables.read_again("present")
    assert caught.value.problems[0].code == "source.unavailable"


def test_known_rows_are_loaded_without_a_request(tmp_path: Path) -> None:
    tables = loaded(tmp_path)
    question = context_query(tables.declarations()["present"], ["r1"])
    rows = rows_of_context(question, "present", [question.row("r1", {"status": "open"})])

    async def scenario() -> None:
        refreshing = TableRefresher(tables, ManualClock(1_000), Chance(1))
        assert await refreshing.set_rows("present", rows)
        assert tables.instances("room").columns["status"].tolist()[0] == "open"
        assert not await refreshing.set_rows("present", rows)
        assert await refreshing.set_rows("present", rows_of_context(question, "present", []))
        assert tables.instances("room").columns["status"].tolist()[0] is None

    asyncio.run(scenario())


def test_rows_of_context_that_a_reload_keeps_are_as_old_as_they_are(tmp_path: Path) -> None:
    tables = loaded(tmp_path)
    tables.use_context(Broker({"r1": {"status": "open"}}))

    async def scenario() -> None:
        clock = ManualClock(1_000)
        refreshing = TableRefresher(tables, clock, Chance(1))
        await refreshing.refresh("present")
        await clock.advance(3_000)
        anew = await asyncio.to_thread(loaded, tmp_path)
        await asyncio.to_thread(anew.keep_context, tables)
        tables.take_over(anew, clock.now_ms())
        ages = {one.table: (one.age_ms, one.changes) for one in refreshing.status()}
        assert ages["present"] == (3_000, 1)
        assert ages["rooms"] == (0, 0)

    asyncio.run(scenario())


def test_looking_at_other_rows_changes_nothing(tmp_path: Path) -> None:
    tables = loaded(tmp_path)
    question = context_query(tables.declarations()["present"], ["r1"])
    rows = rows_of_context(question, "present", [question.row("r1", {"status": "open"})])
    then = tables.with_rows({"present": rows})
    assert then.instances("room").columns["status"].tolist() == ["open", None, None]
    assert tables.instances("room").columns["status"].tolist() == [None, None, None]
    assert then.lookup("rooms", "r2", "x1") == "1"
