"""`rapport mediate`: shows and changes interpretations, lists quarantined events and releases them.
[ME-6, ME-7, ME-8, ME-11, ME-12, ME-16, UX-3]

Commands use the running node; without one they use the site's files and log.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from cyclopts import App, Parameter

from rapport.cli.arguments import JsonOption, SiteOption, moment, parse_moment, site_directory
from rapport.cli.hints import read_given, unknown
from rapport.cli.node_api import HERE, JSON, NodeAccess, NodeRefusal, Remote, Where
from rapport.cli.output import (
    print_note,
    show_problem,
    write_bytes,
    write_json,
    write_table,
)
from rapport.core.errors import InterpretationError, InvalidInput, Problem
from rapport.core.release import ReleaseRequest
from rapport.core.times import format_time
from rapport.kernel.clock import SystemClock

if TYPE_CHECKING:
    from rapport.channel.backends.readonly import ReadOnlyChannels
    from rapport.mediation.interpretations.change_requests import FileAction
    from rapport.mediation.quarantine.index import QuarantineGroup

former_app = App(
    name="interpretation", help="Look at interpretations; declare, augment, replace, remove."
)

FileArgument = Annotated[
    Path, Parameter(help="Declarations (.toml, .yaml, .xml), or changes as .json.")
]
_CHECKED = (409, 422)
"""What a node answers when a change failed its checks."""
_MEDIA = {
    ".json": JSON,
    ".toml": "application/toml",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
    ".xml": "application/xml",
}


@former_app.command(name="list")
def list_all(*, json: JsonOption = False, where: Where = HERE) -> None:
    """List interpretations in force with parents and versions."""
    found = NodeAccess(where).get("/interpretations")
    if json:
        write_json(found)
        return
    rows = [
        (row["name"], row["form"], row["parent"], row["stamp"], row["format"])
        for row in found["interpretations"]
    ]
    write_table("interpretations", ("name", "form", "parent", "version", "format"), rows)
    for refused in found["refused"]:
        for problem in refused["problems"]:
            show_problem(msgspec.convert(problem, Problem))


@former_app.command(name="show")
def describe(
    name: Annotated[str, Parameter(help="A name, or NAME@VERSION for one that was in force.")],
    *,
    type: Annotated[str, Parameter(help="Print the generated Python for this type.")] = "",
    direction: Annotated[Literal["in", "out"], Parameter(help="Received or sent.")] = "in",
    where: Where = HERE,
) -> None:
    """Show one interpretation as JSON: its own and inherited rules."""
    path = f"/interpretations/{quote(name, safe='/@')}"
    access = NodeAccess(where)
    if type:
        path += f"/transformers/{quote(type, safe='/')}?direction={direction}"
        write_bytes(access.ask(lambda remote: remote.text(path), record=False).encode())
    else:
        write_json(access.get(path))


@former_app.command
def check(
    file: FileArgument,
    *,
    how: Annotated[
        Literal["declare", "augment", "replace"], Parameter(help="As what.")
    ] = "declare",
    old: Annotated[str, Parameter(help="The type of root to be replaced.")] = "",
    where: Where = HERE,
) -> None:
    """Show what a change would do; nothing is changed."""
    _change(where, _change_file(file), how, old, do=False)


@former_app.command
def declare(file: FileArgument, *, where: Where = HERE) -> None:
    """Declare interpretations; all of the file or none."""
    _change(where, _change_file(file), "declare")


@former_app.command
def augment(file: FileArgument, *, where: Where = HERE) -> None:
    """Add to interpretations; those below inherit it."""
    _change(where, _change_file(file), "augment")


@former_app.command
def replace(
    old: Annotated[str, Parameter(help="The type of root that gives way.")],
    file: FileArgument,
    *,
    where: Where = HERE,
) -> None:
    """Replace a type of the canonical model, with conversions both ways."""
    _change(where, _change_file(file), "replace", old)


@former_app.command
def remove(name: str, *, where: Where = HERE) -> None:
    """Remove an interpretation that nothing uses."""
    body = msgspec.json.encode({"type": "remove", "name": name})
    _change(where, (body, JSON), "declare")


@former_app.command
def history(*, json: JsonOption = False, where: Where = HERE) -> None:
    """List all changes, oldest first."""
    found = NodeAccess(where).get("/interpretations/changes")
    if json:
        write_json(found)
        return
    rows = [
        (format_time(row["time"]), ", ".join(row["what"]), row["state"], row["by"], row["id"][:12])
        for row in found
    ]
    write_table("changes", ("time", "what", "state", "by", "id"), rows)


@former_app.command
def shared(*, json: JsonOption = False, where: Where = HERE) -> None:
    """List interpretations that nodes share by gossip."""
    found = NodeAccess(where).get("/ensemble")["interpretations"]
    if json:
        write_json(found)
        return
    rows = [
        (row["name"], row["state"], row["origin"], format_time(row["since_ms"]), row["version"])
        for row in found
    ]
    write_table("shared by gossip", ("name", "state", "from", "since", "version"), rows)
    for row in found:
        for problem in row["problems"]:
            show_problem(msgspec.convert(problem, Problem))


def _change_file(file: Path) -> tuple[bytes, str]:
    """A file of changes, unparsed, and its media type."""
    media = _MEDIA.get(file.suffix.lower())
    if media is None:
        hint = f"files end in {', '.join(_MEDIA)}"
        raise InvalidInput(f"{file} is no file of changes", code="cli.unknown_form", hint=hint)
    return read_given(file), media


def _change(
    where: Where, change: tuple[bytes, str], how: FileAction, old: str = "", *, do: bool = True
) -> None:
    body, media = change
    request = "" if media == JSON else f"?how={how}&old={quote(old, safe='')}"
    path = f"/interpretations/{'changes' if do else 'check'}{request}"
    try:
        done = NodeAccess(where).change("POST", path, body, media)
    except NodeRefusal as refused:
        if refused.status not in _CHECKED:
            raise
        raise InterpretationError(refused.problems) from None
    for problem in done["problems"]:
        show_problem(msgspec.convert(problem, Problem))
    write_json(done)
    names = [stamp or f"{name} (removed)" for name, stamp in done["versions"].items()]
    verb = "changed" if do else "would change"
    print_note(f"{verb}: {', '.join(names) or 'nothing'}")


_LOOK_EVERY_MS = 200
_TOLD = ("released", "corrected", "rejected", "unchanged")


def carry_out(where: Where, request: ReleaseRequest, *, dry_run: bool) -> Any:
    """What came of it, with the second look; waits until all is done."""
    path, body = _request(request, dry_run)

    def ask(remote: Remote) -> Any:
        answer = remote.post(path, body)
        return answer if dry_run else _wait(remote, answer["release"])

    return NodeAccess(where).ask(ask, record=True)


def _request(request: ReleaseRequest, dry_run: bool) -> tuple[str, bytes]:
    body: dict[str, Any] = {"source": request.source, "dry_run": dry_run}
    body["since_ms"] = request.since_ms
    if request.what == "again":
        return "/interpretations/again", msgspec.json.encode(body | {"until_ms": request.until_ms})
    body |= {"reason": request.reason, "ids": request.ids}
    return "/quarantine/release", msgspec.json.encode(body)


def _wait(remote: Remote, release: str) -> Any:
    """Tells how far it is until the release and its second look are done."""
    shown = ""
    remote.finish_work()
    while True:
        state = remote.get(f"/quarantine/releases/{quote(release, safe='')}")
        now = ", ".join(f"{state[name]} {name}" for name in _TOLD)
        if now != shown:
            print_note(f"release {release}: {now}")
            shown = now
        if state["is_done"] and state["second_look"] is not None:
            return state
        asyncio.run(SystemClock().sleep(_LOOK_EVERY_MS))


app = App(name="mediate", help="Interpretations: show, change, quarantine, release.")
for _name, _command in (
    ("list", list_all),
    ("describe", describe),
    ("check", check),
    ("declare", declare),
    ("augment", augment),
    ("replace", replace),
    ("remove", remove),
    ("history", history),
    ("shared", shared),
):
    app.command(_command, name=_name)

SourceOption = Annotated[str, Parameter(help="Only what this source sent.")]
ReasonOption = Annotated[str, Parameter(help="Only readings quarantined for this reason.")]
DryRunOption = Annotated[bool, Parameter(help="Say what would happen; change nothing.")]


@app.command
def show(source: str, *, site: SiteOption = None) -> None:
    """Print the generated code that gives the events of a source their meaning.

    By what is in force: the site's files and the changes on record, with a running node or without.
    """
    from rapport.cli.local_site import in_force_at
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
    json: JsonOption = False,
) -> None:
    """List quarantined readings by source and reason, with the remedy."""
    from rapport.cli.local_site import read_channels
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
    write_table("quarantine", columns, [_row(group) for group in found])


@app.command
def release(
    *ids: str,
    source: SourceOption = "",
    reason: ReasonOption = "",
    dry_run: DryRunOption = False,
    where: Where = HERE,
) -> None:
    """Release quarantined readings by the interpretations in force now, and look again for alarms.

    Goes through the running node; where none runs, the site's log is used directly.
    """
    _report_release(
        carry_out(where, ReleaseRequest(source=source, reason=reason, ids=ids), dry_run=dry_run)
    )


@app.command
def again(
    *,
    source: Annotated[str, Parameter(help="The source that was wrongly understood.")],
    since: Annotated[str, Parameter(help="Received at this time or later, or 2h ago: 2h.")] = "",
    until: Annotated[str, Parameter(help="Received before this time.")] = "",
    dry_run: DryRunOption = False,
    where: Where = HERE,
) -> None:
    """Mediate raw events again; readings with another result are corrected."""
    request = ReleaseRequest(
        what="again",
        source=source,
        since_ms=moment(since) or 0,
        until_ms=parse_moment(until) if until else 2**62,
    )
    _report_release(carry_out(where, request, dry_run=dry_run))


@app.command(show=False)  # rapport reload does it
def reload(*, where: Where = HERE) -> None:
    """Have the running node take its interpretations from the site's files anew.

    Says who used an interpretation that is gone.
    """
    changed = where.remote().post("/interpretations/reload", b"{}")
    write_json(changed)
    names = [*changed["interpretations"], *changed["sources"]]
    print_note(f"changed: {', '.join(names) or 'nothing'}")
    for warning in changed["warnings"]:
        print_note(f"warning: {warning}")


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


def _report_release(done: Any) -> None:
    write_json(done)
    counts = [f"{done[name]} {name}" for name in ("released", "corrected", "unchanged", "rejected")]
    print_note(", ".join(counts))
    look = done.get("second_look")
    if look:
        late, gone = look["late_detections"], look["unsupported"]
        print_note(f"{late} late alarms, {gone} no longer supported")
