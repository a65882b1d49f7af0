"""A running node: components and ensembles on real sockets. [EN-10]"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from rapport.core.errors import InvalidInput
from rapport.ensemble.gossip.strategies import Strategy
from rapport.ensemble.grouping.group_client import GroupClient, GroupsOf
from rapport.ensemble.grouping.grouper import GrouperMachine
from rapport.ensemble.model.component import Component
from rapport.ensemble.model.ensemble import Ensemble
from rapport.ensemble.model.host import Host
from rapport.ensemble.node_machine import Grouping, NodeMachine
from rapport.ensemble.runtime.gossip_summary import GossipSummary
from rapport.ensemble.runtime.node_shell import (
    GROUPER_ROLE,
    KnowledgeListener,
    NodeShell,
    ReportWithheld,
)
from rapport.ensemble.runtime.node_status import (
    MemberStatus,
    NodeStatus,
    ReplicaStatus,
    RuntimeSettings,
    check_sealed,
    short_status,
)
from rapport.ensemble.trace import Kind, Recorder
from rapport.ensemble.trace_files import NodeTracer
from rapport.kernel.clock import Chance, Clock, Now
from rapport.overlay.swim import Swim
from rapport.overlay.swim_protocol import MAX_NAME
from rapport.transport.addresses import format_address, ip_of, resolve
from rapport.transport.base import Address
from rapport.transport.keys import DatagramKeys
from rapport.transport.station import EndpointWrapper, Station, direct_link, open_station
from rapport.transport.udp import MulticastGroup


class EnsembleNode:
    """A running node. Lives on the loop it was opened on; its components' processes run in
    threads.
    """

    def __init__(self, shell: NodeShell, group: MulticastGroup | None) -> None:
        self.node, self.address = shell.machine.node, shell.station.address
        self.machine: NodeMachine = shell.machine
        self._shell, self._group = shell, group
        self._is_closed = False
        shell.status_text = lambda: short_status(self.status())

    @staticmethod
    async def open(
        node: str,
        components: Iterable[Component] = (),
        ensembles: Sequence[type[Ensemble]] = (),
        *,
        listen: Address,
        clock: Clock,
        chance: Chance,
        group: MulticastGroup | None = None,
        join: Sequence[Address] = (),
        ip: bool | None = None,
        keys: DatagramKeys | None = None,
        settings: RuntimeSettings | None = None,
        groupers: Sequence[Address] = (),
        is_grouper: bool = False,
        strategy: Strategy | None = None,
        on_changed: KnowledgeListener | None = None,
        on_published: KnowledgeListener | None = None,
        on_withheld: ReportWithheld | None = None,
        recorder: Recorder | None = None,
        given_before: int = 0,
        link: EndpointWrapper = direct_link,
    ) -> EnsembleNode:
        """A node that takes part at once.

        Args:
            node: its name, which no other node has.
            listen: where others reach it.
            group: the radio: a multicast group or a broadcast address; without it there is
                no radio.
            join: other nodes, to be met through; any that is there is enough, and they may start
                later.
            ip: whether it talks to addresses and takes part in the membership; none: if there is no
                group, or nodes to join, or groupers.
            groupers: well-known groupers; with them, or `is_grouper`, knowledge on IP goes to the
                members of groups. Further groupers are learned from the membership.
            on_changed: called with each newer version of others' components; it must not block.
            on_published: the same for this node's own.
            on_withheld: called with a component whose knowledge cannot be published, and why, and
                with none when it can again; none: both are logged.
            recorder: gets a trace of all that happens.
            given_before: no version that a life of this node gave before is above it; versions go
                on from there, also with a clock set back. 0: not known, other nodes correct it.

        Raises InvalidInput for what cannot be meant, and for an address that others reach while
        there are no keys; Unavailable when the address cannot be had.
        """
        place = await resolve(listen)
        others = [await resolve(one) for one in join]
        known_groupers = [await resolve(one) for one in groupers]
        _check(node, place)
        check_sealed([place, *others, *known_groupers], has_keys=keys is not None)
        _check_keys(keys)
        wants_ip = group is None or bool(join) or bool(groupers) or is_grouper
        has_ip = wants_ip if ip is None else ip
        settings = _with_media(settings or RuntimeSettings(), group is not None, has_ip)
        station = await open_station(place, keys, clock, link=link, group=group)
        try:
            now = Now(clock.now_ms(), clock.steady_ns() / 1e6)
            making = _Making(node, station, settings, chance, now, recorder)
            machine = making.machine(ensembles, known_groupers, is_grouper, strategy, given_before)
            for component in components:
                machine.add(component, now)
            role = GROUPER_ROLE if is_grouper else ""
            swim = making.membership([*others, *known_groupers], role) if has_ip else None
        except BaseException:
            await station.close()
            raise
        recording = NodeTracer(recorder, node) if recorder is not None else None
        shell = NodeShell(station, machine, swim, clock, settings, recording)
        shell.on_changed, shell.on_published = on_changed, on_published
        if on_withheld is not None:
            shell.report_withheld = on_withheld
        opened = EnsembleNode(shell, group)
        opened._note(Kind.STARTED, now)
        for name in machine.host.components:
            opened._note(Kind.DEPLOYED, now, name)
        shell.begin()
        return opened

    def add(self, component: Component) -> None:
        """A component lives here from now on; raises InvalidInput, DuplicateName."""
        now = self._shell.now()
        self.machine.add(component, now)
        self._note(Kind.DEPLOYED, now, component.id)
        self._shell.settle(now)

    def remove(self, component_id: str) -> None:
        """It lives here no more; others forget it after a while."""
        self.machine.remove(component_id)
        self._note(Kind.REMOVED, self._shell.now(), component_id)

    def publish_now(self, component_id: str) -> bool:
        """Publishes a component out of turn; false when it does not live here, or its knowledge
        cannot be published.
        """
        now = self._shell.now()
        is_here = self.machine.publish_now(component_id, now)
        self._shell.settle(now)
        return is_here

    def look(self) -> None:
        """Runs the processes that wait for a change made to a component from outside."""
        self._shell.settle(self._shell.now())

    @property
    def members(self) -> tuple[Address, ...]:
        """The other nodes that are there, as far as is known; none without IP."""
        return self._shell.swim.present if self._shell.swim is not None else ()

    def status(self) -> NodeStatus:
        """The status of the node, for people and metrics."""
        shell, host, swim = self._shell, self.machine.host, self._shell.swim
        now_ms = shell.now().steady_ms
        return NodeStatus(
            node=self.node,
            address=format_address(self.address),
            group=format_address((self._group.host, self._group.port)) if self._group else "",
            components=tuple(host.components),
            withheld=tuple(host.withheld.values()),
            members=self.roster(),
            replicas=tuple(
                ReplicaStatus(
                    component=name,
                    node=replica.reading.node,
                    roles=tuple(replica.reading.roles),
                    version=replica.version,
                    age_ms=round(now_ms - replica.received_ms, 1),
                )
                for name, replica in host.replicas.items()
            ),
            replica_count=len(host.replicas),
            faults=tuple(host.faults),
            health=swim.health.score if swim is not None else 0,
            namesakes=_namesakes(swim) if swim is not None else (),
            threads=len(shell.threads),
            waiting_calls=shell.threads.waiting,
            counters=self._counters(),
            fault_counts=dict(host.faults.by_code),
        )

    def roster(self) -> tuple[MemberStatus, ...]:
        """The other nodes, those that left or died included."""
        swim = self._shell.swim
        return _members(swim) if swim is not None else ()

    def take_summary(self) -> GossipSummary | None:
        """Its gossip since the last call, for the log; none if nothing happened."""
        replicas = self.machine.host.replicas
        return self._shell.figures.take(replicas, len(replicas), self._shell.now().wall_ms)

    async def close(self) -> None:
        """Says goodbye and closes; a second call is no error. Processes that run are left alone,
        what they find is dropped.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self.machine.stop(self._shell.now())
        if self._shell.swim is not None:
            self._shell.swim.leave()
        await self._shell.close()
        self._note(Kind.STOPPED, self._shell.now())

    def _note(self, kind: Kind, now: Now, component: str = "") -> None:
        if self._shell.recording is not None:
            self._shell.recording.note(kind, now, component=component)

    def _counters(self) -> dict[str, int]:
        shell = self._shell
        station = shell.station
        counters = {
            **shell.counts,
            **{f"gossip_{name}": count for name, count in self.machine.gossip.counts.items()},
            "messages_received": station.counters.received,
            "messages_sent": station.counters.sent,
            "faults": self.machine.host.faults.total,
        }
        if station.unseal is not None:
            unheard: dict[str, Any] = msgspec.to_builtins(station.unseal.counters)
            counters |= {f"datagrams_{name}": int(count) for name, count in unheard.items()}
        return counters


