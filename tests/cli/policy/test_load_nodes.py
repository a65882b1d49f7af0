"""Several nodes followed as one: shares of the imprecision go to who needs them. [PO-14]"""

from __future__ import annotations

from typing import Any

import pytest

from rapport.cli.load import Nodes
from rapport.core.errors import InvalidInput
from rapport.kernel.approximation import ApproximateReport, ApproximateReporter
from rapport.kernel.clock import Chance


class Member:
    """A node that keeps its share; what a door would say is handed on at once."""

    def __init__(self, name: str, share: float) -> None:
        self.name, self.source = name, ApproximateReporter(share)
        self.waiting: list[ApproximateReport] = []

    def measure(self, value: float) -> None:
        report = self.source.offer(value)
        self.waiting += [report] if report is not None else []

    def post(self, path: str, body: bytes) -> None:
        share = float(path.partition("imprecision=")[2])
        report = self.source.change(share)
        self.waiting += [report] if report is not None else []

    def hand_on(self, nodes: Nodes) -> None:
        while self.waiting:
            report = self.waiting.pop(0)
            said = {"follower": self.name, "value": report.value, "offered": self.source.offered}
            nodes._receive(self.name, said | {"imprecision": report.imprecision})


@pytest.mark.parametrize("how", ["sum", "average", "max"])
def test_the_whole_keeps_within_the_imprecision_while_shares_move(how: Any) -> None:
    chance = Chance(11)
    members = {name: Member(name, 5.0 if how == "sum" else 10.0) for name in ("calm", "wild")}
    nodes = Nodes(members, how, 10.0)  # type: ignore[arg-type]
    values = {"calm": 50.0, "wild": 50.0}
    for _ in range(2_000):
        values["calm"] += chance.gauss(0, 0.1)
        values["wild"] += chance.gauss(0, 3)
        for name, member in members.items():
            member.measure(values[name])
        while any(member.waiting for member in members.values()):
            for member in members.values():
                member.hand_on(nodes)
        known = nodes._whole.known()
        truth = {"sum": sum, "average": lambda all: sum(all) / 2, "max": max}[how](values.values())
        assert known is not None
        assert known.imprecision <= 10 + 1e-9
        assert abs(known.value - truth) <= 10 + 1e-9
    if how == "sum":
        assert members["wild"].source.imprecision > 7 > members["calm"].source.imprecision


def test_one_node_is_not_several() -> None:
    with pytest.raises(InvalidInput):
        Nodes({}, "sum", 5)
