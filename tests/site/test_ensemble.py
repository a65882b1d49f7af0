"""`[ensemble]` of a site: what it says, and every fault with its place. [EN-14, UX-2]"""

from __future__ import annotations

from pathlib import Path

import pytest

from rapport.core.errors import InvalidInput
from rapport.core.knowledge import Knowledge
from rapport.kernel.toml import TomlFile
from rapport.site.ensemble import (
    ComponentFilter,
    ContextPublication,
    EnsembleDeclared,
    ensemble_from_site,
)
from rapport.site.site import check_site, load_site
from rapport.transport.udp import MulticastGroup

SITE = """
[site]
name = "town"
[concepts.car.attributes]
position = "point"
[sources.cars]
concept = "car"
attribute = "position"
key = "component"
value = ["x", "y"]
"""
PLAIN = '[ensemble]\nlisten = "127.0.0.1:7511"\n'


def make_site(directory: Path, text: str) -> Path:
    (directory / "site.toml").write_text(SITE + text)
    (directory / "cars.py").write_text("components = []\n")
    return directory


def declared(directory: Path, text: str) -> EnsembleDeclared:
    site = make_site(directory, text)
    file = TomlFile.load(site / "site.toml", name="site.toml")
    found, problems = ensemble_from_site(file, site, ["cars"], "town")
    assert problems == []
    assert found is not None
    return found


def test_a_site_without_the_table_takes_no_part(tmp_path: Path) -> None:
    assert ensemble_from_site(TomlFile.parse(b"", name="x"), tmp_path, [], "s") == (None, [])


def test_little_needs_to_be_said(tmp_path: Path) -> None:
    found = declared(tmp_path, PLAIN)
    assert (found.node, found.listen, found.has_ip) == ("town", ("127.0.0.1", 7511), True)
    assert (found.settings.gossip.radio, found.settings.gossip.ip) == (False, True)
    assert found.meanings is None


def test_every_setting_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text("")
    found = declared(
        tmp_path,
        """
[ensemble]
node = "hall"
listen = "10.0.0.1:7511"
group = "239.7.4.1:7512"
join = ["10.0.0.2:7511"]
groupers = ["10.0.0.3:7511"]
grouper = true
keys = "keys.toml"
components = ["cars.py"]
record_every = "30s"
gossip = { knowledge_ms = 1000, probability = 0.7 }
host = { replica_ms = 30000 }
membership = { period_ms = 500, ack_ms = 100 }
readings = [{ role = "Car", source = "cars" }]
carried = [{ component = "reader-*", source = "cars" }]
[[ensemble.feeds]]
component = "hall"
field = "seen"
[[ensemble.context]]
component = "car-*"
entity = "car/{id}"
scope = "place"
values = { x = "position.x" }
[[ensemble.context]]
component = "hall"
field = "sign"
entity = "sign/front"
scope = "text"
[ensemble.interpretations]
accept = ["yard"]
share = false
""",
    )
    assert found.group == MulticastGroup("239.7.4.1", 7512)
    assert (found.settings.gossip.radio, found.settings.gossip.ip) == (True, True)
    assert (found.settings.gossip.knowledge_ms, found.settings.host.replica_ms) == (1_000, 30_000)
    assert (found.record_ms, found.settings.swim.period_ms) == (30_000, 500)
    assert found.meanings is not None
    assert (found.meanings.accept, found.meanings.share) == (("yard",), False)
    assert found.ties.fed() == ["hall", "hall"]
    assert found.ties.published[0].values == {"x": ("position", "x")}


@pytest.mark.parametrize(
    ("text", "line", "code"),
    [
        ("[ensemble]\n", 11, "site.missing_key"),
        ('[ensemble]\nlisten = "nowhere"\n', 12, "transport.bad_address"),
        ('[ensemble]\nlisten = "10.0.0.1:7511"\n', 12, "ensemble.no_keys"),
        (PLAIN + 'join = ["10.0.0.1:7511"]\n', 13, "ensemble.no_keys"),
        (PLAIN + 'lisen = "x"\n', 13, "site.unknown_key"),
        (PLAIN + 'components = ["bus.py"]\n', 13, "site.no_file"),
        (PLAIN + 'components = ["../cars.py"]\n', 13, "site.outside"),
        (PLAIN + "gossip = { probability = 2.0 }\n", 13, "ensemble.bad_gossip_settings"),
        (PLAIN + 'gossip = { knowledge_ms = "x" }\n', 13, "ensemble.bad_settings"),
        (PLAIN + "gossip = { radio = true }\n", 13, "site.unknown_key"),
        (PLAIN + "membership = { period_ms = 0 }\n", 13, "overlay.bad_settings"),
        (
            PLAIN + 'readings = [{ role = "Car", source = "buses" }]\n',
            13,
            "ensemble.unknown_source",
        ),
        (PLAIN + 'readings = [{ source = "cars" }]\n', 13, "site.missing_key"),
        (PLAIN + 'feeds = [{ component = "hall" }]\n', 13, "site.missing_key"),
        (
            PLAIN + 'context = [{ role = "Car", entity = "car", scope = "s" }]\n',
            13,
            "site.wrong_type",
        ),
        (
            PLAIN + 'context = [{ component = "c", field = "f", entity = "e", scope = "s" }]\n',
            13,
            "context.bad_entity",
        ),
        (
            PLAIN
            + 'context = [{ component = "c", field = "f", entity = "e/1", scope = "s",'
            + ' valid = "1s" }]\n',
            13,
            "site.unknown_key",
        ),
        (PLAIN + "node = 7\n", 13, "site.wrong_type"),
    ],
    ids=[
        "no place",
        "bad place",
        "no keys",
        "no keys for others",
        "misspelt",
        "no file",
        "file outside",
        "impossible gossip",
        "gossip of a wrong type",
        "what follows",
        "impossible membership",
        "unknown source",
        "nobody chosen",
        "no field",
        "no entity",
        "bad entity",
        "neither told nor read",
        "no name",
    ],
)
def test_faults_are_told_with_their_place(tmp_path: Path, text: str, line: int, code: str) -> None:
    found = check_site(make_site(tmp_path, text))
    codes = {(one.line, one.code) for one in found if one.severity == "error"}
    assert (line, code) in codes, found


