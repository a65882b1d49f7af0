"""What is wrong with interpretations and the sources that speak them, told at its place; a faulty
one refuses only itself. [ME-5, ME-7, UX-2]
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rapport.cli.main import run
from rapport.node.interpretations import declared_interpretations, interpretations_of
from rapport.site.site import check_site, load_site

GOOD = """
[concepts.station.attributes]
temperature = "number"
humidity = "number"
[concepts.station.units]
temperature = "degC"
humidity = "%"
[interpretations.us]
units = { "station.temperature" = "degF" }
"""
SOURCE = """
[sources.weather]
concept = "station"
attributes = ["temperature", "humidity"]
interpretation = "us"
"""


@pytest.fixture
def site(tmp_path: Path):
    def site(text: str) -> Path:
        (tmp_path / "site.toml").write_text(text)
        return tmp_path

    return site


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


@pytest.mark.parametrize(
    ("more", "code", "at"),
    [
        (
            '[interpretations.x]\nunits = { "station.temprature" = "degF" }\n',
            "mapping.no_place",
            'units = { "station.temprature"',
        ),
        (
            '[interpretations.x.types.T]\na = "text"\n'
            '[[interpretations.x.mappings]]\nfrom = "T"\nto = "statioon"\ndirection = "in"\n',
            "mapping.unknown_type",
            "[[interpretations.x.mappings]]",
        ),
        (
            '[interpretations.x.types.T]\na = "text"\n'
            '[[interpretations.x.rules]]\nmatch = "T.b"\nconvert = "c"\n',
            "pattern.invalid",
            "[[interpretations.x.rules]]",
        ),
        (
            '[interpretations.x.types.T]\na = "text"\n[interpretations.x.conversions.c]\n'
            'from = "text"\nto = "degC"\nunits = ["degF", "degC"]\n',
            "conversion.signature",
            "[interpretations.x.conversions.c]",
        ),
        (
            '[interpretations.x]\nparent = "nobody"\n',
            "interpretation.unknown_parent",
            "[interpretations.x]",
        ),
        (
            '[interpretations.x]\nparent = "y"\n[interpretations.y]\nparent = "x"\n',
            "interpretation.parent_cycle",
            "[interpretations.x]",
        ),
        (
            '[interpretations.x.types.A]\nextends = ["B"]\n'
            '[interpretations.x.types.B]\nextends = ["A"]\n',
            "type.cycle",
            "[interpretations.x.types.A]",
        ),
        (
            '[interpretations.x.types.A]\na = "text"\n[interpretations.x.types.B]\na = "number"\n'
            '[interpretations.x.types.C]\nextends = ["A", "B"]\n',
            "type.ambiguous_attribute",
            "[interpretations.x.types.A]",
        ),
        (
            '[sources.s]\ninto = "orders"\ninterpretation = "uss"\n',
            "interpretation.unknown",
            'interpretation = "uss"',
        ),
        (
            '[sources.s]\ninto = "log"\ninterpretation = "us"\n',
            "source.bad_channel",
            'into = "log"',
        ),
        (
            '[interpretations.x.types.T]\nk = "text"\n[[interpretations.x.mappings]]\nfrom = "T"\n'
            'to = "station"\ndirection = "in"\nrename = { k = "key" }\n'
            '[sources.s]\nconcept = "station"\nattribute = "humidity"\ninterpretation = "x"\n',
            "mapping.missing",
            'interpretation = "x"',
        ),
        (
            '[interpretations.x.types.T]\nk = "text"\n'
            '[sources.s]\nconcept = "station"\nattribute = "humidity"\ninterpretation = "x"\n'
            'type = "U"\n',
            "type.unknown",
            'type = "U"',
        ),
    ],
)
def test_each_fault_is_told_at_its_line(site, more, code, at):
    text = GOOD + SOURCE + more
    found = [each for each in check_site(site(text)) if each.severity == "error"]
    placed = {(each.code, each.line) for each in found}
    assert (code, line_of(text, at)) in placed, placed
    assert all(each.file == "site.toml" for each in found)


def test_a_faulty_interpretation_refuses_only_itself(site):
    text = (
        GOOD + SOURCE + '[interpretations.x]\nparent = "nobody"\n[interpretations.z]\ntypes = 5\n'
    )
    loaded = load_site(site(text))
    assert {each.code for each in loaded.faults} == {
        "interpretation.unknown_parent",
        "interpretation.bad_value",
    }
    bindings, in_force = interpretations_of(loaded)
    assert "us" in in_force.typed
    assert set(in_force.refused) == {"x", "z"}
    assert set(bindings) == {"weather"}


def test_what_files_say_is_told_from_what_follows_from_the_ontology(site):
    before = declared_interpretations(load_site(site(GOOD + SOURCE))).files
    more = GOOD.replace('humidity = "number"', 'humidity = "number"\npressure = "number"')
    after = declared_interpretations(load_site(site(more + SOURCE))).files
    assert before.said == after.said
    assert before.typed["us"] != after.typed["us"]
    kelvin = declared_interpretations(load_site(site(GOOD.replace("degF", "K") + SOURCE))).files
    assert kelvin.said != before.said


def test_doubles_are_warnings_and_a_forgotten_mapping_is_a_hint(site):
    text = GOOD + (
        '[interpretations.x.types.Forgotten]\nk = "text"\n'
        '[interpretations.x.types.T]\nk = "text"\n[[interpretations.x.mappings]]\nfrom = "T"\n'
        'to = "station"\ndirection = "in"\nrename = { k = "key" }\n'
        '[[interpretations.x.mappings]]\nfrom = "T"\nto = "station"\ndirection = "in"\n'
        'rename = { k = "key" }\n'
    )
    found = {each.code: each.severity for each in check_site(site(text)) if "x:" in each.message}
    assert found == {"mapping.duplicate": "warning", "mapping.missing": "hint"}


def test_the_code_of_a_typed_source_is_shown(site, capfdbinary):
    assert run(["mediate", "show", "weather", "--site", str(site(GOOD + SOURCE))]) == 0
    assert b"def transform" in capfdbinary.readouterr().out


def test_conversions_name_tables_columns_and_concepts_that_there_are(site):
    (site("") / "rates.csv").write_text("currency,rate\nEUR,1.1\n")
    text = (
        GOOD
        + """
[tables.rates]
csv = "rates.csv"
key = "currency"
[interpretations.x.conversions]
a = { from = "text", to = "text", table = { table = "rats", columns = ["rate"] } }
b = { from = "text", to = "text", table = { table = "rates", columns = ["rat"] } }
c = { from = "text", to = "text", context = { concept = "station", attribute = "temprature" } }
"""
    )
    found = {problem.code: problem for problem in check_site(site(text))}
    assert "rates" in found["lookup.unknown_table"].hint
    assert "rate" in found["lookup.unknown_column"].hint
    assert "temperature" in found["lookup.unknown_attribute"].hint
    assert found["lookup.unknown_table"].line > 0
