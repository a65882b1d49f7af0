"""Section 8.1 of the source: parameters that work badly are told of, impossible ones refused."""

from __future__ import annotations

from typing import Any

import pytest

from rapport.core.errors import InvalidInput
from rapport.ensemble.gossip.gossip_settings import GossipSettings, advice

GOOD: dict[str, Any] = {
    "knowledge_ms": 5_000,
    "header_ms": 5_000,
    "pull_ms": 5_000,
    "local_ms": 10_000,
    "global_ms": 20_000,
    "acceptable_latency_ms": 20_000,
}


def codes(**changed: Any) -> set[str]:
    found = advice(GossipSettings(**{**GOOD, **changed}))
    assert all(one.severity == "warning" and one.message and one.hint for one in found)
    return {one.code.removeprefix("ensemble.") for one in found}


def test_what_the_source_advises_is_good() -> None:
    assert codes() == set()
    assert codes(pull_ms=7_000) == set()
    assert advice(GossipSettings()) == []


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"local_ms": 5_000}, "outdated_before_published"),
        ({"local_ms": 9_000}, "pulled_too_early"),
        ({"local_ms": 11_000}, "pulled_too_late"),
        ({"header_ms": 0}, "no_headers"),
        ({"header_ms": 4_000}, "headers_too_often"),
        ({"header_ms": 7_000, "pull_ms": 7_000}, "headers_too_seldom"),
        ({"pull_ms": 3_000}, "pulls_too_often"),
        ({"acceptable_latency_ms": 19_000}, "published_too_seldom"),
        ({"probability": 0}, "only_pull"),
        ({"pull_ms": 0, "header_ms": 0}, "latency_without_pull"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_piece_of_advice_is_given(changed: dict[str, Any], code: str) -> None:
    assert code in codes(**changed)


@pytest.mark.parametrize(
    "changed",
    [
        {"global_ms": 10_000},
        {"probability": 1.5},
        {"probability": float("nan")},
        {"knowledge_ms": -1},
        {"pull_ms": float("inf")},
        {"fan_out": -1},
        {"local_ms": 0},
        {"components": 0},
        {"part_bytes": 10},
        {"radio": False},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_what_cannot_work_is_refused_with_a_hint(changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as raised:
        GossipSettings(**{**GOOD, **changed})
    assert raised.value.code == "ensemble.bad_gossip_settings"
    assert raised.value.hint