class _Making:
    """Builds the machines of a node, each with its own random generator."""

    def __init__(
        self,
        node: str,
        station: Station,
        settings: RuntimeSettings,
        chance: Chance,
        now: Now,
        recorder: Recorder | None,
    ) -> None:
        self._node, self._station, self._settings = node, station, settings
        self._chance, self._now, self._recorder = chance, now, recorder

    def machine(
        self,
        ensembles: Sequence[type[Ensemble]],
        groupers: Sequence[Address],
        is_grouper: bool,
        strategy: Strategy | None,
        given_before: int,
    ) -> NodeMachine:
        """Host, gossip and grouping; raises InvalidInput for ensembles that cannot be meant."""
        host = Host(self._node, ensembles, self._drawn(), self._settings.host, trace=self._recorder)

        def grouping(groups_of: GroupsOf) -> Grouping:
            return self._grouping(groupers, is_grouper, groups_of)

        has_ip = self._settings.gossip.ip
        return NodeMachine(
            host,
            self._settings.gossip,
            self._drawn(),
            strategy=strategy,
            address=self._station.address if has_ip else None,
            grouping=grouping if has_ip and (groupers or is_grouper) else None,
            trace=self._recorder,
            given_before=given_before,
            start_ms=self._now.steady_ms,
        )

    def membership(self, known: Sequence[Address], role: str) -> Swim:
        """The machine of membership, started."""
        swim = Swim(
            self._node, self._station.address, self._drawn(), self._settings.swim, role=role
        )
        swim.start(self._now, known)
        return swim

    def _grouping(
        self, groupers: Sequence[Address], is_grouper: bool, groups_of: GroupsOf
    ) -> Grouping:
        own, chance, settings = self._station.address, self._drawn(), self._settings.grouping
        if is_grouper:
            return GrouperMachine(
                self._node,
                own,
                chance,
                self._now,
                settings,
                groupers=groupers,
                groups_of=groups_of,
                trace=self._recorder,
            )
        return GroupClient(
            self._node,
            own,
            chance,
            settings,
            groupers=groupers,
            groups_of=groups_of,
            trace=self._recorder,
        )

    def _drawn(self) -> Chance:
        return Chance(self._chance.getrandbits(64))


