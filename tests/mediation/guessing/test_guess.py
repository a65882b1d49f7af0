from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport.mediation.guessing.columns import (
    Column,
    NumberMarks,
    columns_of,
    null_texts,
    number_marks,
)
from rapport.mediation.guessing.concept_match import match_concept
from rapport.mediation.guessing.guess import Guess, guess, guess_time, guess_unit
from rapport.mediation.guessing.proposal import propose
from rapport.mediation.guessing.sample import detect_format, encoding_of, sample_of
from rapport.mediation.plausibility import plausible_column
from rapport.units.quantities import unit_named


def guessed(text: str, **options: Any) -> Guess:
    return guess(sample_of(text.encode(), options=options))


def column(name: str, *values: Any) -> Column:
    return columns_of([{name: value} for value in values], NumberMarks(), {})[0]


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (b"<a/>", "xml"),
        (b'{"a": 1}\n{"a": 2}\n', "json"),
        (b'[{"a": 1}]', "json"),
        (b'\xef\xbb\xbf{"type": "T", "t": {"value": 1}}', "ngsi"),
        (b'{"id": "x", "type": "T", "@context": []}', "ngsi"),
        (b'[{"bn": "d:", "n": "t", "v": 1}]', "senml"),
        (b'[{"n": "t", "v": 1}]\n[{"n": "t", "v": 2}]\n', "senml"),
        (b"{not json", "csv"),
        (b"a;b\n1;2\n", "csv"),
    ],
)
def test_the_format_is_detected_by_the_beginning(raw: bytes, name: str) -> None:
    assert detect_format(raw)[0] == name


@pytest.mark.parametrize(
    ("raw", "encoding", "doubtful"),
    [
        ("é".encode(), "utf-8", False),
        ("aé".encode()[:-1], "utf-8", False),
        ("°C".encode("latin-1"), "latin-1", True),
        ("5 €".encode("cp1252"), "cp1252", True),
        ("a".encode("utf-16"), "utf-16", False),
    ],
)
def test_the_encoding_is_utf8_or_a_doubt(raw: bytes, encoding: str, doubtful: bool) -> None:
    name, doubts = encoding_of(raw)
    assert (name, bool(doubts)) == (encoding, doubtful)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_sample_may_end_within_a_character(encoding: str) -> None:
    raw = ("station;temp\n" + "Caí;21\n" * 3 + "Sã").encode(encoding)
    sample = sample_of(raw[:-1])
    assert sample.rows == ({"station": "Caí", "temp": "21"},) * 3


@pytest.mark.parametrize(
    ("texts", "marks"),
    [
        (["1.5", "2"], NumberMarks("point")),
        (["1,5", "2"], NumberMarks("comma")),
        (["1.234,5", "2"], NumberMarks("comma", "point")),
        (["1,234.5"], NumberMarks("point", "comma")),
        (["1.234.567"], NumberMarks("comma", "point")),
        (["1 234,5"], NumberMarks("comma", "space")),
        (["0,125", "1,5"], NumberMarks("comma")),
    ],
)
def test_decimal_marks_and_thousands_are_detected_in_the_numbers(
    texts: list[str], marks: NumberMarks
) -> None:
    assert number_marks([{"a": text} for text in texts]) == marks


@pytest.mark.parametrize("texts", [["1.234"], ["1,234", "2,345"], ["1,5", "2.5"]])
def test_numbers_that_mean_two_things_are_doubtful(texts: list[str]) -> None:
    assert number_marks([{"a": text} for text in texts]).doubt


def test_texts_among_numbers_may_stand_for_nothing() -> None:
    rows = [{"t": text, "n": text} for text in ("21,5", "-9999", "NaN")] + [{"n": "-8000"}]
    assert null_texts(rows) == ("-9999", "NaN")
    assert null_texts([{"n": "-8000"}, {"n": "-9999"}]) == ()
    assert null_texts([{"name": "-"}, {"name": "Ana"}]) == ()


@pytest.mark.parametrize(
    ("values", "format", "zone", "doubts"),
    [
        (["2026-03-02T09:14:05Z"], "iso8601", "", 0),
        (["2026-03-02 09:14:05"], "iso8601", "", 1),
        (["25/03/2026 09:14"], "%d/%m/%Y %H:%M", "", 1),
        (["02/03/2026 09:14", "25/03/2026 10:00"], "%d/%m/%Y %H:%M", "", 1),
        (["02/03/2026 09:14"], "%d/%m/%Y %H:%M", "", 2),
        (["03/25/2026 09:14:01"], "%m/%d/%Y %H:%M:%S", "", 1),
        (["25.03.2026 09:14"], "%d.%m.%Y %H:%M", "", 1),
        (["25/03/2026 09:14+0100"], "%d/%m/%Y %H:%M%z", "", 0),
        ([1772442845.3], "epoch_s", "", 0),
        ([1772442845300], "epoch_ms", "", 0),
        (["2026/03/02"], "%Y/%m/%d", "", 2),
    ],
)
def test_times_are_recognised_with_their_doubts(
    values: list[Any], format: str, zone: str, doubts: int
) -> None:
    found = guess_time([column("time", *values)], joins=True)
    assert found is not None
    assert (found.format, found.zone, len(found.doubts)) == (format, zone, doubts)


