"""`rapport mediate`: how sources are given their meaning, what is held back, and how it is
released. [ME-8, ME-11, ME-16]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import App, Parameter

from rapport.cli.meaning.releasing import carry_out
from rapport.cli.moments import moment, said_moment
from rapport.cli.names import unknown
from rapport.cli.sites import SiteOption, site_directory
from rapport.cli.terminal import stderr, write_bytes, write_json, write_table
from rapport.cli.where import HERE, Where
from rapport.core.release import ReleaseRequest
from rapport.core.times import format_time

if TYPE_CHECKING:
    from rapport.channel.backends.readonly import ReadOnlyChannels
    from rapport.mediation.quarantine.index import QuarantineGroup

app = App(name="mediate", help="Interpretations: show, change, quarantine, release.")
_OF_INTERPRETATIONS = (
    ("list", "list_all", "List interpretations in force with parents and versions."),
    ("describe", "show", "Show one interpretation as JSON: its own and inherited rules."),
    ("check", "check", "Show what a change would do; nothing is changed."),
    ("declare", "declare", "Declare interpretations; all of the file or none."),
    ("augment", "augment", "Add to interpretations; those below inherit it."),
    ("replace", "replace", "Replace a type of the canonical model, with conversions both ways."),
    ("remove", "remove", "Remove an interpretation that nothing uses."),
    ("history", "history", "List all changes, oldest first."),
    ("shared", "shared", "List interpretations that nodes share by gossip."),
)
for _name, _function, _help in _OF_INTERPRETATIONS:
    app.command(f"rapport.cli.meaning.interpretation:{_function}", name=_name, help=_help)

SourceOption = Annotated[str, Parameter(help="Only what this source sent.")]
ReasonOption = Annotated[str, Parameter(help="Only what is held back for this reason.")]
DryRunOption = Annotated[bool, Parameter(help="Say what would happen; change nothing.")]


@app.command
def show(source: str, *, site: SiteOption = None) -> None:
    """Print the generated code that gives the events of a source their meaning.

    By what is in force: the site's files and the changes on record, with a running node or without.
    """
    from rapport.cli.meaning.in_force import in_force_at
    from rapport.kernel.clock import SystemClock
    from rapport.mediation.reader import build_transformer
    from rapport.mediation.site_functions import WorkerConversions
    from rapport.site.site import load_site

    directory = site_directory(site)
    loaded = load_site(directory, policies=[])
    bindings, in_force = in_force_at(directory, loaded)
    if source not in bindings:
        raise unknown("source", source, bindings, if_none="declare it in site.toml: [sources.NAME]")
    meaning = build_transformer(
        bindings[source],
        in_force,
        lookups=loaded.tables,
        conversions=WorkerConversions(SystemClock()),  # shown, never called: no process is started
    )
    write_bytes(meaning.source_text().encode())


@app.command
def quarantine(
    *,
    source: SourceOption = "",
    reason: ReasonOption = "",
    since: Annotated[str, Parameter(help="Only what is held since this time, or 2h ago: 2h.")] = "",
    site: SiteOption = None,
    json: Annotated[bool, Parameter(help="As JSON.")] = False,
) -> None:
    """List what is held back, by source and reason, with what to do about it."""
    from rapport.cli.local import read_channels
    from rapport.mediation.quarantine.index import (
        QuarantineFilter,
        QuarantineIndex,
        group_quarantined,
    )

    wanted = QuarantineFilter(source=source, reason=reason, since_ms=moment(since) or 0)

    async def groups(channels: ReadOnlyChannels) -> list[QuarantineGroup]:
        held_back = QuarantineIndex(channels)
        await held_back.refresh()
        return await group_quarantined(channels, held_back, wanted)

    found = read_channels(site_directory(site), groups)
    if json:
        write_json(found)
        return
    columns = ("source", "reason", "count", "first", "last", "message", "hint")
    write_table("held back", columns, [_row(group) for group in found])


@app.command
def release(
    *ids: str,
    source: SourceOption = "",
    reason: ReasonOption = "",
    dry_run: DryRunOption = False,
    where: Where = HERE,
) -> None:
    """Give what is held back its meaning, by what is in force now, and look again for alarms.

    Goes through the running node; where none runs, the site's log is used directly.
    """
    door = where
    _tell(carry_out(door, ReleaseRequest(source=source, reason=reason, ids=ids), dry_run=dry_run))


@app.command
def again(
    *,
    source: Annotated[str, Parameter(help="The source that was wrongly understood.")],
    since: Annotated[str, Parameter(help="Received at this time or later, or 2h ago: 2h.")] = "",
    until: Annotated[str, Parameter(help="Received before this time.")] = "",
    dry_run: DryRunOption = False,
    where: Where = HERE,
) -> None:
    """Mediate raw events again; readings that now say something else are corrected."""
    asked = ReleaseRequest(
        what="again",
        source=source,
        since_ms=moment(since) or 0,
        until_ms=said_moment(until) if until else 2**62,
    )
    _tell(carry_out(where, asked, dry_run=dry_run))


@app.command(show=False)  # rapport reload does it
def reload(
    *,
    where: Where = HERE,
) -> None:
    """Have the running node take its interpretations from the site's files anew.

    Says who used an interpretation that is gone.
    """
    remote = where.remote()
    changed = remote.post("/interpretations/reload", b"{}")
    write_json(changed)
    names = [*changed["interpretations"], *changed["sources"]]
    stderr().print(f"changed: {', '.join(names) or 'nothing'}", highlight=False)
    for warning in changed["warnings"]:
        stderr().print(f"warning: {warning}", highlight=False, markup=False, soft_wrap=True)


def _row(group: QuarantineGroup) -> tuple[str, ...]:
    return (
        group.source,
        group.reason,
        str(group.count),
        format_time(group.first_ms),
        format_time(group.last_ms),
        group.message,
        group.hint,
    )


def _tell(done: Any) -> None:
    write_json(done)
    told = msgspec.to_builtins(done)
    counts = [f"{told[name]} {name}" for name in ("released", "corrected", "unchanged", "rejected")]
    stderr().print(", ".join(counts), highlight=False)
    look = told.get("second_look")
    if look:
        late, gone = look["late_detections"], look["unsupported"]
        stderr().print(f"{late} late alarms, {gone} no longer supported", highlight=False)