def _with_media(settings: RuntimeSettings, radio: bool, ip: bool) -> RuntimeSettings:
    gossip = msgspec.structs.replace(settings.gossip, radio=radio, ip=ip)
    return msgspec.structs.replace(settings, gossip=gossip)


def _members(swim: Swim) -> tuple[MemberStatus, ...]:
    return tuple(
        MemberStatus(
            name=member.name,
            address=format_address(member.address),
            state=member.state.name.lower(),
        )
        for member in swim.roster
    )


def _namesakes(swim: Swim) -> tuple[str, ...]:
    return tuple(format_address(one) for one in swim.roster.namesakes(swim.name))


def _check_keys(keys: DatagramKeys | None) -> None:
    if keys is not None and not keys.is_member:
        raise InvalidInput(
            f"the keys of {keys.own!r} are a client's, which other nodes do not take part with",
            code="ensemble.client_keys",
            hint="make a key with --kind network, the same for all nodes",
        )


def _check(node: str, place: Address) -> None:
    if not 0 < len(node) <= MAX_NAME or not node.isprintable():
        raise InvalidInput(
            f"{node[:80]!r} cannot be the name of a node",
            code="ensemble.bad_node_name",
            hint=f"1 to {MAX_NAME} printable characters",
        )
    found = ip_of(place[0])
    if found is not None and found.is_unspecified:
        raise InvalidInput(
            f"{format_address(place)} is every address of this machine, and others need one",
            code="ensemble.bad_address",
            hint="listen on the address by which the others reach this machine",
        )
