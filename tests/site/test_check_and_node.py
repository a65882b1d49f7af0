"""`rapport check` and the node agree: what is shipped or generated is accepted in silence, what is
accepted starts, what is refused does not. [UX-2, UX-5]
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from rapport.cli.main import run
from rapport.core.errors import SiteError
from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.node.wiring import make_node
from rapport.scenarios.dangerous_goods.goods_play import prepare_site as prepare_dangerous_goods
from rapport.scenarios.secure_building.building_play import prepare_site as prepare_secure_building
from rapport.scenarios.year import Year, write_year
from rapport.site.site import check_site, load_site
from rapport.web.app import serving

MEDIATION_ONLY = """
[concepts.station]
attributes = { temperature = "number" }
units = { temperature = "degC" }

[concepts.room]
attributes = { area = "rectangle" }

[sources.weather]
concept = "station"
attribute = "temperature"
interpretation = "us"

[interpretations.us.types.UsWeather]
station = "text"
temperature = { type = "degF", optional = true }
[[interpretations.us.mappings]]
from = "UsWeather"
to = "station"
direction = "DIRECTION"
rename = { station = "key" }
drop = ["*"]
"""
TYPES_ONLY = """
[sources.orders]
interpretation = "uk"
into = "orders"

[tables.clients]
csv = "clients.csv"
key = "id"

[interpretations.root.types.Order]
weight = "kg"
[interpretations.root.types.Invoice]
amount = "number"

