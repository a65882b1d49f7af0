"""Interpretations from files: every fault with its place, only the faulty one refused."""

from pathlib import Path

import pytest

from rapport.kernel.toml import TomlFile
from rapport.mediation.config import interpretations_from_site

CAMERAS = "[interpretations.cameras]"
NAME_HINT = "use letters, digits, . _ / and -; 'root' is taken"
VALUE_NAME_HINT = "use small letters, digits and underscores, beginning with a letter"
LENGTHS = "units of length: m, nm, um, mm, cm, dm, km, in, ft, yd, ftm, mi, nmi"
COLUMNS = {"badges": ("tag", "person"), "sensors": ("id", "x_m", "y_m", "heading_deg")}


def convert(keys):
    """The cameras with a conversion of these keys."""
    return f"{CAMERAS}\nconvert = [{{ {keys} }}]"


def only(problems):
    (one,) = problems
    return one


def test_both_feeds_of_the_secure_building_load(load, feeds_text):
    found, problems = load(feeds_text, COLUMNS)
    assert problems == []
    assert sorted(found) == ["badge-readers", "cameras"]
    cameras = found["cameras"]
    assert cameras.identity.otherwise == ("unknown:", ("track",))
    assert cameras.origin.heading == "heading_deg"
    assert [value.name for value in cameras.values] == ["bearing", "distance"]
    assert cameras.place.line == 10


@pytest.mark.parametrize(
    ("before", "after", "code", "line", "hint"),
    [
        ('unit = "ft"', 'unit = "fet"', "unit.unknown", 15, "did you mean 'feet'?"),
        ('unit = "ft"', 'units = "ft"', "interpretation.unknown_key", 15, "did you mean 'unit'?"),
        (
            "identity       =",
            "ident =",
            "interpretation.unknown_key",
            13,
            "did you mean 'identity'?",
        ),
        ('"epoch_s"', '"epoch_sec"', "interpretation.bad_value", 12, "did you mean 'epoch_s'?"),
        ('"epoch_s"', '"%H:%M"', "interpretation.bad_value", 12, ""),
        (
            '"epoch_s"',
            '"%d.%m.%Y %H:%M"',
            "time.no_zone",
            12,
            'add zone = "Europe/Berlin", or "UTC"',
        ),
        (
            '"epoch_s"',
            '"iso8601", zone = "Europe/Berln"',
            "time.unknown_zone",
            12,
            "did you mean 'Europe/Berlin'?",
        ),
        ('"epoch_s"', "5", "interpretation.bad_value", 12, 'write format = "iso8601"'),
        ('field = "face"', 'field = ""', "interpretation.bad_value", 13, 'write field = "tag"'),
        ('field = "face"', "field = []", "interpretation.bad_value", 13, 'write field = "tag"'),
        ('field = "face", ', "", "interpretation.missing_key", 13, 'add field = "tag"'),
        (
            'nobody = "unknown"',
            "nobody = 5",
            "interpretation.bad_value",
            13,
            'write nobody = ["unknown"]',
        ),
        (
            'table = "sensors", key = "cam"',
            'table = "sensor", key = "cam"',
            "interpretation.unknown_table",
            16,
            "did you mean 'sensors'?",
        ),
        (
            'heading = "heading_deg"',
            'heading = "heading"',
            "interpretation.unknown_column",
            16,
            "did you mean 'heading_deg'?",
        ),
        (
            'heading = "heading_deg"',
            'heading = "heading_deg", unit = "deg"',
            "unit.mismatch",
            16,
            LENGTHS,
        ),
        (
            'column = "person"',
            'column = "persn"',
            "interpretation.unknown_column",
            5,
            "did you mean 'person'?",
        ),
        (
            'unit = "ft"',
            'unit = "ft", decimal = "dot"',
            "interpretation.bad_value",
            15,
            "known: comma, point",
        ),
        (CAMERAS, '[interpretations."came ras"]', "interpretation.bad_name", 10, NAME_HINT),
        (CAMERAS, "[interpretations.root]", "interpretation.bad_name", 10, NAME_HINT),
        ("value.bearing", 'value."be aring"', "interpretation.bad_name", 14, VALUE_NAME_HINT),
        (
            CAMERAS,
            CAMERAS + '\nformat = "xlm"',
            "format.unknown",
            11,
            "did you mean 'xml'?",
        ),
        (CAMERAS, CAMERAS + "\nconvert = 5", "interpretation.bad_value", 11, None),
        (
            CAMERAS,
            convert('call = "a.b:c", take = ["x"], give = []'),
            "interpretation.bad_value",
            11,
            "",
        ),
        (
            CAMERAS,
            convert('call = "a.b:c()", take = ["x"], give = ["x"]'),
            "interpretation.unknown_conversion",
            11,
            None,
        ),
        (
            CAMERAS,
            convert('call = "a.b:c", take = ["x"], give = ["x"], deadline = "2 years"'),
            "time.bad_duration",
            11,
            None,
        ),
        (
            CAMERAS,
            convert('call = "a.b:c", take = ["x"], give = ["x"], deadline = "1 day"'),
            "interpretation.bad_value",
            11,
            "",
        ),
        (
            CAMERAS,
            convert('call = "a.b:c", take = ["x"], give = ["x"], arguments = [1]'),
            "interpretation.bad_value",
            11,
            "write arguments = { factor = 2.5 }",
        ),
    ],
)
def test_a_fault_has_its_location_and_a_hint(load, feeds_text, before, after, code, line, hint):
    assert before in feeds_text
    found, problems = load(feeds_text.replace(before, after, 1), COLUMNS)
    faults = [(problem.code, problem.line) for problem in problems]
    assert (code, line) in faults
    if hint is not None:
        assert hint in [problem.hint for problem in problems if problem.code == code]
    assert len(found) == 1
    assert all(problem.file == "site.toml" and problem.message for problem in problems)


