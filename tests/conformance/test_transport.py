"""The transport suite bound to memory, UDP and simulation. [CX-2]"""

from __future__ import annotations

import asyncio
import socket

import pytest

from rapport.kernel.clock import Chance
from rapport.transport.udp import MulticastGroup, UdpEndpoint
from rapport_lab.memory_transport import MemoryMedium
from rapport_lab.scheduler import Scheduler
from rapport_lab.simulated_transport import SimulatedLink, SimulatedMedium
from support.servers.ports import free_port
from support.suites.transport import EndpointSuite


class Opening:
    """Closes at the end what it opened."""

    def __init__(self) -> None:
        self.opened = []

    async def close(self) -> None:
        for endpoint in self.opened:
            await endpoint.close()


class InMemory(Opening):
    def __init__(self) -> None:
        super().__init__()
        self._medium = MemoryMedium()

    async def open(self):
        self.opened.append(self._medium.open())
        return self.opened[-1]

    async def until(self, condition) -> None:
        for _ in range(50):
            if condition():
                return
            await asyncio.sleep(0)


class OverUdp(Opening):
    def __init__(self, *, group: MulticastGroup | None, host: str) -> None:
        super().__init__()
        self.group, self._host = group, host

    async def open(self):
        self.opened.append(await UdpEndpoint.open(self._host, 0, group=self.group))
        return self.opened[-1]

    async def until(self, condition) -> None:
        for _ in range(75):
            if condition():
                return
            await asyncio.sleep(0.002)


class Simulated(Opening):
    def __init__(self) -> None:
        super().__init__()
        self._scheduler = Scheduler()
        link = SimulatedLink(delay_ms=2, jitter_ms=5)
        self._medium = SimulatedMedium(self._scheduler, Chance(1), link)

    async def open(self):
        self.opened.append(self._medium.open())
        return self.opened[-1]

    async def until(self, condition) -> None:
        self._scheduler.run()


def has_ipv6() -> bool:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as opened:
        try:
            opened.bind(("::1", 0))
        except OSError:
            return False
    return True


@pytest.fixture(params=["memory", "udp", "udp-broadcast", "udp6", "simulated"])
def medium(request):
    def over_udp6():
        if not has_ipv6():
            pytest.skip("this machine has no IPv6 on the loopback")
        return OverUdp(group=None, host="::1")

    mediums = {
        "memory": InMemory,
        "udp": lambda: OverUdp(
            group=MulticastGroup("239.255.74.11", free_port(is_udp=True)), host="127.0.0.1"
        ),
        "udp-broadcast": lambda: OverUdp(
            group=MulticastGroup("127.255.255.255", free_port(is_udp=True)), host="127.0.0.1"
        ),
        "udp6": over_udp6,
        "simulated": Simulated,
    }
    return mediums[request.param]()


class TestEndpoint(EndpointSuite):
    def test_a_broadcast_reaches_all_others_and_not_oneself(self, medium):
        if isinstance(medium, OverUdp) and medium.group is None:
            pytest.skip("the loopback has no route for IPv6 groups")
        super().test_a_broadcast_reaches_all_others_and_not_oneself(medium)
