"""`rapport policy states` and `acknowledge`: open situations and who looks after them.
[SI-4, SI-12, SI-14]
"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from cyclopts import App, Parameter

from rapport.cli.arguments import JsonOption
from rapport.cli.node_api import HERE, NodeAccess, Where
from rapport.cli.output import print_note, write_json, write_table
from rapport.core.errors import InvalidInput
from rapport.core.times import format_time
from rapport.policy.explain.situation_wording import atom_text
from rapport.policy.situations.current_states import AtomState

HEADS = ("situation", "state", "since", "now", "values", "acknowledged by")


def add_to(app: App) -> None:
    """Puts the commands below `rapport policy`."""
    app.command(states)
    app.command(acknowledge)


def states(name: str, *, json: JsonOption = False, where: Where = HERE) -> None:
    """List what is open of a policy with a situation, since when, and what is unknown and why."""
    found = NodeAccess(where).get(f"/policies/{quote(name, safe='')}/states")
    if json:
        write_json(found)
        return
    rows = [_row(each["state"], each["acknowledged_by"]) for each in found["states"]]
    write_table(name, HEADS, rows)
    print_note(_summary(found))
    shadow = found["shadow"]
    if shadow is not None:
        rows = [_row(each) for each in shadow["states"]]
        write_table(f"{name} in the shadow, version {shadow['version']}", HEADS, rows)
        print_note(_shadow_summary(shadow))


def acknowledge(
    name: str,
    *bindings: Annotated[str, Parameter(help="ALIAS=ID of the situations; all open if none.")],
    by: Annotated[str, Parameter(help="Who looks after it.")] = "",
    where: Where = HERE,
) -> None:
    """Say that somebody looks after an open situation: repeats stop, the end is still told."""
    wanted = dict(_binding(text) for text in bindings)
    path = f"/policies/{quote(name, safe='')}/acknowledge"
    body = msgspec.json.encode({"bindings": wanted, "by": by})
    access = NodeAccess(where)
    done = access.change("POST", path, body)
    for one in done["situations"]:
        print_note(f"{name} {_shown(one)}: {done['by']} looks after it".replace("  ", " "))
    if access.is_resting:
        print_note("no node runs: it holds from its next start on")


def _binding(text: str) -> tuple[str, str]:
    alias, sign, identity = text.partition("=")
    if not (alias and sign and identity):
        raise InvalidInput(
            f"{text[:60]!r} is no ALIAS=ID", code="cli.bad_binding", hint="such as F=f1"
        )
    return alias, identity


def _row(one: Any, acknowledged_by: str = "") -> tuple[str, ...]:
    since = format_time(one["began"]) if one["began"] is not None else ""
    return (
        _shown(one["bindings"]),
        one["state"],
        since,
        one["truth"],
        "; ".join(atom_text(msgspec.convert(atom, AtomState)) for atom in one["atoms"]),
        acknowledged_by,
    )


def _shown(bindings: dict[str, str]) -> str:
    return " ".join(f"{alias}={identity}" for alias, identity in sorted(bindings.items()))


def _counts(found: Any) -> str:
    return f"{found['open']} open, {found['pending']} pending, {found['unknown']} unknown"


def _shadow_summary(found: Any) -> str:
    tally = found["tally"]
    compared = f"both had {tally['both']} since, only the version in force {tally['only_running']}"
    return f"in the shadow {_counts(found)}; {compared}, only the shadow {tally['only_shadow']}"


def _summary(found: Any) -> str:
    counts = _counts(found)
    if found["problem"]:
        return f"{counts}; {found['problem']}"
    return f"{counts}, as of {format_time(found['time'])}" if found["time"] else counts