def test_all_faults_are_found_at_once(load):
    _found, problems = load(
        """
        [interpretations.bad]
        time = { field = "ts", format = "epoch_sec", zone = "Europe/Berln" }
        identity = "x"
        value.x = { fild = "dx", unit = "mmm2" }
        relative_to = { table = "sensor", key = "cam", x = "x_m" }
        convert = [{ call = "nothing", take = ["x"] }]
        """,
        COLUMNS,
    )
    assert sorted({problem.line for problem in problems}) == [3, 4, 5, 6, 7]
    assert len(problems) == 10


@pytest.mark.parametrize("value", ["5", "{}", '"x"', "[]"])
def test_values_of_the_wrong_kind_are_refused(load, value):
    found, problems = load(f'[interpretations.a]\nidentity = {{ field = "i" }}\nvalue = {value}\n')
    assert found == {}
    assert problems


def test_an_attribute_of_one_part_needs_no_name(load):
    found, problems = load(
        '[interpretations.a]\nidentity = { field = "i" }\nvalue = { field = "t", unit = "Cel" }\n'
    )
    assert problems == []
    assert found["a"].values[0].name == "value"


def test_files_named_by_the_site_have_the_same_form(tmp_path, feeds_text):
    (tmp_path / "feeds").mkdir()
    (tmp_path / "feeds" / "a.interpretation.toml").write_text(feeds_text)
    site = TomlFile.parse(b'[interpretations]\nfiles = ["feeds/*.toml"]\n', name="site.toml")
    found, declared = interpretations_from_site(site, tmp_path)
    problems = list(declared.problems)
    assert problems == []
    assert found["cameras"].place.file == "feeds/a.interpretation.toml"


