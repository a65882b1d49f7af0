"""Proposals for the feeds that people really have: that they load once they are settled, and what
the rows become then."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rapport.mediation.guessing.proposal import UNSURE

NewSite = Callable[..., Any]

WEATHER = """
[concepts.person.attributes]
temperature = "text"

[concepts.station.attributes]
temperature = "number"
humidity = "number"
rain = "number"
wind-speed = "number"
pressure = "number"

[concepts.station.units]
temperature = "K"
humidity = "%"
rain = "in"
wind-speed = "km/h"
pressure = "hPa"
"""
INMET_GOLDEN = """\
[interpretations.inmet.types.Row]
"CODIGO (WMO)" = "text"  # sure: 1 value in 60 rows
time = "text"  # sure: 'Data' and 'Hora UTC' are %Y/%m/%d %H%M UTC
"PRECIPITAÇÃO TOTAL, HORÁRIO (mm)" = "mm"  # sure: 0 to 0; the name says (mm)
# UNSURE: "PRESSAO ATMOSFERICA AO NIVEL DA ESTACAO, HORARIA (mB)" = "hPa"  # 1000.4 to 1008.4; \
the name says (mB), which is no known unit but is written like hPa; root has hPa
# UNSURE: "RADIACAO GLOBAL (Kj/m²)" = { type = "...", optional = true }  # 422.7 to 471.7, \
30 of 60 rows without; the name says (Kj/m²), which is no known unit
"TEMPERATURA DO AR - BULBO SECO, HORARIA (°C)" = "degC"  # sure: 20 to 29.9; the name says (°C)
"UMIDADE RELATIVA DO AR, HORARIA (%)" = "%"  # sure: 60 to 89; the name says (%)
"VENTO, VELOCIDADE HORARIA (m/s)" = "m/s"  # sure: 1 to 1.9; the name says (m/s)

[interpretations.inmet.conversions]
when = { from = "text", to = "Time", parse-time = { format = "%Y/%m/%d %H%M UTC", zone = "UTC" } } \
 # sure: 'Data' and 'Hora UTC' are %Y/%m/%d %H%M UTC

[[interpretations.inmet.mappings]]
from = "Row"
to = "station"  # sure: most columns fit this concept of the site
direction = "in"
drop = ["*"]

[interpretations.inmet.mappings.rename]
"CODIGO (WMO)" = "key"  # sure: 1 value in 60 rows
"PRECIPITAÇÃO TOTAL, HORÁRIO (mm)" = "rain"  # sure: the name says rain
"TEMPERATURA DO AR - BULBO SECO, HORARIA (°C)" = "temperature"  # sure: the name says temperature
"UMIDADE RELATIVA DO AR, HORARIA (%)" = "humidity"  # sure: the name says humidity
"VENTO, VELOCIDADE HORARIA (m/s)" = "wind-speed"  # sure: the name says speed, wind
# "PRESSAO ATMOSFERICA AO NIVEL DA ESTACAO, HORARIA (mB)" = "pressure"  # once its unit is declared
# "RADIACAO GLOBAL (Kj/m²)" = "radiation"  # station has no attribute for it; one could be added \
to [concepts.station.attributes]

