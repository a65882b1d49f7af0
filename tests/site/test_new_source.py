"""A source added to a site from a sample of its data, and taken back. [CN-6, ME-13]"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.cli.main import run
from rapport.core.errors import Conflict, DuplicateName, InvalidInput, SiteError, UnknownName
from rapport.kernel.toml import TomlFile
from rapport.mediation.guessing.choices import SourceChoices
from rapport.site.file_changes import replace_file
from rapport.site.new_source import (
    NewSource,
    SourceDraft,
    added_sources,
    draft_source,
    load_site_file,
    part_of_site,
    readable,
    site_without,
    with_part,
    without_part,
)
from rapport.site.site import SITE_FILE, check_site, load_site

KITCHEN = """freezer_id;Zeit;Temperatur (°C);Feuchte in Prozent;note
f1;02.03.2026 20:00;-18,5;40;ok
f1;02.03.2026 20:05;-11,0;41;ok
f2;02.03.2026 20:30;-19,5;43;ok
f1;02.03.2026 24:00;-20,5;42;ok
""".encode()
NewSite = Callable[[str], Path]


@pytest.fixture
def new_site(tmp_path: Path) -> NewSite:
    """Makes a site from a template."""

    def make(template: str) -> Path:
        assert run(["init", str(tmp_path / template), "--template", template]) == 0
        return tmp_path / template

    return make


def drafted(site: Path, raw: bytes, *, likely: bool = False, **choices: Any) -> SourceDraft:
    new = NewSource(
        name="kitchen",
        raw=readable(raw),
        origin="kitchen.csv",
        choices=SourceChoices(**choices),
        takes_likely=likely,
    )
    return draft_source(new, load_site_file(site), site)


def kinds(draft: SourceDraft) -> list[tuple[str, str]]:
    return [(one.kind, one.column) for one in draft.questions]


def test_the_columns_of_a_file_fit_the_concept_of_the_site_and_its_readings_are_seen(
    new_site: NewSite,
) -> None:
    draft = drafted(new_site("home"), KITCHEN)
    assert (draft.concept, draft.is_new_concept, draft.questions) == ("freezer", False, [])
    uses = {one.name: (one.use, one.becomes, one.unit) for one in draft.columns}
    assert uses["freezer_id"] == ("identity", "key", "")
    assert uses["Zeit"] == ("time", "time", "")
    assert uses["Temperatur (°C)"] == ("value", "temperature", "°C")
    assert uses["note"] == ("left out", "", "")
    assert draft.errors == []
    last = draft.readings[-1]
    assert (last.stream, last.key, last.value) == ("freezer.temperature", "f1", [-20.5])
    assert last.time == "2026-03-02T23:00:00.000Z", "24:00 in Berlin is the next day"
    assert draft.rejected == []


def test_where_no_concept_fits_a_new_one_is_declared_with_its_units(new_site: NewSite) -> None:
    site = new_site("empty")
    draft = drafted(site, KITCHEN, zone="Europe/Berlin")
    assert (draft.concept, draft.is_new_concept) == ("freezer", True)
    assert draft.errors == []
    before = (site / "site.toml").read_bytes()
    replace_file(site, SITE_FILE, before, with_part(before, draft.text))
    assert [one for one in check_site(site) if one.severity == "error"] == []
    ontology = load_site(site).ontology
    assert ontology.units["freezer"] == {"temperature": "degC", "humidity": "%"}
    assert ontology.sources["kitchen"].attributes == ("temperature", "humidity")


def test_only_what_the_data_do_not_say_is_asked(new_site: NewSite) -> None:
    site = new_site("empty")
    assert kinds(drafted(site, KITCHEN)) == [("zone", "Zeit")]
    raw = b"when,temp,wind\n2026-03-02T20:00:00Z,21.5,3\n2026-03-02T20:05:00Z,22.5,4\n"
    draft = drafted(site, raw)
    assert kinds(draft) == [("identity", ""), ("unit", "temp"), ("unit", "wind")]
    assert draft.text == "", "nothing can be written before that"
    assert [one.likely for one in draft.questions] == ["", "degC", ""]
    said = drafted(site, raw, thing="garden", units={"temp": "degC"})
    assert said.questions == []
    assert [one.key for one in said.readings] == ["garden", "garden"]
    assert "wind" not in said.text, "a column without a unit is left out"


def test_the_likely_answers_are_taken_if_that_is_wanted(new_site: NewSite) -> None:
    raw = b"when,temp\n2026-03-02 20:00,21.5\n2026-03-02 20:05,22.5\n"
    draft = drafted(new_site("empty"), raw, likely=True)
    assert draft.errors == []
    assert [(one.key, one.value) for one in draft.readings] == [
        ("kitchen", [21.5]),
        ("kitchen", [22.5]),
    ]
    assert 'zone = "UTC"' in draft.text
    doubts = {one.name: one.doubts for one in draft.columns}
    assert doubts["when"] == ["nobody said the zone: UTC is assumed"]
    assert doubts["temp"][0].endswith("degC is assumed")
    assert draft.text.count("UNSURE") >= 2, "what is assumed is not sure"


def test_choices_replace_the_guess(new_site: NewSite) -> None:
    site = new_site("empty")
    raw = (
        b"id,door,seen,sent,level (cm)\n"
        b"1,A,2026-03-02T20:00Z,2026-03-02T21:00Z,5\n"
        b"2,A,2026-03-02T20:01Z,2026-03-02T21:01Z,6\n"
    )
    draft = drafted(site, raw, key="door", time="sent", concept="gate", units={"level (cm)": "mm"})
    assert draft.errors == []
    assert [(one.stream, one.key, one.value) for one in draft.readings][:1] == [
        ("gate.level", "A", [5.0])
    ]
    assert draft.readings[0].time == "2026-03-02T21:00:00.000Z"
    known = drafted(site, raw, key="door", time="sent", concept="sensor")
    assert (known.concept, known.is_new_concept) == ("sensor", False)


@pytest.mark.parametrize(
    ("choices", "code"),
    [
        ({"key": "nowhere"}, "source.unknown_column"),
        ({"units": {"nowhere": "m"}}, "source.unknown_column"),
        ({"units": {"Temperatur (°C)": "celcius"}}, "unit.unknown"),
        ({"zone": "Mars/Olympus"}, "time.unknown_zone"),
        ({"time": "note"}, "source.bad_time"),
        ({"concept": "and"}, "source.bad_concept"),
        ({"concept": "door"}, "source.no_values"),
    ],
)
def test_a_choice_that_cannot_be_is_refused_with_the_reason(
    new_site: NewSite, choices: dict[str, Any], code: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        drafted(new_site("home"), KITCHEN, **choices)
    assert refused.value.code == code


def test_a_source_of_that_name_is_not_replaced(new_site: NewSite) -> None:
    site = new_site("home")
    with (site / "site.toml").open("a") as file:
        file.write('[sources.kitchen]\ninto = "orders"\ninterpretation = "x"\n')
    with pytest.raises(DuplicateName):
        drafted(site, KITCHEN)


def test_a_site_with_an_error_elsewhere_is_not_written_either(new_site: NewSite) -> None:
    site = new_site("home")
    with (site / "site.toml").open("a") as file:
        file.write('\n[sources.broken]\nconcept = "nothing"\nattribute = "x"\n')
    draft = drafted(site, KITCHEN)
    assert draft.errors
    assert draft.readings == []


def test_parquet_and_nested_objects_are_read_too(new_site: NewSite) -> None:
    site = new_site("home")
    table = pa.table({"freezer": ["a", "a"], "at": ["2026-03-02T20:00Z"] * 2, "t_degC": [1.5, 2.5]})
    file = io.BytesIO()
    pyarrow.parquet.write_table(table, file)
    draft = drafted(site, file.getvalue(), key="freezer", concept="box")
    assert [one.value for one in draft.readings] == [[1.5], [2.5]]
    rows = [{"dev": {"id": "d"}, "env": {"t_degC": n, "rh (%)": 40 + n}} for n in (1.5, 2.5)]
    nested = drafted(site, b"\n".join(map(msgspec.json.encode, rows)), concept="box")
    assert nested.errors == []
    assert len(nested.sources) == 2
    assert {one.stream for one in nested.readings} == {"box.t", "box.humidity"}


@pytest.mark.parametrize("raw", [b"PAR1garbage", b"", b"\x00\xff\xfe" * 500, b"[[[[", b"<a><b>"])
def test_garbage_is_refused_with_a_reason(new_site: NewSite, raw: bytes) -> None:
    site = new_site("home")
    with pytest.raises(InvalidInput):
        drafted(site, raw, likely=True)


TEXTS = (
    st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=200)
    .map(lambda text: text.replace("# ---", ""))
    .map(str.encode)
)


@given(TEXTS, st.booleans(), st.permutations(["a", "b.c", "b"]))
def test_what_is_added_and_taken_back_in_any_order_leaves_the_file_byte_for_byte(
    text: bytes, windows: bool, order: list[str]
) -> None:
    before = text.replace(b"\n", b"\r\n") if windows else text
    after = before
    for name in ("a", "b", "b.c"):
        after = with_part(after, part_of_site(name, "x\ny.csv", ["[sources.x]", "", "k = 1"]))
    assert sorted(added_sources(after)) == ["a", "b", "b.c"]
    for name in order:
        after = without_part(after, name)
    assert after == before


def test_a_part_that_was_changed_since_is_not_taken_back() -> None:
    after = with_part(b"[site]\n", part_of_site("a", "a.csv", ["[sources.a]", "k = 1"]))
    with pytest.raises(Conflict) as refused:
        without_part(after.replace(b"k = 1", b"k = 2"), "a")
    assert refused.value.code == "source.changed"
    assert "line 3" in refused.value.hint
    with pytest.raises(UnknownName):
        without_part(after, "b")


def test_a_source_that_a_policy_needs_is_not_taken_back(new_site: NewSite) -> None:
    site = new_site("home")
    draft = drafted(site, KITCHEN, likely=True, concept="crate")
    before = (site / "site.toml").read_bytes()
    replace_file(site, SITE_FILE, before, with_part(before, draft.text))
    (site / "cold.dpl").write_text(
        "concepts\n  crate C\nconditions\n  temperature of C below -30 degC\nactions\n  tell me\n"
    )
    assert [one for one in check_site(site) if one.severity == "error"] == []
    with pytest.raises(SiteError):
        site_without(site, "kitchen")
    (site / "cold.dpl").unlink()
    was, now = site_without(site, "kitchen")
    assert "kitchen" in was.section("sources").values
    assert now.text == before.decode()


def test_a_file_that_was_changed_meanwhile_is_not_written(new_site: NewSite) -> None:
    site = new_site("empty")
    before = (site / "site.toml").read_bytes()
    with pytest.raises(Conflict):
        replace_file(site, SITE_FILE, before + b"#", b"")
    assert (site / "site.toml").read_bytes() == before


def test_names_of_columns_and_files_cannot_leave_their_quotes(new_site: NewSite) -> None:
    site = new_site("empty")
    header = '"a""]\n[access]\nx = ""(°C)",key_id,t'
    raw = f"{header}\n1.5,x,2026-03-02T20:00Z\n2.5,x,2026-03-02T20:05Z\n".encode()
    new = NewSource(name='x"]\n[access', raw=raw, origin='<b>"\n[access]\n', takes_likely=True)
    draft = draft_source(new, load_site_file(site), site)
    file = TomlFile.parse(with_part(b"", draft.text), name="site.toml")
    assert "access" not in file.values
    assert set(file.values) == {"concepts", "sources", "interpretations"}
