"""Which policies run against each other. [PI-9, PO-9]"""

from __future__ import annotations

from pathlib import Path

import pytest

from rapport.core.errors import InvalidInput, SiteError, UnknownName
from rapport.pipeline.backtest.contenders import choose, opponents
from rapport.policy.engine.stream_steps import StreamPosition
from rapport.policy.lifecycle.registry import ChangeKind, PolicyChange, RecordedChange
from rapport.site.site import Site


def kept(name: str, what: ChangeKind, version: str, text: str) -> RecordedChange:
    changed = PolicyChange(
        what=what,
        name=name,
        place=StreamPosition(0, 0),
        number=1,
        by="test",
        version=version,
        text=text,
    )
    return RecordedChange(position=1, id="c", time=0, changed=changed)


def test_a_policy_is_meant_by_name_or_by_file(site: Site, week: Path) -> None:
    by_name = choose(site, "alone", list)
    assert (by_name.name, by_name.label, by_name.plan.policy) == ("alone", "alone", "alone")
    by_file = choose(site, str(week / "slower.dpl"), list)
    assert (by_file.name, by_file.label) == ("slower", "slower.dpl")
    assert by_file.plan.window_ms == 8_000


def test_an_unknown_name_is_answered_with_the_nearest(site: Site) -> None:
    with pytest.raises(UnknownName) as caught:
        choose(site, "alon", list)
    assert (caught.value.code, caught.value.hint) == ("policy.unknown", "did you mean 'alone'?")


def test_versions_on_record_are_found_by_the_beginning_of_their_names(site: Site) -> None:
    text = choose(site, "alone", list).text
    older = text.replace("5m", "7m")
    record = [
        kept("alone", "registered", "aaa111", older),
        kept("alone", "replaced", "bbb222", text),
        kept("gone", "registered", "ccc333", older),
    ]
    found = choose(site, "alone@aaa", lambda: record)
    assert (found.label, found.text) == ("alone@aaa", older)
    assert choose(site, "gone", lambda: record).text == older
    with pytest.raises(UnknownName) as caught:
        choose(site, "alone@zzz", lambda: record)
    assert caught.value.code == "policy.unknown_version"


def test_a_file_with_faults_tells_all_of_them(site: Site, tmp_path: Path) -> None:
    bad = tmp_path / "bad.dpl"
    bad.write_text("concepts\n  persn A\nconditions\n  A is insde R\nactions\n  raise alarm\n")
    with pytest.raises(SiteError) as caught:
        choose(site, str(bad), list)
    assert {problem.file for problem in caught.value.problems} == {str(bad)}
    with pytest.raises(InvalidInput, match="no policy file"):
        choose(site, str(tmp_path / "none.dpl"), list)


def test_two_versions_run_side_by_side_under_names_of_their_own(site: Site, week: Path) -> None:
    first, second = choose(site, "alone", list), choose(site, str(week / "alone.dpl"), list)
    one, other, by = opponents(first, second)
    assert one.plan.policy != other.plan.policy
    assert (one.label, other.label, by) == ("alone", "alone.dpl", ["A", "R"])
    assert opponents(first, first)[1].label == "alone (other)"


def test_policies_with_nothing_in_common_are_not_compared(site: Site, tmp_path: Path) -> None:
    other = tmp_path / "other.dpl"
    other.write_text(
        "concepts\n  person P\n  room Q\nconditions\n  P is inside Q\nactions\n  raise alarm\n"
    )
    with pytest.raises(InvalidInput) as caught:
        opponents(choose(site, "alone", list), choose(site, str(other), list))
    assert caught.value.code == "backtest.not_comparable"
    assert "person A, room R" in caught.value.message
