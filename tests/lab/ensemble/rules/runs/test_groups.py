"""Whole nodes with components, ensembles and groups: rules 1 to 17 on IP."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.grouping.group_client import GroupClient
from rapport.ensemble.grouping.group_tables import GroupTable
from rapport.ensemble.grouping.grouper import GrouperMachine
from rapport.ensemble.protocol import PublishedKnowledge
from rapport.ensemble.trace import Kind
from rapport.kernel.clock import Now
from rapport.transport.base import Address
from rapport_lab.ensemble.rules.check import check, check_all
from rapport_lab.ensemble.rules.trace_index import report
from support.examples import examples

Laboratory = Any
ON_IP = GossipSettings(knowledge_ms=1_000, radio=False, ip=True, probability=0.3)


def test_groups_break_no_rule_and_are_formed(laboratory: Laboratory) -> None:
    plan = laboratory.Plan(nodes=10, settings=ON_IP, duration_ms=12_000)
    run = laboratory.GroupRun(plan)
    trace = run.trace()
    told = Counter(event.kind for event in trace.events)
    grouping = {Kind.TABLE_PUBLISHED, Kind.TABLE_APPLIED, Kind.EVALUATED, Kind.EXCHANGED}
    assert grouping <= set(told)
    breaches = check_all(trace)
    assert not breaches, report(breaches)
    companions = run.machines["n2"].host.components["C2"].companions
    assert "C6" in companions
    assert "C3" not in companions


@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_large_knowledge_goes_over_groupers_in_parts(laboratory: Laboratory, loss: float) -> None:
    plan = laboratory.Plan(
        nodes=10, settings=ON_IP, duration_ms=12_000, body_bytes=5_000, loss=loss
    )
    run = laboratory.GroupRun(plan)
    trace = run.trace()
    breaches = check_all(trace)
    assert not breaches, report(breaches)
    whole = [one for one in trace.events if one.kind is Kind.KNOWLEDGE_SENT]
    assert {one.component.split("/")[0] for one in whole} == {"grouper"}
    passed_on = {
        (one.node, one.component, one.version)
        for one in trace.events
        if one.kind is Kind.PASSED_ON and one.detail == "grouper"
    }
    in_parts = {
        (one.node, one.component, one.version) for one in trace.events if one.kind is Kind.PART_SENT
    }
    assert passed_on
    assert passed_on <= in_parts
    assert "C6" in run.machines["n2"].host.components["C2"].companions


def test_who_is_in_no_group_is_heard_of_all_the_same(laboratory: Laboratory) -> None:
    plan = laboratory.Plan(nodes=8, settings=ON_IP, duration_ms=30_000, wanderers=1)
    run = laboratory.GroupRun(plan)
    breaches = check_all(run.trace())
    assert not breaches, report(breaches)
    for name in run.names[:-1]:
        assert "C7" in run.machines[name].host.replicas


def test_a_grouper_passes_each_version_on_once_whatever_its_strategy(
    laboratory: Laboratory,
) -> None:
    always = msgspec.structs.replace(ON_IP, probability=1.0)
    plan = laboratory.Plan(nodes=10, settings=always, duration_ms=8_000)
    trace = laboratory.GroupRun(plan).trace()
    reasons = Counter(one.detail for one in trace.events if one.kind is Kind.PASSED_ON)
    assert set(reasons) == {"grouper"}
    assert check_all(trace) == []


@given(
    nodes=st.integers(3, 6),
    seed=st.integers(0, 2**32),
    loss=st.sampled_from((0.0, 0.1, 0.4)),
    stop=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 8_000)), max_size=1),
    pulls=st.booleans(),
    radio=st.booleans(),
    wanderers=st.integers(0, 1),
    body_bytes=st.sampled_from((10, 3_000)),
)
@settings(max_examples=examples(8))
def test_random_groups_break_no_rule(
    laboratory: Laboratory,
    nodes: int,
    seed: int,
    loss: float,
    stop: list[tuple[int, int]],
    pulls: bool,
    radio: bool,
    wanderers: int,
    body_bytes: int,
) -> None:
    pulling = {"header_ms": 1_000, "pull_ms": 1_000, "local_ms": 2_000, "global_ms": 4_000}
    plan = laboratory.Plan(
        nodes=nodes,
        links=tuple((one, one + 1) for one in range(nodes - 1)),
        seed=seed,
        loss=loss,
        stops=tuple(stop),
        settings=msgspec.structs.replace(ON_IP, radio=radio, **(pulling if pulls else {})),
        duration_ms=8_000,
        body_bytes=body_bytes,
        wanderers=wanderers,
    )
    breaches = check_all(laboratory.GroupRun(plan).trace())
    assert not breaches, report(breaches)


class PublishesAllAsOne(GrouperMachine):
    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        page = self._voice.page
        self._voice.page = lambda table, now: msgspec.structs.replace(
            page(table, now), component="grouper/all/0"
        )


class TellsStrangers(GrouperMachine):
    def _send_page(
        self, message: PublishedKnowledge, table: GroupTable, to: Address, now: Now
    ) -> None:
        super()._send_page(message, table, to, now)
        for stranger in ("n2", "n3"):
            super()._send_page(message, table, (stranger, to[1]), now)


class TalksToStrangers(GroupClient):
    def to_publish(self, component: str, now: Now) -> list[Address]:
        known = super().to_publish(component, now)
        stranger = ("n2" if component == "C3" else "n3", self._address[1])
        return [*known, stranger] if component and stranger not in known else known


@pytest.mark.parametrize(
    ("rule", "parts"),
    [
        (15, {"grouper": PublishesAllAsOne}),
        (16, {"grouper": TellsStrangers}),
        (17, {"client": TalksToStrangers}),
    ],
    ids=["15 PublishesAllAsOne", "16 TellsStrangers", "17 TalksToStrangers"],
)
def test_a_broken_grouper_or_client_is_caught(
    laboratory: Laboratory, rule: int, parts: dict[str, Any]
) -> None:
    plan = laboratory.Plan(nodes=10, settings=ON_IP, duration_ms=10_000)
    assert check(rule, laboratory.GroupRun(plan, **parts).trace())
