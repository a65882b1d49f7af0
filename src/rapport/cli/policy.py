"""`rapport policy`: shows compiled policies and changes policies while events flow. [PO-3, PO-5,
PO-8, PO-9, UX-3]

Commands use the running node; without one they use the site's files and log.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from cyclopts import App, Parameter

from rapport.cli import policy_states
from rapport.cli.arguments import JsonOption, SiteOption, site_directory
from rapport.cli.hints import cannot_read
from rapport.cli.node_api import HERE, JSON, NodeAccess, NodeRefusal, Where
from rapport.cli.output import (
    print_note,
    show_problems,
    write_bytes,
    write_json,
    write_result,
    write_table,
)
from rapport.core.errors import InvalidInput, PolicyError, Problem
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
    """For programs; people get a text."""
    if not sys.stdout.isatty():
        write_json(done)


def report_change(done: Any) -> None:
    """What came of a change, with its problems; a change holds from a place on."""
    show_problems(msgspec.convert(done["problems"], list[Problem]))
    if not done["changed"]:
        print_note(f"{done['name']}: {_ALREADY.get(done['what'], 'this is so')} already")
        return
    version = f", version {done['version']}" if done["version"] else ""
    place = f"after event {done['after']}" if done["after"] else "before the first event"
    print_note(f"{done['name']}: {done['what']} {place}{version}")


def write_rows(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table; on a terminal without empty columns.
    Programs get all of them.
    """
    columns = list(range(len(heads)))
    if sys.stdout.isatty():
        columns = [
            n
            for n, head in enumerate(heads)
            if head not in _MAY_BE_EMPTY or any(row[n] not in _NOTHING for row in rows)
        ]
    write_table(title, [heads[n] for n in columns], [[row[n] for n in columns] for row in rows])


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
    version = f" {change['version']}" if change["version"] else ""
    because = f", because of {change['cause'][:12]}" if change["cause"] else ""
    when = f"{format_time(change['time'])}, after event {change['after']}"
    return f"{when}: {change['what']}{version} by {change['by']}{because}"


FileArgument = Annotated[Path, Parameter(help="The policy's text.")]
NameOption = Annotated[str, Parameter(help="Its name; else the stem of the file.")]
_TEXT = "text/plain; charset=utf-8"
_CHECKED = (400, 422)
"""What a node answers when a policy failed its checks."""


def add_to(app: App) -> None:
    """Puts the commands below `rapport policy`."""
    app.command(list_all, name="list")
    for command in (register, replace, pause, resume, delete, history, shadow, reload):
        app.command(command)


def list_all(*, json: JsonOption = False, where: Where = HERE) -> None:
    """List policies with state, version, and what each did since the node started: readings it
    looked at, situations found, those left undecided because a source was silent, those suppressed
    by `at most once per`, errors, and the milliseconds spent on it.
    """
    node = NodeAccess(where)
    found = node.get("/policies")
    if json:
        write_json(found)
        return
    write_rows("policies", HEADS, [row_of(policy) for policy in found])
    for policy in found:
        show_problems(msgspec.convert(policy["problems"], list[Problem]))
    if node.is_resting:
        print_note("no node runs: these would run from its next start on")


def register(file: FileArgument, *, name: NameOption = "", where: Where = HERE) -> None:
    """Start a policy that is not there yet; it sees what comes from now on."""
    _bring(NodeAccess(where), "register", file, name)


def replace(
    file: FileArgument,
    *,
    name: NameOption = "",
    expects: Annotated[str, Parameter(help="The version that must be in force.")] = "",
    where: Where = HERE,
) -> None:
    """Put another version in the place of a policy; it begins anew."""
    _bring(NodeAccess(where), "replace", file, name, expects)


def pause(name: str, *, where: Where = HERE) -> None:
    """Let a policy see nothing, and forget what it waits for, until it is resumed."""
    _act(NodeAccess(where), name, "pause")


def resume(name: str, *, where: Where = HERE) -> None:
    """Let a paused policy begin anew."""
    _act(NodeAccess(where), name, "resume")


def delete(name: str, *, where: Where = HERE) -> None:
    """End a policy; its history stays."""
    _change(NodeAccess(where), "DELETE", f"/policies/{quote(name, safe='')}")