def test_a_day_and_a_time_of_day_are_joined_under_a_name_that_is_free() -> None:
    found = guessed("date,time,temp_degC,id\n2026-03-02,09:15,21,a\n2026-03-02,10:15,22,a\n")
    assert found.options["join"] == {"date_time": "{date} {time}"}
    assert found.time is not None
    assert found.time.format == "%Y-%m-%d %H:%M"


def test_utc_in_the_name_is_the_zone() -> None:
    found = guess_time([column("time_utc", "2026-03-02 09:14:05")], joins=True)
    assert found is not None
    assert (found.zone, found.doubts) == ("UTC", ())


def test_numbers_that_only_happen_to_be_large_are_no_times() -> None:
    assert guess_time([column("serial", 1772442845)], joins=True) is None


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("TEMPERATURA DO AR (°C)", "°C"),
        ("speed [km/h]", "km/h"),
        ("dist_ft", "ft"),
        ("x_m", "m"),
        ("windKmh", ""),
        ("temperature_min", ""),
        ("checked_in", ""),
        ("vitamin_d", ""),
        ("humidity", ""),
        ("radiation (Kj/m2)", ""),
    ],
)
def test_a_unit_in_the_name_is_sure(name: str, unit: str) -> None:
    found = guess_unit(column(name, 1, 2))
    assert (found.unit, found.sure) == (unit, bool(unit))
    assert found.because


def test_units_in_the_data_count_unless_they_contradict_each_other() -> None:
    rows = [{"t": 1}, {"t": 2}]
    (one,) = columns_of(rows, NumberMarks(), {"t": {"CEL"}})
    (two,) = columns_of(rows, NumberMarks(), {"t": {"CEL", "FAH"}})
    (odd,) = columns_of(rows, NumberMarks(), {"t": {"smoots"}})
    assert guess_unit(one).unit == "CEL"
    assert (guess_unit(two).unit, guess_unit(odd).unit) == ("", "")


@pytest.mark.parametrize(
    ("name", "low", "high", "unit"),
    [
        ("relativeHumidity", 0.1, 1.0, '"1"'),
        ("relativeHumidity", 0.5, 98.0, '"%"'),
        ("umidade", 40.0, 98.0, '"%"'),
        ("temp", -5.0, 31.0, '"degC"'),
        ("temp", 20.0, 93.2, '"degF"'),
        ("temp", 280.0, 310.0, '"K"'),
        ("temp", -300.0, 310.0, ""),
        ("speed", 0.0, 1.0, ""),
    ],
)
def test_the_range_of_a_column_suggests_more_than_one_value(
    name: str, low: float, high: float, unit: str
) -> None:
    result = plausible_column(name, low, high)
    assert result.endswith(f"unit = {unit}") if unit else not result


def test_the_key_is_a_repeated_identifier() -> None:
    found = guessed("row_id,station,city,t_degC\n1,A801,POA,21\n2,A802,POA,22\n3,A801,POA,23\n")
    assert found.key is not None
    assert found.key.field == ("station",)
    assert found.key.doubts == ()


def test_names_that_only_end_like_a_key_are_none() -> None:
    found = guessed("stationCode,humid\nA801,50\nA801,60\n")
    assert found.key is not None
    assert found.key.field == ("stationCode",)
    assert guessed("humid,t\n50,1\n50,2\n").key is None


def test_a_key_that_never_comes_again_is_doubtful() -> None:
    found = guessed("id,t_degC\n1,21\n2,22\n3,23\n")
    assert found.key is not None
    assert found.key.doubts


def test_a_file_without_a_heading_gets_numbered_columns_and_a_doubt() -> None:
    found = guessed("2026-03-02;d7;21,5\n2026-03-03;d7;22,5\n")
    assert found.options["columns"] == ["column_1", "column_2", "column_3"]
    assert any("names the columns" in doubt for doubt in found.doubts)


def test_declared_options_are_not_guessed() -> None:
    found = guessed("a,b;c\n1,5;2\n", delimiter=";", decimal="comma", columns=["x", "y"])
    assert found.options["columns"] == ["x", "y"]
    assert found.marks.decimal == "comma"


def test_nested_fields_are_found_by_their_path() -> None:
    lines = [{"dev": {"id": "d1"}, "env": {"temp_degC": 20.5 + number}} for number in range(3)]
    found = guess(sample_of("\n".join(map(json.dumps, lines)).encode()))
    assert [value.column.path for value in found.values] == [("env", "temp_degC")]
    assert found.key is not None
    assert found.key.field == ("dev", "id")