def test_a_name_declared_twice_is_a_fault_and_the_first_holds(tmp_path, feeds_text):
    (tmp_path / "a.toml").write_text(feeds_text)
    text = '[interpretations]\nfiles = ["a.toml"]\n' + feeds_text
    site = TomlFile.parse(text.encode(), name="site.toml")
    found, declared = interpretations_from_site(site, tmp_path)
    problems = list(declared.problems)
    assert [problem.code for problem in problems] == ["interpretation.duplicate"] * 2
    assert found["cameras"].place.file == "site.toml"


@pytest.mark.parametrize("pattern", ["none/*.toml", "../*.toml", "/etc/*.toml", "", "**"])
def test_a_pattern_that_leads_nowhere_or_outside_is_a_fault(tmp_path, pattern):
    inner = tmp_path / "site"
    inner.mkdir()
    (tmp_path / "outside.toml").write_text("")
    site = TomlFile.parse(f"[interpretations]\nfiles = ['{pattern}']\n".encode(), name="site.toml")
    _found, declared = interpretations_from_site(site, inner)
    problems = list(declared.problems)
    assert only(problems).code == "interpretation.no_files"
    assert only(problems).line == 2


def test_a_file_that_is_no_toml_is_one_fault_and_the_rest_loads(tmp_path, feeds_text):
    (tmp_path / "a.toml").write_text("= broken")
    (tmp_path / "b.toml").write_text(feeds_text)
    (tmp_path / "c.toml").write_bytes(b"\xff")
    site = TomlFile.parse(b'[interpretations]\nfiles = ["?.toml"]\n', name="site.toml")
    found, declared = interpretations_from_site(site, tmp_path)
    problems = list(declared.problems)
    assert len(found) == 2
    assert [(problem.file, problem.code) for problem in problems] == [
        ("a.toml", "site.bad_toml"),
        ("c.toml", "site.not_utf8"),
    ]


@pytest.mark.parametrize(
    "text", ["interpretations = 5", "[interpretations]\nfiles = 5", "[interpretations]\nx = 1"]
)
def test_a_wrong_table_is_a_fault_or_nothing(tmp_path, text):
    site = TomlFile.parse(text.encode(), name="site.toml")
    found, declared = interpretations_from_site(site, tmp_path)
    problems = list(declared.problems)
    assert found == {}
    assert len(problems) <= 1


def test_the_version_depends_on_the_meaning_only(load, feeds_text):
    first, _ = load(feeds_text)
    moved, _ = load("\n\n# a comment\n" + feeds_text.replace("instead of a person", "not a person"))
    changed, _ = load(feeds_text.replace('unit = "ft"', 'unit = "m"'))
    assert first["badge-readers"].stamp() == moved["badge-readers"].stamp()
    assert first["cameras"].stamp() != changed["cameras"].stamp()
    assert first["badge-readers"].stamp() == changed["badge-readers"].stamp()
    assert len(first["cameras"].version()) == 12


def test_nested_fields_are_lists_of_names(load):
    found, problems = load(
        '[interpretations.a]\nidentity = { field = ["who", "id"] }\n'
        'value = { field = ["temperature", "value"], unit = "Cel", to = "degC" }\n'
    )
    assert problems == []
    assert found["a"].identity.field == ("who", "id")


def test_the_example_of_the_documentation_loads(load, feeds_text):
    page = Path(__file__).parents[2] / "docs" / "concepts" / "mediation.md"
    example = page.read_text().split("```toml\n")[1].split("```")[0]
    found, problems = load(example, COLUMNS)
    assert problems == []
    assert {one.stamp() for one in found.values()} == {
        one.stamp() for one in load(feeds_text)[0].values()
    }


def test_loading_reads_nothing_outside_the_site(tmp_path, feeds_text):
    link = tmp_path / "site" / "link.toml"
    link.parent.mkdir()
    (tmp_path / "outside.toml").write_text(feeds_text)
    link.symlink_to(tmp_path / "outside.toml")
    site = TomlFile.parse(b'[interpretations]\nfiles = ["*.toml"]\n', name="site.toml")
    found, _declared = interpretations_from_site(site, Path(link.parent))
    assert found == {}
