"""`rapport load`: the load of policies on one node or several, and its trend. [PO-14]"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from queue import Queue
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import msgspec
from cyclopts import Parameter

from rapport.cli.arguments import JsonOption, check_count
from rapport.cli.hints import wrong_use
from rapport.cli.node_api import HERE, Remote, Where, read_token
from rapport.cli.output import print_note, write_bytes, write_json, write_table
from rapport.core.errors import RapportError, Unavailable
from rapport.kernel.approximation import Aggregate, ApproximateAggregate, ApproximateReport

_WEIGH_EVERY = 10
"""Reports after which shares are redistributed by the changes of each node."""
_WORTH = 0.2
"""A share that changes by less than this part of itself is left as it is."""

Heard = tuple[str, Any]


class Nodes:
    """Follows one value at several nodes; one thread reads each of them."""

    def __init__(self, remotes: dict[str, Remote], how: Aggregate, imprecision: float) -> None:
        if len(remotes) < 2:
            raise wrong_use(
                "several nodes are at least two different ones",
                "--node URL --node URL; for one node say --url URL instead",
            )
        self._remotes, self._how = remotes, how
        self._whole = ApproximateAggregate(how, imprecision)
        for name in remotes:
            self._whole.join(name)
        self._shares = self._whole.shares()
        self._followers: dict[str, str] = {}
        self._arrived: Queue[Heard | RapportError] = Queue()
        self._offered: dict[str, int] = {}
        self._taken = 0

    def reports(self, of: str, over: str) -> Iterator[dict[str, Any]]:
        """A report of the whole for each that a node sends, once all have sent one; `over` is how a
        node puts its own last minute together. Raises what the first node raises that fails.
        """
        for name, remote in self._remotes.items():
            query = urlencode({"imprecision": self._shares[name], "of": of, "how": over})
            arguments = (name, remote, f"/load/stream?{query}")
            threading.Thread(target=self._listen, args=arguments, daemon=True).start()
        while True:
            report = self._arrived.get()
            if isinstance(report, RapportError):
                raise report
            self._receive(*report)
            known = self._whole.known()
            if known is not None and len(self._followers) == len(self._remotes):
                yield self._shown(known, of)

    def _receive(self, name: str, report: Any) -> None:
        self._followers[name] = report["follower"]
        self._offered[name] = report["offered"]
        self._taken += 1
        self._whole.take(name, ApproximateReport(report["value"], report["imprecision"]))
        if self._taken % _WEIGH_EVERY == 0:
            self._weigh()

    def _weigh(self) -> None:
        """Gives more of the imprecision to nodes that change more: smaller shares first, so that
        their sum never exceeds it.
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
                        self._arrived.put((name, msgspec.json.decode(line.removeprefix("data: "))))
            self._arrived.put(_gone(name))
        except RapportError as error:
            self._arrived.put(error)


def _gone(name: str) -> RapportError:
    return Unavailable(
        f"the node at {name} closed its endpoints",
        code="node.unreachable",
        hint="when it is up again (rapport up), run this again",
    )


_COLUMNS = ("policy", "share", "us/event", "read", "steps wanted", "computed")
_UNITS = {"busy": "% busy", "events": "events/s", "behind": "events waiting"}


def load(
    *,
    imprecision: Annotated[
        float | None, Parameter(help="Follow it: report changes beyond this tolerance.")
    ] = None,
    of: Annotated[str, Parameter(help="What to follow: busy, events or behind.")] = "busy",
    how: Annotated[str, Parameter(help="Of the last minute: average, sum or max.")] = "average",
    node: Annotated[
        list[str] | None, Parameter(help="Follow several nodes as one: their addresses.")
    ] = None,
    total: Annotated[
        Aggregate, Parameter(help="Of several nodes: sum, average or max.")
    ] = "average",
    count: Annotated[int | None, Parameter(help="End after this many reports.")] = None,
    json: JsonOption = False,
    where: Where = HERE,
) -> int:
    """Show the load of the last minute, or follow one value of it until Ctrl-C."""
    check_count(count, "reports")
    if node:
        token = read_token(where.token_file)
        remotes = {address: Remote(address, token) for address in node}
        nodes = Nodes(remotes, total, 5.0 if imprecision is None else imprecision)
        reports: Iterator[Any] = nodes.reports(of, how)
    else:
        remote = where.remote()
        if imprecision is None:
            _show(remote.get("/load"), as_json=json)
            return 0
        reports = _reports(remote, {"imprecision": imprecision, "of": of, "how": how})
    try:
        _print(islice(reports, count), as_json=json)
    except KeyboardInterrupt:
        return 0  # the usual end
    return 0


def _reports(remote: Remote, parameters: dict[str, Any]) -> Iterator[Any]:
    with closing(remote.lines(f"/load/stream?{urlencode(parameters)}")) as lines:
        for line in lines:
            if line.startswith("data: "):
                yield msgspec.json.decode(line.removeprefix("data: "))


def _show(report: Any, *, as_json: bool) -> None:
    if as_json:
        write_json(report)
        return
    write_table("policies", _COLUMNS, [_row(one) for one in report["policies"]])
    room = "?" if report["headroom"] is None else f"{report['headroom']:.0f}"
    print_note(
        f"busy {report['busy']:.1%}, {report['events_per_second']:.0f} events/s, "
        f"room for {room} more, {report['behind']} waiting, "
        f"trend {report['trend_per_hour']:+.0%} per hour"
    )
    steps = steps_line(report)
    for line in (steps, report["advice"]) if steps else (report["advice"],):
        print_note(line)


def _row(one: Any) -> tuple[str, ...]:
    return (
        one["policy"],
        f"{one['share']:.1%}",
        f"{one['us_per_event']:.2f}",
        str(one["read"]),
        str(one.get("steps_wanted", "")),
        f"{one['steps_computed']:.0f}" if "steps_computed" in one else "",
    )


def steps_line(report: Any) -> str:
    """What policies share, in a line; empty for a node that does not count it.

    >>> steps_line({"steps_wanted": 200, "steps_computed": 50})
    'steps: 200 wanted, 50 computed (75% shared)'
    """
    wanted, computed = report.get("steps_wanted", 0), report.get("steps_computed", 0)
    if not wanted:
        return ""
    return f"steps: {wanted} wanted, {computed} computed ({1 - computed / wanted:.0%} shared)"


def _print(reports: Iterator[Any], *, as_json: bool) -> None:
    """Prints reports; on a terminal all in one line that is written over."""
    over = sys.stdout.isatty() and not as_json
    for report in reports:
        if as_json:
            write_json(report)
        elif over:
            write_bytes(f"\r\x1b[K{line_of(report)}".encode())
        else:
            write_bytes(f"{line_of(report)}\n".encode())
    if over:
        write_bytes(b"\n")


def line_of(report: Any) -> str:
    """A report in one line, with how many messages it took so far."""
    unit = _UNITS.get(report["of"], report["of"])
    saved = f"{report['reported']} reports of {report['offered']} values"
    return f"{report['value']:.1f} ± {report['imprecision']:g} {unit} ({report['how']}), {saved}"