def history(
    name: str,
    *,
    diff: Annotated[bool, Parameter(help="With what each version changed.", negative="")] = False,
    json: JsonOption = False,
    where: Where = HERE,
) -> None:
    """List the changes of a policy, oldest first: who, when, from which event on."""
    found = NodeAccess(where).get(f"/policies/{quote(name, safe='')}/history")
    if json:
        write_json(found)
    elif diff:
        parts = [f"{line_of(one)}\n{one['diff']}" for one in found]
        write_bytes("\n".join(parts).encode())
    else:
        rows = [
            (
                format_time(one["time"]),
                one["what"],
                one["version"],
                one["by"],
                str(one["after"]),
                one["cause"][:12],
            )
            for one in found
        ]
        write_rows("changes", ("time", "what", "version", "by", "after", "because"), rows)


def shadow(
    file: Annotated[Path | None, Parameter(help="The new version's text.")] = None,
    *,
    name: NameOption = "",
    promote: Annotated[bool, Parameter(help="Make it the policy.", negative="")] = False,
    drop: Annotated[bool, Parameter(help="End it.", negative="")] = False,
    where: Where = HERE,
) -> None:
    """Run a new version beside a policy; only differences are reported, in
    `detections`. Then promote or drop it.
    """
    node = NodeAccess(where)
    if file is not None and not (promote or drop):
        _bring(node, "shadow", file, name)
    elif promote != drop and (name or file is not None):
        _act(node, name or str(file and file.stem), "promote" if promote else "drop")
    else:
        raise InvalidInput(
            "say what to do about a shadow",
            code="cli.no_shadow",
            hint="FILE starts one; --name NAME with --promote or --drop ends it",
        )


def reload(*, where: Where = HERE) -> None:
    """Have the running node take ontology, tables and policies from the site's files anew."""
    done = where.remote().post("/policies", b"{}")
    write_data(done)
    for one in done:
        report_change(one)
    if not done:
        print_note("every policy is as it was")


def _bring(
    node: NodeAccess,
    how: Literal["register", "replace", "shadow"],
    file: Path,
    name: str,
    expects: str = "",
) -> None:
    text, policy = _read(file), name or file.stem
    path = f"/policies/{quote(policy, safe='')}?how={how}&expects={quote(expects, safe='')}"
    _change(node, "POST", path, text.encode(), _TEXT)


def _act(node: NodeAccess, name: str, act: str) -> None:
    _change(node, "POST", f"/policies/{quote(name, safe='')}/{act}", b"{}")


def _change(
    node: NodeAccess, method: str, path: str, body: bytes | None = None, media: str = JSON
) -> None:
    """Makes a change and reports the outcome."""
    try:
        done = node.change(method, path, body, media)
    except NodeRefusal as refused:
        if refused.status not in _CHECKED or not any(one.line for one in refused.problems):
            raise
        raise PolicyError(refused.problems) from None
    write_data(done)
    report_change(done)
    if node.is_resting:
        print_note("no node runs: it holds from its next start on")


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise cannot_read(file, error) from None


Stage = Literal["parsed", "terms", "ecnf", "tree", "plan", "json", "partitions"]

app = App(name="policy", help="Look at policies, format them, and change them while events flow.")
add_to(app)
policy_states.add_to(app)


@app.command
def show(
    name: str,
    *,
    site: SiteOption = None,
    stage: Annotated[Stage, Parameter(help="Which stage to show.")] = "tree",
    svg: Annotated[bool, Parameter(help="Draw it: the tree or the plan.", negative="")] = False,
    out: Annotated[Path | None, Parameter(help="File to write to instead of stdout.")] = None,
) -> None:
    """Print one stage of a policy: parsed, own terms in root, normal form, tree, plan, Spark
    partitions."""
    from rapport.cli.policy_files import stage_drawing, stage_text
    from rapport.site.site import load_site

    loaded = load_site(site_directory(site), policies=[name])
    text = stage_drawing(loaded, name, stage) if svg else stage_text(loaded, name, stage)
    write_result(text.rstrip("\n").encode() + b"\n", out)


@app.command
def fmt(
    *files: Path,
    site: SiteOption = None,
    check: Annotated[
        bool, Parameter(negative="", help="Write nothing; exit 1 when a file would change.")
    ] = False,
) -> int:
    """Rewrite policy files in canonical form, comments kept; all of the site's when none is
    named."""
    from rapport.cli.policy_files import format_files

    return format_files(files, site_directory(site), check=check)


@app.command
def similar(
    name: str,
    *,
    site: SiteOption = None,
    limit: Annotated[int, Parameter(help="At most so many.")] = 10,
    json: JsonOption = False,
) -> None:
    """List the policies that speak of the same things as this one, most alike first."""
    from rapport.cli.policy_files import show_similar

    show_similar(name, site_directory(site), limit=limit, as_json=json)
