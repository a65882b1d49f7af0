"""Loading whole sites; the wrong ones are in tests/golden/site."""

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rapport.core.errors import SiteError, UnknownName
from rapport.pipeline.session import SparkSettings
from rapport.site.pipeline import SPARK_KEYS
from rapport.site.site import check_site, load_site
from support.examples import examples

CHECKS = Path(__file__).parents[1] / "data" / "checks"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A copy of the small policies that may be changed."""
    return Path(shutil.copytree(CHECKS / "small-policies", tmp_path / "site"))


def test_the_recorded_sites_load() -> None:
    small = load_site(CHECKS / "small-policies")
    assert (small.name, small.lateness_ms, small.window_ms) == ("small-policies", 2_000, 5_000)
    assert len(small.policies) == 20
    assert small.tables.instances("room").ids == ["r1", "r2", "r3"]
    assert small.actions["raise alarm"]["urgent"] is True
    assert small.data_directory == CHECKS / "small-policies" / ".rapport"
    large = load_site(CHECKS / "secure-building")
    assert list(large.policies) == ["secure-building"]
    assert len(large.tables.instances("person")) == 200


def test_checking_the_recorded_sites_finds_hints_only() -> None:
    assert check_site(CHECKS / "secure-building") == []
    found = check_site(CHECKS / "small-policies")
    assert {problem.code for problem in found} == {"policy.can_coincide"}
    assert [(p.file, p.line) for p in found] == sorted((p.file, p.line) for p in found)


def test_only_the_chosen_policies_are_looked_at(site: Path) -> None:
    (site / "broken.dpl").write_text("nonsense\n", encoding="utf-8")
    assert list(load_site(site, policies=["within", "or"]).policies) == ["or", "within"]
    with pytest.raises(SiteError):
        load_site(site)


def test_an_unknown_policy_names_the_nearest() -> None:
    with pytest.raises(UnknownName) as caught:
        load_site(CHECKS / "small-policies", policies=["withn"])
    assert caught.value.hint == "did you mean 'within'?"


def test_policies_may_lie_in_folders_and_are_named_by_their_stem(site: Path) -> None:
    (site / "policies").mkdir()
    shutil.move(site / "or.dpl", site / "policies" / "or.dpl")
    (site / "policies" / "bad.dpl").write_text("concepts\n", encoding="utf-8")
    text = (site / "site.toml").read_text(encoding="utf-8")
    changed = text.replace('files = ["*.dpl"]', 'files = ["policies/*.dpl"]')
    (site / "site.toml").write_text(changed, encoding="utf-8")
    assert list(load_site(site, policies=["or"]).policies) == ["or"]
    assert {p.file for p in check_site(site) if p.severity == "error"} == {"policies/bad.dpl"}


def test_two_files_of_one_name_are_refused(site: Path) -> None:
    (site / "more").mkdir()
    shutil.copy(site / "or.dpl", site / "more" / "or.dpl")
    text = (site / "site.toml").read_text(encoding="utf-8")
    changed = text.replace('files = ["*.dpl"]', 'files = ["*.dpl", "more/*.dpl"]')
    (site / "site.toml").write_text(changed, encoding="utf-8")
    assert "policy.duplicate_name" in {problem.code for problem in check_site(site)}


def test_policies_in_other_encodings_are_refused_with_the_line(site: Path) -> None:
    (site / "latin.dpl").write_bytes("concepts\n  person Ä\n".encode("latin-1"))
    found = [problem for problem in check_site(site) if problem.file == "latin.dpl"]
    assert [(problem.code, problem.line) for problem in found] == [("policy.not_utf8", 2)]


def test_a_byte_order_mark_in_a_policy_is_fine(site: Path) -> None:
    raw = (site / "or.dpl").read_bytes()
    (site / "or.dpl").write_bytes(b"\xef\xbb\xbf" + raw)
    assert load_site(site, policies=["or"]).policies["or"].plan.terms


def test_a_directory_that_does_not_exist_is_a_problem_not_a_crash(tmp_path: Path) -> None:
    found = check_site(tmp_path / "nowhere")
    assert [problem.code for problem in found] == ["site.unreadable"]
    with pytest.raises(SiteError):
        load_site(tmp_path / "nowhere")


def test_an_absolute_path_may_lie_outside(site: Path, tmp_path: Path) -> None:
    shutil.move(site / "persons.csv", tmp_path / "persons.csv")
    text = (site / "site.toml").read_text(encoding="utf-8")
    changed = text.replace('csv = "persons.csv"', f'csv = "{tmp_path / "persons.csv"}"')
    (site / "site.toml").write_text(changed, encoding="utf-8")
    assert len(load_site(site).tables.instances("person")) == 6


LINES = (CHECKS / "small-policies" / "site.toml").read_text(encoding="utf-8").splitlines()


@pytest.mark.slow
@settings(max_examples=examples(80), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dropped=st.sets(st.integers(0, len(LINES) - 1), max_size=6),
    swapped=st.lists(
        st.tuples(
            st.integers(0, len(LINES) - 1),
            st.sampled_from(('= "x"', "= 3", "= []", "= {}", "= [3]", "= true", '= ["a.b", ""]')),
        ),
        max_size=4,
    ),
)
def test_any_damage_to_a_site_file_is_reported_not_raised(
    dropped: set[int], swapped: list[tuple[int, str]], tmp_path: Path
) -> None:
    lines = list(LINES)
    for index, value in swapped:
        lines[index] = lines[index].split("=")[0] + value if "=" in lines[index] else lines[index]
    text = "\n".join(line for index, line in enumerate(lines) if index not in dropped)
    for name in ("persons.csv", "rooms.csv", "or.dpl", "within.dpl"):
        shutil.copy(CHECKS / "small-policies" / name, tmp_path / name)
    (tmp_path / "site.toml").write_text(text, encoding="utf-8")
    for problem in check_site(tmp_path):
        assert problem.code
        assert problem.message


CHANNELS_ONLY = '[site]\nname = "log"\n\n[concepts.sample.attributes]\nmass = "number"\n'


def test_a_site_of_channels_only_is_told_nothing(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(CHANNELS_ONLY, encoding="utf-8")
    assert check_site(tmp_path) == []


def test_sources_without_policies_are_told_nothing_and_a_pattern_without_files_is(
    tmp_path: Path,
) -> None:
    source = '\n[sources.scale]\nconcept = "sample"\nattribute = "mass"\nkey = "k"\nvalue = "v"\n'
    (tmp_path / "site.toml").write_text(CHANNELS_ONLY + source, encoding="utf-8")
    assert check_site(tmp_path) == []
    named = CHANNELS_ONLY + '\n[policies]\nfiles = ["rules/*.dpl"]\n'
    (tmp_path / "site.toml").write_text(named, encoding="utf-8")
    assert [problem.code for problem in check_site(tmp_path)] == ["site.no_file"]
    (tmp_path / "site.toml").write_text(CHANNELS_ONLY, encoding="utf-8")
    (tmp_path / "heavy.dpl").write_text("concepts\n  sample A\n", encoding="utf-8")
    assert "site.no_sources" in {problem.code for problem in check_site(tmp_path)}


def test_the_data_directory_is_that_of_the_running_node(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_site(site).data_directory == site / ".rapport"
    monkeypatch.setenv("RAPPORT_DATA", str(tmp_path / "elsewhere"))
    assert load_site(site).data_directory == tmp_path / "elsewhere"


def test_a_misspelt_setting_of_the_node_is_an_error(site: Path) -> None:
    file = site / "site.toml"
    file.write_text(f'{file.read_text()}\n[node]\ntoken_fil = "secret"\nport = 70000\n')
    found = [problem for problem in check_site(site) if problem.severity == "error"]
    assert [problem.code for problem in found] == ["site.unknown_key", "site.out_of_range"]
    assert "token_file" in found[0].hint
    with pytest.raises(SiteError):
        load_site(site)


@pytest.mark.parametrize("table", ["spark", "adapters.inbox", "ensemble"])
def test_every_table_of_the_site_refuses_keys_that_it_does_not_know(site: Path, table: str) -> None:
    with (site / "site.toml").open("a", encoding="utf-8") as file:
        file.write(f"\n[{table}]\nmastr = 1\n")
    said = [problem for problem in check_site(site) if problem.code == "site.unknown_key"]
    assert [(problem.severity, problem.message) for problem in said] == [
        ("error", "the key 'mastr' has no meaning here")
    ]


def test_the_check_knows_every_setting_of_spark() -> None:
    assert set(SPARK_KEYS) == set(SparkSettings.__struct_fields__)


OUTSIDE = '[adapters.mail]\nhost = "mail.example.org"\nsender = "a@example.org"\n'
HERE = '[adapters.mail]\nhost = "127.0.0.1"\nsender = "a@example.org"\n'
PEOPLE = '[peers.zoe]\naddresses = ["inbox:", "mail:zoe@example.org"]\n'
HOOK = '[peers.pager]\naddresses = ["webhook:https://pager.example.org/x"]\n'


@pytest.mark.parametrize(
    ("text", "is_refused"),
    [
        (OUTSIDE + PEOPLE, True),
        (HOOK, True),
        (OUTSIDE + PEOPLE + '[node]\nhost = "0.0.0.0"\n', True),
        (OUTSIDE + PEOPLE + '[node]\npublic_url = "http://0.0.0.0:8484"\n', True),
        (OUTSIDE + PEOPLE + '[node]\npublic_url = "https://alarm.example.org"\n', False),
        (OUTSIDE + PEOPLE + '[node]\nhost = "10.0.0.7"\n', False),
        (OUTSIDE + '[peers.zoe]\naddresses = ["inbox:"]\n', False),
        (HERE + PEOPLE, False),
    ],
)
def test_links_that_nobody_elsewhere_can_open_are_an_error_of_the_check(
    site: Path, monkeypatch: pytest.MonkeyPatch, text: str, is_refused: bool
) -> None:
    monkeypatch.delenv("RAPPORT_PUBLIC_URL", raising=False)
    with (site / "site.toml").open("a", encoding="utf-8") as file:
        file.write("\n" + text)
    found = [each for each in check_site(site) if each.code == "site.links_here_only"]
    assert [each.severity for each in found] == ["error"] * is_refused
    assert all("public_url" in each.hint and each.line for each in found)
    assert load_site(site).name, "a node may be told its address when it starts"
    monkeypatch.setenv("RAPPORT_PUBLIC_URL", "https://alarm.example.org")
    assert not [each for each in check_site(site) if each.code == "site.links_here_only"]


@pytest.mark.parametrize("asked", ["{temperature of A}", "{time:%H:%M}", "{X}"])
def test_a_placeholder_that_nothing_fills_is_refused_with_all_that_a_text_can_name(
    tmp_path: Path, asked: str
) -> None:
    site = Path(shutil.copytree(CHECKS / "secure-building", tmp_path / "site"))
    text = (site / "site.toml").read_text(encoding="utf-8")
    changed = text.replace("Guest {A} alone in {R}", asked)
    assert changed != text
    (site / "site.toml").write_text(changed, encoding="utf-8")
    with pytest.raises(SiteError) as caught:
        load_site(site)
    (problem,) = caught.value.problems
    assert asked in problem.message
    for name in ("{A}", "{R}", "{A.status}", "{policy}", "{time}", "{id}"):
        assert name in problem.hint


INPUTS = """
[site]
name = "home"
zone = "Europe/Belin"
open_sources = {open_sources}
[concepts.room.attributes]
temperature = "number"
[sources.thermometers]
concept = "room"
attribute = "temperature"
key = "room"
value = "celsius"
zone = "UTC"
[mqtt.home]
broker = "mqtt://127.0.0.1:1883"
in = [{{ topic = "a/{{room}}", source = "thermometer" }}, {{ topic = "b/x{{y}}", source = "rest" }}]
"""


def test_zones_open_sources_and_topics_are_checked_with_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(INPUTS.format(open_sources="false"))
    found = {problem.code: problem for problem in check_site(tmp_path)}
    assert found["time.unknown_zone"].hint == "did you mean 'Europe/Berlin'?"
    assert found["mqtt.unknown_source"].severity == "warning"
    assert "whole level" in found["mqtt.bad_topic"].hint
    (tmp_path / "site.toml").write_text(INPUTS.format(open_sources="true"))
    assert "mqtt.unknown_source" not in {problem.code for problem in check_site(tmp_path)}
    (tmp_path / "site.toml").write_text(INPUTS.format(open_sources='"yes"'))
    assert "site.wrong_type" in {problem.code for problem in check_site(tmp_path)}
    text = INPUTS.format(open_sources="true").replace("Belin", "Berlin").replace("x{y}", "{y}")
    (tmp_path / "site.toml").write_text(text)
    assert load_site(tmp_path).open_sources
