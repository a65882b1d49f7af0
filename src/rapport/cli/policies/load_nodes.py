"""The load of several nodes as one: each reports with its share of the imprecision. [PO-14]"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from queue import Queue
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from rapport.cli.remote import Remote
from rapport.core.errors import InvalidInput, RapportError, Unavailable
from rapport.kernel.approximation import Aggregate, ApproximateAggregate, ApproximateReport

_WEIGH_EVERY = 10
"""Reports after which shares are made anew, by who moved how far."""
_WORTH = 0.2
"""A share that changes by less than this part of itself is left as it is."""

Heard = tuple[str, Any]


class Nodes:
    """Follows one value at several nodes; one thread reads each of them."""

    def __init__(self, remotes: dict[str, Remote], how: Aggregate, imprecision: float) -> None:
        if len(remotes) < 2:
            raise InvalidInput(
                "several nodes are at least two different ones",
                code="cli.wrong_use",
                hint="--node URL --node URL; for one node say --url URL instead",
            )
        self._remotes, self._how = remotes, how
        self._whole = ApproximateAggregate(how, imprecision)
        for name in remotes:
            self._whole.join(name)
        self._shares = self._whole.shares()
        self._followers: dict[str, str] = {}
        self._heard: Queue[Heard | RapportError] = Queue()
        self._offered: dict[str, int] = {}
        self._taken = 0

    def reports(self, of: str, over: str) -> Iterator[dict[str, Any]]:
        """A report of the whole for each that a node sends, once all were heard; `over` is how a
        node puts its own last minute together. Raises what the first node raises that fails.
        """
        for name, remote in self._remotes.items():
            asked = urlencode({"imprecision": self._shares[name], "of": of, "how": over})
            arguments = (name, remote, f"/load/stream?{asked}")
            threading.Thread(target=self._listen, args=arguments, daemon=True).start()
        while True:
            heard = self._heard.get()
            if isinstance(heard, RapportError):
                raise heard
            self._take(*heard)
            known = self._whole.known()
            if known is not None and len(self._followers) == len(self._remotes):
                yield self._shown(known, of)

    def _take(self, name: str, said: Any) -> None:
        self._followers[name] = said["follower"]
        self._offered[name] = said["offered"]
        self._taken += 1
        self._whole.take(name, ApproximateReport(said["value"], said["imprecision"]))
        if self._taken % _WEIGH_EVERY == 0:
            self._weigh()

    def _weigh(self) -> None:
        """Gives more of the imprecision to who needs it: smaller shares first, so that the whole
        keeps within it at all times.
        """
        wanted = self._whole.shares_by_need()
        for name in sorted(wanted, key=lambda one: wanted[one] - self._shares[one]):
            share = wanted[name]
            if abs(share - self._shares[name]) > _WORTH * self._shares[name] and self._fits(
                name, share
            ):
                follower = quote(self._followers[name], safe="")
                self._remotes[name].post(f"/load/stream/{follower}?imprecision={share}", b"")
                self._shares[name] = share
                self._whole.agreed(name, share)

    def _fits(self, name: str, share: float) -> bool:
        """Whether all shares together keep within the imprecision with this one."""
        if self._how != "sum":
            return True
        others = sum(one for other, one in self._shares.items() if other != name)
        return others + share <= self._whole.imprecision

    def _shown(self, known: ApproximateReport, of: str) -> dict[str, Any]:
        return {
            "of": of,
            "how": f"{self._how} of {len(self._remotes)} nodes",
            "value": known.value,
            "imprecision": known.imprecision,
            "offered": sum(self._offered.values()),
            "reported": self._taken,
        }

    def _listen(self, name: str, remote: Remote, path: str) -> None:
        try:
            with closing(remote.lines(path)) as lines:
                for line in lines:
                    if line.startswith("data: "):
                        self._heard.put((name, msgspec.json.decode(line.removeprefix("data: "))))
            self._heard.put(_gone(name))
        except RapportError as error:
            self._heard.put(error)


def _gone(name: str) -> RapportError:
    return Unavailable(
        f"the node at {name} closed its doors",
        code="node.unreachable",
        hint="when it is up again (rapport up), run this again",
    )
