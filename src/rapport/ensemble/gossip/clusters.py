"""Passing on by clusters: heads and those that join two clusters pass on, others do not. [EN-5]

Neighbours tell their head with the headers they send. A head is whoever hears no head with a lower
name; a head reaches all of its cluster, so its members need not repeat it.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from rapport.ensemble.gossip.strategies import AT_ONCE, KEEP, Silent
from rapport.ensemble.messages import Headers, Published
from rapport.transport.base import Now, Sender


class _Neighbour(NamedTuple):
    head: str
    heard_ms: float


class ClusterBased(Silent):
    """Lowest-name clustering. Needs headers to be sent (`header_ms`), which it sends even when
    there is nothing in them; clusters settle within about as many header periods as the longest
    chain of falling names, mostly two or three.
    """

    needs_headers = True

    def __init__(self, node: str, *, keep_ms: float, remembered: int = 1_024) -> None:
        """`keep_ms`: a neighbour that was silent for so long is none; about three header
        periods.
        """
        self._node, self._keep_ms, self._remembered = node, keep_ms, remembered
        self._neighbours: dict[str, _Neighbour] = {}
        self.head = node
        """The head of the cluster it is in."""
        self.is_gateway = False
        """It hears members of another cluster."""

    @property
    def passes_on(self) -> bool:
        """Whether it passes on at present."""
        return self.head == self._node or self.is_gateway

    def decide(self, message: Published, sender: Sender, now: Now) -> float | None:
        return AT_ONCE if self.passes_on else KEEP

    def greeting(self, headers: Headers, now: Now) -> Headers | None:
        self._forget_silent(now)
        return msgspec.structs.replace(headers, node=self._node, head=self.head)

    def greeted(self, headers: Headers, now: Now) -> None:
        node = headers.node
        if not node or node == self._node:
            return
        self._neighbours.pop(node, None)
        if len(self._neighbours) >= self._remembered:
            del self._neighbours[next(iter(self._neighbours))]
        self._neighbours[node] = _Neighbour(headers.head or node, now.steady_ms)
        self._settle()

    def _forget_silent(self, now: Now) -> None:
        before_ms = now.steady_ms - self._keep_ms
        silent = [name for name, other in self._neighbours.items() if other.heard_ms < before_ms]
        for name in silent:
            del self._neighbours[name]
        self._settle()

    def _settle(self) -> None:
        heads = [name for name, other in self._neighbours.items() if other.head == name]
        self.head = min([self._node, *heads])
        self.is_gateway = any(
            other.head != self.head or (other.head == name and name != self.head)
            for name, other in self._neighbours.items()
        )
