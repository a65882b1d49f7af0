"""`rapport load`: how busy policies keep a running node, and when it is time to move. [PO-14]"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from typing import Annotated, Any
from urllib.parse import urlencode

import msgspec
from cyclopts import Parameter

from rapport.cli.policies.load_nodes import Nodes
from rapport.cli.remote import Remote, read_token
from rapport.cli.terminal import stderr, write_bytes, write_json, write_table
from rapport.cli.where import HERE, Where
from rapport.core.errors import InvalidInput
from rapport.kernel.approximation import Aggregate

_COLUMNS = ("policy", "share", "us/event", "read", "steps wanted", "computed")
_UNITS = {"busy": "% busy", "events": "events/s", "behind": "events waiting"}


def load(
    *,
    imprecision: Annotated[
        float | None, Parameter(help="Follow it: say only what leaves this much tolerance.")
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
    json: Annotated[bool, Parameter(help="As JSON.")] = False,
    where: Where = HERE,
) -> int:
    """Show the load of the last minute, or follow one value of it until Ctrl-C."""
    if count is not None and count < 1:
        raise InvalidInput(
            f"cannot wait for {count} reports",
            code="cli.wrong_use",
            hint="--count is 1 or more; without it, reports are printed until Ctrl-C",
        )
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


def _reports(remote: Remote, asked: dict[str, Any]) -> Iterator[Any]:
    with closing(remote.lines(f"/load/stream?{urlencode(asked)}")) as lines:
        for line in lines:
            if line.startswith("data: "):
                yield msgspec.json.decode(line.removeprefix("data: "))


def _show(report: Any, *, as_json: bool) -> None:
    if as_json:
        write_json(report)
        return
    write_table("policies", _COLUMNS, [_row(one) for one in report["policies"]])
    room = "?" if report["headroom"] is None else f"{report['headroom']:.0f}"
    stderr().print(
        f"busy {report['busy']:.1%}, {report['events_per_second']:.0f} events/s, "
        f"room for {room} more, {report['behind']} waiting, "
        f"trend {report['trend_per_hour']:+.0%} per hour",
        highlight=False,
        soft_wrap=True,
    )
    steps = steps_line(report)
    for line in (steps, report["advice"]) if steps else (report["advice"],):
        stderr().print(line, highlight=False, soft_wrap=True)


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