# For site.toml, without the "# " before each line:
#
# [sources.inmet]
# concept = "station"
# attributes = ["rain", "temperature", "humidity", "wind-speed"]  \
# UNSURE: only when they are settled: pressure
# interpretation = "inmet"
"""


def tables_in(text: str) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads(text)["interpretations"]
    return found


def settled(text: str, **units: str) -> str:
    """What a person does: says units, in Row and in the concept, and takes the columns in."""
    for column, unit in units.items():
        text = re.sub(
            rf'^((?:# )?)# UNSURE: ({column} = .*?)"(?:[^"]*)"(.*)$',
            rf'\1\2"{unit}"\3',
            text,
            flags=re.M,
        )
        text = re.sub(rf"^# ({column} = .*  # once its unit)", r"\1", text, flags=re.M)
    return text


def close_to(*expected: tuple[int, str, float]) -> list[Any]:
    return [(time, key, pytest.approx(value)) for time, key, value in expected]


def test_a_national_station_is_matched_to_the_concept_of_the_site(
    new_site: NewSite, inmet: bytes
) -> None:
    text = new_site(WEATHER).proposal(inmet, "inmet")
    assert text.endswith(INMET_GOLDEN)
    assert tables_in(text)["inmet"]["format"] == {
        "name": "csv",
        "encoding": "latin-1",
        "delimiter": ";",
        "metadata": 8,
        "nulls": ["", "-9999"],
        "decimal": "comma",
        "join": {"time": "{Data} {Hora UTC}"},
    }
    assert "UNSURE: the text is not UTF-8; latin-1 can read it" in text
    assert "UNSURE: taken for no value: -9999" in text


def test_rows_of_a_national_station_are_readings_in_units_of_root(
    new_site: NewSite, inmet: bytes
) -> None:
    site = new_site(WEATHER)
    found = site.readings(site.proposal(inmet, "inmet"), inmet)
    assert {stream: len(readings) for stream, readings in found.items()} == {
        "station.rain": 60,
        "station.temperature": 60,
        "station.humidity": 60,
        "station.wind-speed": 60,
    }
    first, third = 1767225600000, 1767232800000
    assert found["station.temperature"][:3:2] == close_to(
        (first, "A801", 293.15), (third, "A801", 295.35)
    )
    assert found["station.wind-speed"][2] == close_to((third, "A801", 1.2 * 3.6))[0]


def test_without_a_site_the_tables_to_paste_make_one(new_site: NewSite, inmet: bytes) -> None:
    site = new_site()
    found = site.readings(site.proposal(inmet, "inmet"), inmet)
    assert found["inmet.temperature"][1] == (1767229200000, "A801", 21.1)
    assert found["inmet.wind-speed"][1] == (1767229200000, "A801", 1.1)
    assert set(found) == {
        "inmet.rain",
        "inmet.temperature",
        "inmet.humidity",
        "inmet.wind-speed",
    }


def test_hotspots_are_refused_until_zone_key_and_units_are_settled(
    new_site: NewSite, firms: bytes
) -> None:
    site = new_site()
    text = site.proposal(firms, "firms")
    assert 'UNSURE: the zone is not known: add zone = "UTC"' in text
    assert "UNSURE: which column identifies the subject?" in text
    assert "# latitude: a place on earth" in text
    in_force, _ = site.load(text)
    assert "firms" in in_force.refused
    assert any("offset from UTC" in problem for problem in site.problems)
    whole = settled(text, brightness="K", frp="MW")
    whole = whole.replace('"%Y-%m-%d %H%M" }', '"%Y-%m-%d %H%M", zone = "UTC" }')
    whole = whole.replace('\ntime = "text"', '\nsatellite = "text"\ntime = "text"')
    whole = whole.replace("mappings.rename]\n", 'mappings.rename]\nsatellite = "key"\n')
    found = site.readings(whole, firms)
    assert found["firms.brightness"][:2] == [
        (1767225600000, "Terra", 310.0),
        (1767317820000, "Terra", 311.1),
    ]
    assert found["firms.frp"][0] == (1767225600000, "Terra", 5.3)
    assert (len(found), len(found["firms.brightness"])) == (2, 50)


def test_city_stations_without_units_are_proposed_as_comments_only(
    new_site: NewSite, ngsi: bytes
) -> None:
    site = new_site(WEATHER)
    text = site.proposal(ngsi, "city")
    assert '# UNSURE: relativeHumidity = "1"  # ' in text
    assert 'temperature from 20 to 22.9 looks like celsius: unit = "degC"; root has K' in text
    assert '# UNSURE: windSpeed = "..."  # 2 to 2; the unit is not known; root has km/h' in text
    assert set(site.readings(text, ngsi)) == {"reading.empty"}
    whole = settled(text, temperature="degC", relativeHumidity="1", windSpeed="m/s")
    found = site.readings(whole, ngsi)
    assert found["station.temperature"][1] == close_to((1772413200000, "station-1", 293.25))[0]
    assert found["station.humidity"][0] == close_to((1772409600000, "station-0", 15.0))[0]
    assert found["station.wind-speed"][0] == close_to((1772409600000, "station-0", 7.2))[0]
    assert all(len(readings) == 30 for readings in found.values())


def test_a_senml_pack_has_units_and_times(new_site: NewSite, senml: bytes) -> None:
    site = new_site(WEATHER)
    text = site.proposal(senml, "pack")
    assert UNSURE not in text.split("\n", 1)[1]
    assert "# time: the data say it in the way of the format" in text
    assert "# humidity keeps its name: sure: the names are the same" in text
    device = "urn:dev:ow:10e2073a01080063"
    assert site.readings(text, senml) == {
        "station.temperature": close_to(
            (1772442000000, device, 296.65), (1772442060000, device, 296.75)
        ),
        "station.humidity": close_to((1772442000000, device, 40), (1772442060000, device, 41)),
    }


def test_one_column_of_numbers_stays_in_the_fields_form(new_site: NewSite) -> None:
    raw = b"sensor;epoch;temp_degF;room\nd7;1772442845,5;77,0;a\nd7;1772442905,5;32,0;a\n"
    site = new_site(WEATHER)
    text = site.proposal(raw, "attic")
    table = tables_in(text)["attic/temp-degf"]
    assert table["time"] == {"field": "epoch", "format": "epoch_s"}
    assert table["value"] == {"field": "temp_degF", "unit": "degF"}
    assert site.readings(text, raw) == {
        "station.temperature": close_to(
            (1772442845500, "d7", 298.15), (1772442905500, "d7", 273.15)
        )
    }


def test_times_that_are_numbers_are_read_in_the_typed_form_too(new_site: NewSite) -> None:
    raw = b"sensor;epoch;temp_degF;hum (%)\nd7;1772442845,5;77,0;40\nd7;1772442905,5;32,0;\n"
    site = new_site(WEATHER)
    found = site.readings(site.proposal(raw, "attic"), raw)
    assert found == {
        "station.temperature": close_to(
            (1772442845500, "d7", 298.15), (1772442905500, "d7", 273.15)
        ),
        "station.humidity": [(1772442845500, "d7", 40.0)],
    }


def test_numbers_that_json_has_as_text_and_names_that_are_numbers_are_converted(
    new_site: NewSite,
) -> None:
    rows = [
        {"device": 7, "ts": "1772442845", "temp_degC": "21.5", "hum (%)": f"{number}"}
        for number in (40, 41)
    ]
    raw = "\n".join(map(json.dumps, rows)).encode()
    for before, unit in ((WEATHER, 294.65), ("", 21.5)):
        site = new_site(before)
        found = site.readings(site.proposal(raw, "attic"), raw)
        temperature = next(found[stream] for stream in found if stream.endswith("temperature"))
        assert temperature == close_to(*[(1772442845000, "7", unit)] * 2)


def test_columns_with_some_numbers_as_text_are_not_matched(new_site: NewSite) -> None:
    rows = [{"device": "d7", "temp_degC": each, "hum (%)": 40} for each in (21.5, "22.5")]
    raw = "\n".join(map(json.dumps, rows)).encode()
    site = new_site(WEATHER)
    text = site.proposal(raw, "attic")
    assert text.count("only the fields form reads both") == 2
    assert site.readings(text, raw) == {"station.humidity": [(7, "d7", 40.0)] * 2}


def test_columns_inside_objects_stay_in_the_fields_form(new_site: NewSite) -> None:
    rows = [{"id": "a", "env": {"temp_degC": 20 + number, "hum_pct": 40}} for number in range(3)]
    raw = "\n".join(map(json.dumps, rows)).encode()
    site = new_site(WEATHER)
    text = site.proposal(raw, "attic")
    assert set(tables_in(text)) == {"attic/env-temp-degc", "attic/env-hum-pct"}
    found = site.readings(text, raw)
    assert found["station.temperature"][0] == close_to((7, "a", 293.15))[0]
    assert [value for _time, _key, value in found["station.humidity"]] == [40.0] * 3


def test_columns_named_like_other_attributes_break_nothing(new_site: NewSite) -> None:
    """`kind` is a key of a type, `key` an attribute of every concept, and humidity in grams is none
    in percent.
    """
    raw = (
        b"sensor,kind,key,humidity,rh (%),temperature_K,temp_degC,humidity (g/m3)\n"
        b"d7,1,2,3,40,290,21,9\nd7,1,2,3,41,290,22,9\n"
    )
    site = new_site(WEATHER)
    text = site.proposal(raw, "attic")
    assert "g/m3 is a mass concentration, station.humidity is a ratio" in text
    assert "# temp_degC = \"temperature\"  # 'temperature_K' becomes it" in text
    whole = settled(text, kind="m")
    whole = whole.replace('# UNSURE: humidity = "%"', 'humidity = "%"')
    whole = whole.replace('["temperature"]', '["temperature", "humidity"]')
    found = site.readings(whole, raw)
    assert found["station.humidity"] == [(7, "d7", 3.0)] * 2
    assert found["station.temperature"] == [(7, "d7", 290.0)] * 2


def test_every_line_of_a_table_has_a_reason(new_site: NewSite, inmet: bytes) -> None:
    inside = False
    for line in new_site(WEATHER).proposal(inmet, "inmet").splitlines():
        inside = line.endswith(("Row]", "rename]", "conversions]")) or (inside and bool(line))
        if re.match("(format|to) =", line) or (inside and re.match(r'["\w]', line)):
            assert re.search("  # (sure|UNSURE): .", line), line


def test_names_of_columns_cannot_break_the_file(new_site: NewSite) -> None:
    names = ['a" = 1 }\r\n[x] (m)', "\x7f\\ (s)", "''' # (m)"]
    raw = json.dumps({"id": "a"} | dict(zip(names, (2, 3, 4), strict=True))).encode()
    site = new_site()
    text = site.proposal(raw, '"]\n')
    assert list(tables_in(text)["source"]["types"]["Row"]) == ["id", *names]
    found = site.readings(text, raw)
    assert sorted(value for each in found.values() for _, _, value in each) == [2, 3, 4]


_NAMES = (
    *("id", "key", "time", "temperature", "temp_degC", "Temp (°F)", "humidity (%)", "rh", "x_m"),
    *("kind", "and (m)", "type", "1 (m)", "@type (m)", "rain (mm)", "lluvia (in)", "pressure"),
    *("extends", "attributes (s)", "wind_m/s", "wind dir (deg)", "a.b (m)"),
)


def test_a_column_called_id_becomes_an_attribute_of_another_name(new_site: NewSite) -> None:
    site = new_site("")
    site.load(site.proposal(b"sensor,id,key\nd7,20,21\nd7,20,21\n", "feed"))
    assert site.problems == []


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.lists(st.sampled_from(_NAMES), min_size=2, max_size=7, unique=True),
    has_site=st.booleans(),
)
def test_whatever_the_columns_are_called_a_proposal_with_a_key_loads(
    names: list[str], has_site: bool, new_site: NewSite
) -> None:
    cells = ",".join(["d7", *(str(20 + number) for number in range(len(names)))])
    raw = f"sensor,{','.join(names)}\n{cells}\n{cells}\n".encode()
    site = new_site(WEATHER if has_site else "")
    site.load(site.proposal(raw, "feed"))
    assert site.problems == []