def test_check_knows_the_table_and_says_nothing_of_one_without_faults(tmp_path: Path) -> None:
    assert check_site(make_site(tmp_path, "")) == check_site(make_site(tmp_path, PLAIN))


def test_a_misspelt_table_is_told_with_the_nearest_one(tmp_path: Path) -> None:
    found = check_site(make_site(tmp_path, PLAIN.replace("[ensemble]", "[ensembles]")))
    (problem,) = [one for one in found if "ensembles" in one.message]
    assert "'ensemble'" in problem.hint


def test_every_fault_of_every_table_is_told_at_once_each_at_its_key(tmp_path: Path) -> None:
    text = (
        '[ensemble]\nlisten = "nowhere"\ngroupr = true\n'
        '[ensemble.gossip]\nknowlege_ms = 3\nprobability = "often"\n'
        "[ensemble.membership]\nperiod_ms = nan\n[ensemble.host]\nmost_bytes = 0\n"
    )
    found = check_site(make_site(tmp_path, text))
    told = [(one.line, one.code) for one in found if one.severity == "error"]
    assert told == [
        (12, "transport.bad_address"),
        (13, "site.unknown_key"),
        (15, "site.unknown_key"),
        (16, "ensemble.bad_settings"),
        (17, "overlay.bad_settings"),
        (19, "ensemble.bad_settings"),
    ]
    hints = {one.line: one.hint for one in found}
    assert (hints[13], hints[15]) == ("did you mean 'grouper'?", "did you mean 'knowledge_ms'?")


def test_a_file_that_is_no_python_is_told_with_its_line_and_not_run(tmp_path: Path) -> None:
    make_site(tmp_path, PLAIN + 'components = ["cars.py"]\n')
    (tmp_path / "cars.py").write_text("import os\nos._exit(3)\ndef (:\n")
    (problem,) = [one for one in check_site(tmp_path) if one.severity == "error"]
    assert (problem.file, problem.line, problem.code) == ("cars.py", 3, "ensemble.bad_program")


def test_context_needs_a_broker(tmp_path: Path) -> None:
    told = 'context = [{ role = "Car", entity = "car/{id}", scope = "s", values = ["x"] }]\n'
    codes = [one.code for one in check_site(make_site(tmp_path, PLAIN + told))]
    assert "context.no_broker_here" in codes


def test_advice_about_gossip_is_a_warning_and_the_site_loads(tmp_path: Path) -> None:
    text = "gossip = { pull_ms = 5000, local_ms = 1000 }\n"
    site = load_site(make_site(tmp_path, PLAIN + text))
    told = {one.code: one for one in site.problems}
    assert told["ensemble.outdated_before_published"].line == 13
    assert "ensemble.no_headers" in told


def test_keys_that_are_not_there_yet_are_a_warning(tmp_path: Path) -> None:
    site = load_site(make_site(tmp_path, PLAIN + 'keys = "ensemble-keys.toml"\n'))
    assert [one.code for one in site.problems if "keys" in one.message] == ["site.no_file"]


@pytest.mark.parametrize(
    ("chosen", "fits"),
    [
        (ComponentFilter(role="Car"), True),
        (ComponentFilter(role="Bus"), False),
        (ComponentFilter(component="c-*"), True),
        (ComponentFilter(component="d-*"), False),
        (ComponentFilter(role="Car", component="d-*"), False),
    ],
    ids=["role", "another role", "id", "another id", "role of another id"],
)
def test_components_are_chosen_by_role_and_id(chosen: ComponentFilter, fits: bool) -> None:
    assert chosen.fits(Knowledge("c-1", "n", ("Car",), 1, 1)) is fits


def test_an_entity_is_named_by_what_the_component_knows() -> None:
    tie = ContextPublication(
        of=ComponentFilter(),
        entity="seat/{node}:{id}:{place.row}",
        scope="s",
        values={},
        valid_ms=1,
    )
    values = {"place": {"row": 4, "name": [1]}}
    assert str(tie.entity_of(Knowledge("c", "n", (), 1, 1, values))) == "seat/n:c:4"
    with pytest.raises(InvalidInput) as refused:
        tie.entity_of(Knowledge("c", "n", (), 1, 1, {"place": {"row": [1]}}))
    assert refused.value.code == "ensemble.no_such_value"
