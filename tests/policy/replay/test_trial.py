"""Episodes of a trial beside those of the version in force. [CN-7]"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rapport.core.detection import Detection
from rapport.policy.replay.trial import Episode, compare_episodes, episodes_of


def found(time: int, began: int | None = None, thing: str = "f1") -> Detection:
    return Detection(policy="p", time=time, began=began, bindings={"F": thing}, causes=())


def spans(*times: tuple[int, int | None]) -> list[Episode]:
    return [Episode(bindings={"F": "f1"}, begin=b, end=e, change="same") for b, e in times]


def test_an_end_belongs_to_its_beginning_and_an_open_situation_has_none() -> None:
    told = [found(10), found(20, began=10), found(30), found(12, thing="f2")]
    episodes = episodes_of(told, has_ends=True)
    assert [(one.bindings["F"], one.begin, one.end) for one in episodes] == [
        ("f1", 10, 20),
        ("f2", 12, None),
        ("f1", 30, None),
    ]
    assert [one.end for one in episodes_of([found(10)], has_ends=False)] == [10]


def test_overlapping_situations_of_the_same_things_are_one_that_moved() -> None:
    marked = compare_episodes(spans((12, 25), (40, 50)), spans((10, 20), (60, None)))
    assert [(one.begin, one.change, one.begin_before, one.end_before) for one in marked] == [
        (12, "moved", 10, 20),
        (40, "added", None, None),
        (60, "gone", None, None),
    ]
    assert [one.change for one in compare_episodes(spans((1, 2)), None)] == ["added"]


times = st.lists(st.integers(0, 200), unique=True).map(sorted)


@given(times, times)
def test_every_episode_is_marked_once(tried: list[int], before: list[int]) -> None:
    def pairs(found: list[int]) -> list[Episode]:
        return spans(*zip(found[::2], found[1::2], strict=False))

    mine, theirs = pairs(tried), pairs(before)
    marked = compare_episodes(mine, theirs)
    assert sum(one.change != "gone" for one in marked) == len(mine)
    kept = sum(one.change in ("same", "moved") for one in marked)
    assert sum(one.change == "gone" for one in marked) == len(theirs) - kept
    assert {one.change for one in compare_episodes(mine, mine)} <= {"same"}
