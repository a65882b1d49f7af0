"""Which attribute a column becomes, in the languages that feeds are written in."""

from __future__ import annotations

from typing import Any

import pytest

from rapport.mediation.concepts import ConceptAttribute
from rapport.mediation.guessing.concept_match import (
    ConceptMatch,
    match_concept,
    meanings_of,
    short_name,
)
from rapport.mediation.guessing.guess import guess
from rapport.mediation.guessing.sample import sample_of
from rapport.policy.language.lexer import is_name

NUMBER = "number"
STATION: Any = {
    "temperature": ConceptAttribute(NUMBER, "degC"),
    "humidity": ConceptAttribute(NUMBER, "%"),
    "wind-speed": ConceptAttribute(NUMBER, "m/s"),
    "pressure": ConceptAttribute(NUMBER, "hPa"),
    "rain": ConceptAttribute(NUMBER, "mm"),
    "radiation": ConceptAttribute(NUMBER, "W/m2"),
    "people-count": ConceptAttribute(NUMBER, "1"),
    "name": ConceptAttribute("text"),
}


def becoming(columns: str, concepts: Any = None, name: str = "feed") -> ConceptMatch:
    cells = ",".join(["d7", *("20" for _ in columns.split(","))])
    found = guess(sample_of(f"sensor,{columns}\n{cells}\n{cells}\n".encode()))
    given = {"station": STATION} if concepts is None else concepts
    return match_concept(found, given, name=name, is_name=is_name)


@pytest.mark.parametrize(
    ("column", "attribute"),
    [
        ("TEMPERATURA DO AR (°C)", "temperature"),
        ("Lufttemperatur (°C)", "temperature"),
        ("température (°C)", "temperature"),
        ("temp_degF", "temperature"),
        ("umidade relativa (%)", "humidity"),
        ("humedad (%)", "humidity"),
        ("Luftfeuchtigkeit (%)", "humidity"),
        ("humidité (%)", "humidity"),
        ("relativeHumidity (%)", "humidity"),
        ("Velocidade do vento (km/h)", "wind-speed"),
        ("velocidad del viento (km/h)", "wind-speed"),
        ("Windgeschwindigkeit (km/h)", "wind-speed"),
        ("vitesse du vent (km/h)", "wind-speed"),
        ("windSpeed (mph)", "wind-speed"),
        ("pressão (hPa)", "pressure"),
        ("presión (mbar)", "pressure"),
        ("Luftdruck (hPa)", "pressure"),
        ("pression (kPa)", "pressure"),
        ("chuva (mm)", "rain"),
        ("lluvia (mm)", "rain"),
        ("Niederschlag (mm)", "rain"),
        ("pluie (mm)", "rain"),
        ("precipitation (in)", "rain"),
        ("radiação global (W/m2)", "radiation"),
        ("radiación (W/m2)", "radiation"),
        ("Globalstrahlung (W/m2)", "radiation"),
        ("rayonnement (kW/m2)", "radiation"),
    ],
)
def test_words_of_five_languages_say_the_same(column: str, attribute: str) -> None:
    (match,) = becoming(column).matches.values()
    assert (match.attribute, match.taken, match.sure) == (attribute, True, True)


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ("temperatura máxima (°C)", "only one of the names says max"),
        ("ponto de orvalho temperatura (°C)", "only one of the names says dew"),
        ("temperature soil (°C)", "only one of the names says soil"),
        ("humidity (g/m3)", "g/m3 is a mass concentration, station.humidity is a ratio"),
        ("rain (mm/h)", "mm/h is a speed, station.rain is a length"),
    ],
)
def test_another_quantity_is_mentioned_and_not_matched(column: str, reason: str) -> None:
    found = becoming(f"temp_degC,{column}")
    match = found.matches[(column,)]
    assert (match.taken, match.fits, match.because) == (False, False, reason)
    assert (found.given, found.open) == (["temperature"], [])


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ("vento (m/s)", "the name does not say speed"),
        ("people-count of hall (1)", "the name says count, people among other things"),
    ],
)
def test_a_name_that_leaves_something_open_is_unsure(column: str, reason: str) -> None:
    match = becoming(f"temp_degC,{column}").matches[(column,)]
    assert (match.taken, match.sure, match.because) == (True, False, reason)


def test_a_column_without_a_unit_is_matched_once_the_unit_is_declared() -> None:
    found = becoming("temp,humidity (%)")
    match = found.matches[("temp",)]
    assert (match.attribute, match.taken, match.fits) == ("temperature", False, True)
    assert (found.given, found.open) == (["humidity"], ["temperature"])


def test_an_attribute_without_a_unit_in_root_takes_no_number_that_has_one() -> None:
    bare = {"station": {**STATION, "temperature": ConceptAttribute(NUMBER)}}
    match = becoming("temp_degC,humidity (%)", bare).matches[("temp_degC",)]
    assert not match.taken
    assert 'add temperature = "degC" to its units' in match.because


def test_the_concept_with_most_attributes_counts_and_the_first_of_equals() -> None:
    room = {"temperature": ConceptAttribute(NUMBER, "degC")}
    assert becoming("temp_degC,hum (%)", {"room": room, "station": STATION}).concept == "station"
    assert becoming("temp_degC", {"room": room, "station": STATION}).concept == "room"


def test_each_attribute_has_one_column_the_best() -> None:
    found = becoming("temp_degF,temperature_degC,umidade (%)")
    assert found.matches[("temperature_degC",)].because == "'temp_degF' becomes it"
    exact = becoming("temp_degF,temperature,umidade (%)")
    assert exact.matches[("temperature",)].fits
    assert exact.matches[("temp_degF",)].because == "'temperature' becomes it"


def test_a_site_without_anything_fitting_gets_a_concept_proposed() -> None:
    person = {"person": {"age": ConceptAttribute(NUMBER, "d")}, "device": {}}
    found = becoming("temp_degC,and (m),hum (%),time (m),key (m)", person, name="plant 7")
    assert (found.concept, found.known) == ("plant-7", False)
    names = [match.attribute for match in found.matches.values()]
    assert names == ["temperature", "and-value", "humidity", "time-value", "key-value"]
    assert becoming("temp_degC,hum (%)", {}).concept == "device"


def test_columns_that_would_have_the_same_name_get_different_ones() -> None:
    found = becoming("temp (°C),temperatura (°C),Temperatur (°C),x (m),X (m)", {})
    names = [match.attribute for match in found.matches.values()]
    assert names == ["temperature", "temperatura", "temperatur", "x", "x-value"]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("VENTO, RAJADA MAXIMA (m/s)", "wind-gust-max"),
        ("windDirection", "wind-direction"),
        ("speed", ""),
        ("frp", ""),
    ],
)
def test_a_quantity_has_a_short_name(name: str, short: str) -> None:
    assert short_name(name) == short
    assert meanings_of(name)
