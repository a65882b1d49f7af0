"""What `rapport policy` says of policies and of what came of a change: words for people, JSON for
programs. [PO-9, UX-3]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from rapport.cli.terminal import show_problem, stderr, write_json, write_table
from rapport.core.errors import Problem
from rapport.core.times import format_time

HEADS = (
    *("name", "state", "version", "by"),
    *("readings", "found", "undecided", "suppressed", "errors", "ms"),
)
_MAY_BE_EMPTY = ("by", "undecided", "suppressed", "errors", "because")
_NOTHING = ("", "-", "0", "files of the site")
_ALREADY = {
    "replaced": "this version",
    "shadowed": "this version in the shadow",
    "paused": "paused",
    "resumed": "not paused",
}


def write_data(done: Any) -> None:
    """For programs; a person is told in words."""
    if not sys.stdout.isatty():
        write_json(done)


def tell(done: Any) -> None:
    """What came of a change, with its problems; a change holds from a place on."""
    show_problems(done)
    if not done["changed"]:
        say(f"{done['name']}: {_ALREADY.get(done['what'], 'this is so')} already")
        return
    version = f", version {done['version']}" if done["version"] else ""
    place = f"after event {done['after']}" if done["after"] else "before the first event"
    say(f"{done['name']}: {done['what']} {place}{version}")


def say(text: str) -> None:
    """A line for people."""
    stderr().print(text, highlight=False, soft_wrap=True)


def show_problems(shown: Any) -> None:
    """Each with its place and hint."""
    for problem in shown["problems"]:
        show_problem(msgspec.convert(problem, Problem))


def write_rows(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table; on a terminal without columns that have nothing to tell, so that it is not cramped.
    Programs get all of them.
    """
    told = list(range(len(heads)))
    if sys.stdout.isatty():
        told = [
            n
            for n, head in enumerate(heads)
            if head not in _MAY_BE_EMPTY or any(row[n] not in _NOTHING for row in rows)
        ]
    write_table(title, [heads[n] for n in told], [[row[n] for n in told] for row in rows])


def row_of(policy: Any) -> tuple[str, ...]:
    """A policy below `HEADS`; one that does not run has no figures."""
    counts = policy["counts"]
    state = policy["state"] + (f" (shadow {policy['shadow']})" if policy["shadow"] else "")
    figures = ("read", "detections", "undecided", "suppressed", "errors", "cost_ms")
    if policy.get("on_spark"):
        state += " on Spark"
    runs = policy["state"] in ("running", "failed") and not policy.get("on_spark")
    shown = (str(counts[name]) if runs else "-" for name in figures)
    return (policy["name"], state, policy["version"], policy["by"], *shown)


def line_of(change: Any) -> str:
    """A change in a history."""
    version = f" {change['version']}" if change["version"] else ""
    because = f", because of {change['cause'][:12]}" if change["cause"] else ""
    when = f"{format_time(change['time'])}, after event {change['after']}"
    return f"{when}: {change['what']}{version} by {change['by']}{because}"
