"""Proposals for the feeds that people really have, and that they load once they are settled."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rapport.kernel.toml import TomlFile
from rapport.mediation.declare import interpretations_from_site
from rapport.mediation.guessing.guess import guess
from rapport.mediation.guessing.proposal import UNSURE, propose
from rapport.mediation.guessing.sample import sample_of
from rapport.mediation.interpretation import Interpretation

INMET_GOLDEN = """\
[interpretations."inmet/temperatura-do-ar-bulbo-seco-horaria"]
about = "TEMPERATURA DO AR - BULBO SECO, HORARIA (°C)"
format = { name = "csv", encoding = "latin-1", delimiter = ";", metadata = 8, \
nulls = ["", "-9999"], decimal = "comma", join = { time = "{Data} {Hora UTC}" } }  \
# UNSURE: see the top of the file (it is text that is neither JSON nor XML; its columns are \
parted by ';', the heading is line 9, numbers have a decimal comma)
time = { field = "time", format = "%Y/%m/%d %H%M UTC", zone = "UTC" }  \
# sure: 'Data' and 'Hora UTC' are %Y/%m/%d %H%M UTC
identity = { field = "CODIGO (WMO)" }  # sure: 1 value in 60 rows
value = { field = "TEMPERATURA DO AR - BULBO SECO, HORARIA (°C)", unit = "°C" }  \
# sure: 20 to 29.9; the name says (°C)
"""


def proposed(raw: bytes, name: str) -> str:
    return propose(guess(sample_of(raw)), name=name, file=f"{name}.csv")


def tables_in(text: str) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads(text)["interpretations"]
    return found


def settled(text: str) -> str:
    """What a person does: says units, the zone, and whom it is about."""
    text = re.sub(r"^# UNSURE: whom.*$", 'identity = { field = "latitude" }', text, flags=re.M)
    text = re.sub(
        r"^(value = \{ field = (?:(?!unit).)*?) \}(  # UNSURE)",
        r'\1, unit = "1" }\2',
        text,
        flags=re.M,
    )
    return re.sub(r'^(time = .*"%Y-%m-%d %H%M") \}', r'\1, zone = "UTC" }', text, flags=re.M)


def load(text: str, directory: Path) -> tuple[dict[str, Interpretation], list[str]]:
    (directory / "feed.interpretation.toml").write_text(text, encoding="utf-8")
    site = '[interpretations]\nfiles = ["*.interpretation.toml"]\n'
    (directory / "site.toml").write_text(site)
    found, problems = interpretations_from_site(TomlFile.load(directory / "site.toml"), directory)
    return found, [problem.as_text() for problem in problems]


def test_a_national_station_is_recognised_down_to_its_units(inmet: bytes) -> None:
    text = proposed(inmet, "inmet")
    assert INMET_GOLDEN in text
    units = {name: table["value"].get("unit") for name, table in tables_in(text).items()}
    assert units == {
        "inmet/precipitacao-total-horario": "mm",
        "inmet/pressao-atmosferica-ao-nivel-da-estacao": None,
        "inmet/radiacao-global": None,
        "inmet/temperatura-do-ar-bulbo-seco-horaria": "°C",
        "inmet/umidade-relativa-do-ar-horaria": "%",
        "inmet/vento-velocidade-horaria": "m/s",
    }
    assert "UNSURE: the name says (mB), which is no known unit" in text
    assert "UNSURE: the text is not UTF-8; latin-1 can read it" in text
    assert "UNSURE: taken for no value: -9999" in text


def test_hotspots_have_a_time_without_a_zone_and_no_key(firms: bytes) -> None:
    text = proposed(firms, "firms")
    table = tables_in(text)["firms/brightness"]
    assert table["format"] == {"name": "csv", "join": {"time": "{acq_date} {acq_time:04}"}}
    assert table["time"] == {"field": "time", "format": "%Y-%m-%d %H%M"}
    assert "identity" not in table
    assert "unit" not in table["value"]
    assert 'UNSURE: nobody says the zone: add zone = "UTC"' in text
    assert "UNSURE: whom is it about?" in text
    assert "# latitude: a place on earth" in text


def test_city_stations_say_no_units_and_humidity_looks_like_a_fraction(ngsi: bytes) -> None:
    text = proposed(ngsi, "city")
    tables = tables_in(text)
    assert set(tables) == {"city/temperature", "city/relativehumidity", "city/windspeed"}
    humidity = tables["city/relativehumidity"]
    assert humidity["format"] == "ngsi"
    assert humidity["time"] == {"field": "dateObserved", "format": "iso8601"}
    assert humidity["identity"] == {"field": "id"}
    assert humidity["value"] == {"field": "relativeHumidity"}
    assert 'relativeHumidity, always within 0..1, looks like a fraction: unit = "1"' in text
    assert 'temperature from 20 to 22.9 looks like celsius: unit = "degC"' in text


def test_a_pack_says_units_and_times_itself(senml: bytes) -> None:
    text = proposed(senml, "pack")
    tables = tables_in(text)
    assert tables["pack/temp"] == {
        "about": "temp",
        "format": "senml",
        "identity": {"field": "device"},
        "value": {"field": "temp", "unit": "Cel"},
    }
    assert tables["pack/humidity"]["value"]["unit"] == "%RH"
    assert "# time: the data say it in the way of the format" in text
    assert UNSURE not in text.split("\n", 1)[1]


@pytest.mark.parametrize("feed", ["inmet", "firms", "ngsi", "senml"])
def test_a_settled_proposal_loads_without_errors(
    feed: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    text = proposed(request.getfixturevalue(feed), feed)
    found, problems = load(settled(text), tmp_path)
    assert problems == []
    assert set(found) == set(tables_in(text))
    assert all(rule.unit for each in found.values() for rule in each.values)


def test_what_is_unsure_and_needed_is_refused_until_it_is_settled(
    firms: bytes, tmp_path: Path
) -> None:
    found, problems = load(proposed(firms, "firms"), tmp_path)
    assert not found
    assert any("identity" in problem for problem in problems)
    assert any("offset from UTC" in problem for problem in problems)


def test_every_line_of_a_table_says_why(inmet: bytes) -> None:
    for line in proposed(inmet, "inmet").splitlines():
        if re.match("(format|time|identity|value) =", line):
            assert re.search("  # (sure|UNSURE): .", line), line


def test_names_of_columns_cannot_break_the_file() -> None:
    raw = b'id,"a"" = 1 }\r\n[x] (m)","\x7f\\ (s)"\n1,2,3\n1,3,4\n'
    tables = tables_in(proposed(raw, '"]\n'))
    fields = [table["value"]["field"] for table in tables.values()]
    assert fields == ['a" = 1 }\r\n[x] (m)', "\x7f\\ (s)"]