def test_a_ragged_row_ends_the_sample_with_a_doubt() -> None:
    found = guessed("a,b\n1,2\n3\n4,5\n")
    assert found.rows == 1
    assert any("line 3" in doubt for doubt in found.doubts)


@pytest.mark.parametrize("raw", [b"", b"\n\n", b"a,b\n", b"[]", b"null"])
def test_an_empty_sample_is_an_error(raw: bytes) -> None:
    with pytest.raises(InvalidInput):
        sample_of(raw)


@given(st.binary(max_size=200) | st.text('a1;,.\n\t"{}[]:° -', max_size=120).map(str.encode))
def test_whatever_the_file_the_answer_is_a_proposal_or_a_reason(raw: bytes) -> None:
    try:
        found = guess(sample_of(raw))
    except InvalidInput as error:
        assert error.code
        return
    tomllib.loads(propose(found, match_concept(found, {}, name="x"), name="x", file="x.csv"))


def test_a_code_is_preferred_to_a_name_as_identity() -> None:
    rows = "\n".join(f"POA,A80{number % 2},{20 + number}" for number in range(4))
    for heading in ("station,station_code,t_degC", "station_name,stationId,t_degC"):
        found = guessed(f"{heading}\n{rows}\n")
        assert found.key is not None
        assert found.key.field == (heading.split(",")[1],)
        assert found.key.others == ()


def test_two_columns_that_could_be_the_identity_are_both_named_with_the_reason() -> None:
    found = guessed("sensor,device,t_degC\na,x,1\na,y,2\nb,x,3\nb,y,4\n")
    assert found.key is not None
    assert found.key.others == (("device",),)
    assert any("'device'" in doubt and "names and values" in doubt for doubt in found.key.doubts)


@pytest.mark.parametrize(
    ("first", "last", "pattern"),
    [
        ("02.03.2026 23:00", "02.03.2026 24:00", "%d.%m.%Y %H:%M"),
        ("2026-03-02T23:00", "2026-03-02T24:00", "iso8601"),
        ("2026/03/02 2300 UTC", "2026/03/02 2400 UTC", "%Y/%m/%d %H%M UTC"),
    ],
)
def test_the_hour_24_ends_a_day_and_is_a_time(first: str, last: str, pattern: str) -> None:
    found = guessed(f"id,when,t_degC\na,{first},1\na,{last},2\n")
    assert found.time is not None
    assert found.time.format == pattern


def test_the_hour_25_is_no_time() -> None:
    assert guess_time([column("when", "02.03.2026 25:00", "02.03.2026 24:30")], joins=False) is None


def test_percentages_within_one_are_doubted_as_fractions_with_the_reason() -> None:
    found = guess_unit(column("humidity (%)", 0.42, 0.44))
    assert (found.unit, found.sure, found.likely) == ("", False, "1")
    assert "within 0..1" in found.because
    assert guess_unit(column("humidity (%)", 0.42, 44.0)).unit == "%"
    assert guess_unit(column("rain chance (%)", 0, 0, 1)).unit == "%"


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("Temperatur in Grad Celsius", "degC"),
        ("Temperatur [Grad Celsius]", "degC"),
        ("temperatura em graus celsius", "degC"),
        ("température (degrés Celsius)", "degC"),
        ("Feuchte in Prozent", "%"),
        ("umidade (por cento)", "%"),
        ("humedad por ciento", "%"),
        ("humidité pour cent", "%"),
        ("Luftdruck Hektopascal", "hPa"),
        ("Windrichtung (Grad)", "deg"),
        ("direção do vento (graus)", "deg"),
        ("Niederschlag Millimeter", "mm"),
        ("viento metros por segundo", "m/s"),
        ("wind km/h", "km/h"),
        ("Wassertemperatur (Grad)", ""),
        ("sensor 1", ""),
        ("prozent", ""),
    ],
)
def test_units_in_words_of_five_languages_are_read_from_the_header(name: str, unit: str) -> None:
    found = guess_unit(column(name, 10.5, 20.5)).unit
    assert (unit_named(found).symbol if found else "") == unit


def test_a_careless_spelling_is_likely_and_says_why() -> None:
    found = guess_unit(column("PRESSAO (mB)", 1000.5, 1010.5))
    assert (found.unit, found.likely, found.sure) == ("", "hPa", False)
    assert found.because == "the name says (mB), which is no known unit but is written like hPa"


def test_no_line_is_sure_of_what_another_line_is_unsure_of() -> None:
    found = guessed("id,when,t_degC,rh (%)\n1,02/03/2026 20:00,1,40\n2,03/03/2026 20:00,2,41\n")
    becoming = match_concept(found, {}, name="x")
    text = propose(found, becoming, name="x", file="x.csv")
    lines = text.splitlines()
    for name in ("id", "when"):
        about = [line for line in lines if line.startswith((f"{name} =", f"{name}=", "when ="))]
        said = " ".join(line for line in about if line.startswith(name))
        assert "UNSURE" in said
        assert "sure:" not in said.replace("UNSURE:", "")
