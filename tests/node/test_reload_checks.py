"""What of a site file read again needs a restart, and what is warned of. [UX-2, PO-9]"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rapport.kernel.toml import TomlFile
from rapport.mediation.source_bindings import SourceBinding
from rapport.node.interpretations import gone_interpretations
from rapport.node.reload import PEOPLE, TAKEN_OVER, needs_restart
from rapport.site.check import TABLES_OF_A_SITE

TABLES = st.dictionaries(
    st.sampled_from(TABLES_OF_A_SITE), st.dictionaries(st.sampled_from("ab"), st.integers(0, 2))
)


def file_of(values: dict[str, Any]) -> TomlFile:
    lines: list[str] = []
    for table, keys in values.items():
        lines += [f"[{table}]", *(f"{key} = {value}" for key, value in keys.items())]
    return TomlFile.parse("\n".join(lines).encode(), name="site.toml")


def named(problems: list[Any]) -> set[str]:
    return {one.message.split("[")[1].split("]")[0] for one in problems}


@given(before=TABLES, after=TABLES)
def test_every_table_that_differs_is_taken_over_or_named(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    differing = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    found = needs_restart(file_of(before), file_of(after), people=True, adapters=())
    tables = {name for name in named(found) if "." not in name}
    assert tables == differing - TAKEN_OVER
    alone = needs_restart(file_of(before), file_of(after), people=False, adapters=())
    assert named(alone) == differing - (TAKEN_OVER - {*PEOPLE})


def test_the_place_is_told_of_what_is_there_still() -> None:
    before, after = file_of({"peers": {}, "node": {"a": 1}}), file_of({"peers": {}, "node": {}})
    (problem,) = needs_restart(before, after, people=True, adapters=())
    assert (problem.code, problem.line) == ("reload.needs_restart", 2)
    assert problem.message == "needs a restart: [node] has changed"


def test_new_adapters_are_taken_over_and_those_that_run_are_not() -> None:
    before = TomlFile.parse(b'[adapters.mail]\nhost = "a"\n', name="site.toml")
    after = TomlFile.parse(
        b'[adapters.mail]\nhost = "b"\n[adapters.mqtt]\nx = 1\n[adapters.folder]\ny = 1\n',
        name="site.toml",
    )
    found = needs_restart(before, after, people=True, adapters=("mail", "folder"))
    assert named(found) == {"adapters.mail", "adapters.folder"}


def binding(source: str, interpretation: str, attribute: str = "position") -> SourceBinding:
    return SourceBinding(
        source=source, concept="person", attribute=attribute, interpretation=interpretation
    )


def test_an_interpretation_that_is_gone_is_warned_of_where_policies_read_by_it() -> None:
    before = {
        "cams": binding("cams", "cameras"),
        "tags": binding("tags", "readers"),
        "caps": binding("caps", "caps", "status"),
    }
    reading = {"alone": ["person.position"], "other": ["room.heat"]}
    assert gone_interpretations(before, before, (), reading, {}) == []
    gone = ["cameras", "caps"]
    (missed,) = gone_interpretations(before, {"tags": before["tags"]}, gone, reading, {})
    assert missed.startswith("the interpretation 'cameras' is gone, its source 'cams' is gone, too")
    assert "alone read person.position" in missed
    other = before | {"cams": binding("cams", "readers")}
    (changed,) = gone_interpretations(before, other, ["cameras"], reading, {})
    assert "is read otherwise" in changed
    assert gone_interpretations(before, other, (), reading, {}) == []


def test_an_interpretation_that_is_gone_is_warned_of_where_consumers_were_told_in_it() -> None:
    told = {"desk": 1_200, "shelf": 0, "root": 3}
    (warning,) = gone_interpretations({}, {}, ["desk", "shelf", "unread"], {}, told)
    assert warning.startswith("the interpretation 'desk' is gone: consumers got 1,200 events")
    assert "an event in it" in gone_interpretations({}, {}, ["desk"], {}, {"desk": 1})[0]
