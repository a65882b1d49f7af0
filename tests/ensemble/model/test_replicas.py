"""What a host believes of others: newer versions, roles, age, room."""

from __future__ import annotations

from collections.abc import Callable

from rapport.core.knowledge import Knowledge
from rapport.ensemble import Component, Ensemble, Role
from rapport.ensemble.model.host import Host
from rapport.kernel.clock import Now
from support.work import lines

At = Callable[[float], Now]
MakeHost = Callable[..., Host]
MakeKnowledge = Callable[..., Knowledge]


class Near(Role):
    metres: float


class Node(Component, Near):
    closest: str = ""


class Closest(Ensemble, every="1 s"):
    coordinator: Node
    member: Near

    @staticmethod
    def membership(coordinator: Node, member: Near) -> bool:
        return member.metres < 10

    @staticmethod
    def exchange(coordinator: Node, member: Near) -> None:
        coordinator.closest = member.id


def test_only_newer_versions_are_taken(
    make_host: MakeHost, at: At, knowledge: MakeKnowledge
) -> None:
    host = make_host(Closest)
    assert host.replace(knowledge("a", "Near", version=5, metres=1.0), at(1))
    assert not host.replace(knowledge("a", "Near", version=5, metres=2.0), at(2))
    assert not host.replace(knowledge("a", "Near", version=4, metres=3.0), at(3))
    assert host.replicas["a"].values == {"metres": 1.0}
    assert host.replicas["a"].received_ms == 1
    assert host.replace(knowledge("a", "Near", version=6, metres=4.0), at(4))
    assert host.replicas["a"].version == 6


def test_knowledge_of_a_component_that_lives_here_is_never_taken(
    make_host: MakeHost, at: At, knowledge: MakeKnowledge
) -> None:
    host, node = make_host(Closest), Node(id="n", metres=1)
    host.replace(knowledge("n", "Near", metres=5.0), at(0))
    host.add(node, at(0))
    assert not host.replace(knowledge("n", "Near", version=99, metres=7.0), at(1))
    assert (node.metres, dict(host.replicas)) == (1.0, {})
    assert [fault.code for fault in host.faults] == ["ensemble.equal_ids"]


def test_replicas_that_are_not_renewed_are_dropped(
    make_host: MakeHost, at: At, knowledge: MakeKnowledge
) -> None:
    host, node = make_host(Closest, replica_ms=1_000), Node(id="n", metres=1)
    host.add(node, at(0))
    host.replace(knowledge("a", "Near", metres=1.0), at(0))
    host.replace(knowledge("b", "Near", metres=1.0), at(10))
    host.replace(knowledge("a", "Near", version=2, metres=1.0), at(900))
    assert host.drop_stale(at(1_010)) == []
    assert host.drop_stale(at(1_011)) == ["b"]
    host.run(at(1_200))
    assert node.closest == "a"
    assert host.drop_stale(at(5_000)) == ["a"]
    assert len(host.replicas) == 0


def test_the_replicas_of_a_dead_node_are_forgotten(
    make_host: MakeHost, at: At, knowledge: MakeKnowledge
) -> None:
    host, node = make_host(Closest), Node(id="n", metres=1)
    host.add(node, at(0))
    host.replace(knowledge("a", "Near", metres=1.0), at(1))
    host.replace(Knowledge("b", "alive", ("Near",), 1, 1, {"metres": 1.0}), at(1))
    assert host.forget_node("elsewhere") == ["a"]
    assert host.forget_node("elsewhere") == []
    host.run(at(1_000))
    assert host.formed == {"Closest": (("n", "b"),)}
    host.remove("n")
    assert host.formed == {"Closest": ()}


def test_roles_may_change_with_the_version(
    make_host: MakeHost, at: At, knowledge: MakeKnowledge
) -> None:
    host, node = make_host(Closest), Node(id="n", metres=1)
    host.add(node, at(0))
    host.replace(knowledge("a", "Near", metres=1.0), at(1))
    host.replace(knowledge("a", "Far", version=2, metres=1.0), at(2))
    host.run(at(1_000))
    assert (node.closest, host.pairs) == ("", 0)
    host.replace(knowledge("a", "Far", "Near", version=3, metres=1.0), at(1_001))
    host.run(at(2_000))
    assert (node.closest, host.pairs) == ("a", 1)
    host.replace(knowledge("b", "Far", metres=1.0), at(2_001))
    host.replace(knowledge("b", "Near", version=2, metres=1.0), at(2_002))
    host.run(at(3_000))
    assert (node.closest, host.pairs) == ("b", 3)


def test_memory_for_replicas_is_bounded(
    make_host: MakeHost, at: At, knowledge: MakeKnowledge
) -> None:
    host = make_host(Closest, most_replicas=3)
    taken = [host.replace(knowledge(str(number), "Near"), at(number)) for number in range(5)]
    assert taken == [True, True, True, False, False]
    assert host.replace(knowledge("1", "Near", version=2), at(9))
    (fault,) = host.faults
    assert (fault.code, fault.count) == ("ensemble.too_many_replicas", 2)


def test_memory_for_faults_is_bounded(
    make_host: MakeHost, at: At, knowledge: MakeKnowledge
) -> None:
    host = make_host(Closest)
    host.add(Node(id="n", metres=1), at(0))
    for number in range(1_500):
        host.replace(knowledge(str(number), "Near"), at(1))
    host.run(at(1_000))
    assert len(host.faults) == 1_000
    assert host.faults.total == 1_500


def test_replicas_of_other_roles_cost_an_evaluation_nothing(
    make_host: MakeHost, at: At, knowledge: MakeKnowledge
) -> None:
    def cost(strangers: int) -> int:
        host = make_host(Closest)
        host.add(Node(id="n", metres=1), at(0))
        for number in range(20):
            host.replace(knowledge(f"near-{number}", "Near", metres=1.0), at(1))
        for number in range(strangers):
            host.replace(knowledge(f"far-{number}", "Stranger", metres=1.0), at(1))
        counted = lines(lambda: [host.run(at(period * 1_000)) for period in range(1, 21)])
        assert host.pairs == 20 * 20
        return counted

    assert cost(20_000) == cost(0)
