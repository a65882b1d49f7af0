"""How alike policies are. [PO-12]"""

from __future__ import annotations

from typing import Any

from rapport.policy.lint.policy_set import features, most_similar, nearly_equal, similarity

TEXT = """concepts
  station {alias} (kind='{kind}')
  room R
conditions
  {alias} is inside R
  temperature of {alias} above {limit}
actions
  {action}
"""


def policy(stations: Any, **words: Any) -> Any:
    given = {"alias": "S", "kind": "mast", "limit": 30, "action": "raise alarm"} | words
    return stations.compile(TEXT.format(**given)).plan


def test_names_of_aliases_and_actions_do_not_matter(stations: Any) -> None:
    one, other = policy(stations), policy(stations, alias="Q", action="tell guards")
    assert similarity(features(one), features(other)) == 1


def test_policies_are_ranked_by_what_they_have_in_common(stations: Any) -> None:
    other = stations.compile(
        "concepts\n  station S\nconditions\n  no humidity of S for 3 h\nactions\n  go\n"
    ).plan
    plans = {
        "own": policy(stations),
        "limit": policy(stations, limit=31),
        "kind and limit": policy(stations, limit=31, kind="buoy"),
        "other": other,
    }
    ranked = most_similar("own", plans)
    assert [one.policy for one in ranked] == ["limit", "kind and limit", "other"]
    assert 1 > ranked[0].score > ranked[1].score > ranked[2].score > 0
    assert len(most_similar("own", plans, limit=1)) == 1


def test_only_what_says_nearly_the_same_in_the_same_shape_is_nearly_equal(stations: Any) -> None:
    plans = {
        "a": policy(stations),
        "b": policy(stations, alias="Q", action="tell guards"),
        "c": policy(stations, limit=31),
        "d": policy(stations, kind="buoy"),
    }
    found = nearly_equal(plans)
    assert {name: [one.policy for one in others] for name, others in found.items()} == {"b": ["a"]}