[interpretations.uk.types.UkOrder]
weight = "lb"
[[interpretations.uk.mappings]]
from = "UkOrder"
to = "Order"
direction = "both"
"""
LINKS_ONLY = '[links.rome]\nurl = "http://127.0.0.1:9"\nreceive = ["raw.*"]\n'
BROKER_ONLY = """
[mqtt.hall]
broker = "mqtt://127.0.0.1:9"
out = [{ channel = "alarms", topic = "rapport/{type}" }]
"""
PEOPLE_ONLY = '[peers.ana]\naddresses = ["inbox:"]\n'
CSV = "ts;station;temp (°C){}\n2026-03-02T09:00:00Z;A801;21,5{}\n2026-03-02T10:00:00Z;A802;22,0{}\n"


def write(text: str) -> Callable[[Path], Path]:
    def make(directory: Path) -> Path:
        directory.mkdir()
        (directory / "site.toml").write_text(text, encoding="utf-8")
        (directory / "clients.csv").write_text("id,name\n1,ana\n", encoding="utf-8")
        return directory

    return make


def init(directory: Path) -> Path:
    assert run(["init", str(directory)]) == 0
    return directory


def propose(*parts: str) -> Callable[[Path], Path]:
    """A site made of what `rapport import --guess` proposes, its comments taken in."""

    def make(directory: Path) -> Path:
        directory.mkdir()
        (directory / "rows.csv").write_text(CSV.format(*parts), encoding="utf-8")
        file = directory / "rows.interpretation.toml"
        given = ["import", str(directory / "rows.csv"), "--guess", "--source", "rows"]
        assert run([*given, "--out", str(file)]) == 0
        below = file.read_text(encoding="utf-8").partition("before each line:\n")[2]
        text = '[interpretations]\nfiles = ["*.interpretation.toml"]\n'
        text += re.sub(r"(?m)^# ?", "", below)
        (directory / "site.toml").write_text(text, encoding="utf-8")
        return directory

    return make


def year(directory: Path) -> Path:
    write_year(directory, Year(days=1, readings=1_000))
    return directory


SITES: dict[str, Callable[[Path], Path]] = {
    "init": init,
    "secure building": lambda directory: prepare_secure_building(
        directory, mail_port=9, phone_url="http://127.0.0.1:9/", answer_within="1h"
    ),
    "dangerous goods": lambda directory: prepare_dangerous_goods(directory, mail_port=9),
    "year": year,
    "proposal of a typed form": propose(";humidity (%)", ";40", ";41"),
    "proposal of a fields form": propose("", "", ""),
    "mediation only, received": write(MEDIATION_ONLY.replace("DIRECTION", "in")),
    "mediation only, sent": write(
        MEDIATION_ONLY.replace("DIRECTION", "out")
        .replace('interpretation = "us"\n', 'key = "k"\nvalue = "v"\n', 1)
        .replace('from = "UsWeather"\nto = "station"', 'from = "station"\nto = "UsWeather"')
        .replace('station = "key"', 'key = "station"')
    ),
    "mediation only, both": write(MEDIATION_ONLY.replace("DIRECTION", "both")),
    "types only": write(TYPES_ONLY),
    "links only": write(LINKS_ONLY),
    "a broker only": write(BROKER_ONLY),
    "people only": write(PEOPLE_ONLY),
    "settings only": write('[node]\ndata = "data"\n'),
}
WORTH_A_LOOK = {"dangerous goods": ["policy.not_in_table"]}
"""Scenes that are there for what `check` says of them."""


@pytest.mark.parametrize("name", SITES)
def test_what_is_shipped_or_generated_is_accepted_in_silence(name: str, tmp_path: Path) -> None:
    problems = check_site(SITES[name](tmp_path / "site"))
    assert [one.code for one in problems] == WORTH_A_LOOK.get(name, []), problems


async def start(directory: Path) -> None:
    node = make_node(load_site(directory), NodeSettings(port=0), SystemClock())
    try:
        async with serving(node):
            await node.start()
    finally:
        await node.stop()


@pytest.mark.parametrize("name", [name for name in SITES if name != "init"])
def test_what_is_accepted_starts(name: str, tmp_path: Path) -> None:
    asyncio.run(start(SITES[name](tmp_path / "site")))


BROKEN = {
    "nothing at all": "",
    "a source of no concept": "[sources.s]\nattribute = 'a'\nkey = 'k'\nvalue = 'v'\n",
    "a table of no concept": "[tables.t]\nconcept = 'c'\ncsv = 'clients.csv'\nkey = 'id'\n",
    "a relation of nothing": "[relationships.r]\nbetween = ['a.b', 'c.d']\nfunction = 'same'\n",
    "a link to nowhere": "[links.rome]\nreceive = ['raw.*']\n",
    "a bad setting": "[node]\nport = 'many'\n",
    "no TOML": "[links",
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_refused_does_not_start_and_says_the_same(name: str, tmp_path: Path) -> None:
    directory = write(BROKEN[name])(tmp_path / "site")
    errors = [one for one in check_site(directory) if one.severity == "error"]
    assert errors
    with pytest.raises(SiteError) as caught:
        load_site(directory)
    assert set(caught.value.problems) == set(errors)


REFUSING_ITSELF = {
    "a parent that is not there": '[interpretations.x]\nparent = "nobody"\n',
    "an attribute without a place": """
[interpretations.x.types.T]
k = "text"
odd = "text"
[[interpretations.x.mappings]]
from = "T"
to = "station"
direction = "in"
rename = { k = "key" }
""",
}


@pytest.mark.parametrize("name", REFUSING_ITSELF)
def test_what_refuses_only_itself_is_an_error_of_check_and_a_fault_of_the_node(
    name: str, tmp_path: Path
) -> None:
    text = MEDIATION_ONLY.replace("DIRECTION", "both") + REFUSING_ITSELF[name]
    directory = write(text)(tmp_path / "site")
    errors = [one for one in check_site(directory) if one.severity == "error"]
    assert errors
    assert set(load_site(directory).faults) == set(errors)
    asyncio.run(start(directory))


def test_a_type_that_can_be_received_and_was_forgotten_is_worth_a_hint(tmp_path: Path) -> None:
    more = '[interpretations.us.types.Forgotten]\nstation = "text"\n'
    text = MEDIATION_ONLY.replace("DIRECTION", "both") + more
    (hint,) = check_site(write(text)(tmp_path / "site"))
    assert (hint.severity, hint.code) == ("hint", "mapping.missing")
    assert "(in)" in hint.message
    assert "Forgotten" in hint.message
