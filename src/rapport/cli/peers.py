"""`rapport peers`: people and groups, their addresses, passwords and inbox links. [CO-3, CO-11,
CO-16, UX-3]

Commands change the running node, or the site's store without one. Entries of the site file are
changed there. A password is typed or piped in, never an argument: other processes see arguments,
and the shell's history keeps them.
"""

from __future__ import annotations

import getpass
import sys
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, unquote, urlencode

import msgspec
from cyclopts import App, Parameter

from rapport.cli.arguments import JsonOption, moment
from rapport.cli.node_api import HERE, NodeAccess, Remote, Where
from rapport.cli.output import print_line, print_note, show_problem, write_json, write_table
from rapport.core.errors import InvalidInput, Problem
from rapport.core.times import format_time

if TYPE_CHECKING:
    from rapport.node.node import Node

BY = "cli"
_PAGE = 1_000
_DAY_MS = 86_400_000


def move(access: NodeAccess, collective: str, wanted: dict[str, list[str]]) -> Any:
    """Lets peers join and leave; gives how many did."""
    if not any(wanted.values()):
        (way, *_) = wanted
        raise InvalidInput(
            "name at least one peer",
            code="cli.wrong_use",
            hint=f"rapport peers {way} {collective} PEER ...; rapport peers list shows all",
        )

    async def local(node: Node) -> Any:
        joined = await node.people.join(collective, wanted.get("join", ()), by=BY)
        return {
            "joined": joined,
            "left": await node.people.leave(collective, wanted.get("leave", ()), by=BY),
        }

    path, body = f"/collectives/{in_path(collective)}/members", msgspec.json.encode(wanted)
    return access.ask(lambda remote: remote.post(path, body), local, record=True)


def pages(access: NodeAccess, what: str) -> list[Any]:
    """All pages of a listing: entries of peers or collectives, or names of members."""
    found: list[Any] = []
    after = ""
    while True:
        page = _page(access, what, after)
        found += page
        if len(page) < _PAGE:
            return found
        after = page[-1] if isinstance(page[-1], str) else page[-1]["name"]


def _page(access: NodeAccess, what: str, after: str) -> list[Any]:
    async def local(node: Node) -> Any:
        kind, _, rest = what.partition("/")
        if rest:
            name = unquote(rest.removesuffix("/members"))
            node.directory.show_collective(name)
            return node.directory.member_names(name, after=after, limit=_PAGE)
        listed = node.directory.peers if kind == "peers" else node.directory.collectives
        return listed(after=after, limit=_PAGE)

    wanted = urlencode({"after": after, "limit": _PAGE} if after else {"limit": _PAGE})
    found: list[Any] = access.ask(
        lambda remote: remote.get(f"/{what}?{wanted}"), local, record=False
    )
    return found


def settings_of(
    addresses: tuple[str, ...],
    delivery: str,
    fallback: bool,
    fallback_after: str,
    zone: str,
    quiet: str,
    on_quiet: str,
) -> dict[str, Any]:
    """The keys of the site file that were given."""
    given: dict[str, Any] = {
        "addresses": list(addresses),
        "delivery": delivery,
        "fallback": fallback,
        "fallback_after": fallback_after,
        "zone": zone,
        "quiet": quiet,
        "on_quiet": on_quiet,
    }
    return {key: value for key, value in given.items() if value}


def in_path(name: str) -> str:
    """A name as a part of a path."""
    return quote(name, safe="")


# --- output ---


def report_change(changed: Any) -> None:
    """What the site file would warn of, and the entry as it is now."""
    for problem in changed["warnings"]:
        show_problem(msgspec.convert(problem, Problem))
    write_json(changed["entry"])


def row_of(entry: dict[str, Any]) -> tuple[str, ...]:
    """An entry as a row of a table."""
    settings = dict(entry["settings"])
    addresses = settings.pop("addresses", [])
    by = f"{format_time(entry['time'])} by {entry['by']}" if entry["time"] else ""
    facts = [f"{key} = {value}" for key, value in settings.items()]
    facts += [f"{one['address']}: circuit {one['state']}" for one in entry.get("circuits", ())]
    return (entry["name"], entry["origin"], " ".join(addresses), ", ".join(facts), by)


app = App(name="peers", help="People, devices and services to be reached; collectives of them.")

DeliveryOption = Annotated[
    str, Parameter(help="to-all-channels, at-least-one (the default) or preferred.")
]
FallbackOption = Annotated[
    bool, Parameter(negative="", help="With preferred: the next address when the first failed.")
]
FallbackAfterOption = Annotated[
    str,
    Parameter(
        help="With fallback: how long one address has, such as 1min; otherwise 2min, 30s if urgent."
    ),
]
ZoneOption = Annotated[str, Parameter(help="Their time zone, such as Europe/Vienna.")]
QuietOption = Annotated[str, Parameter(help="Their quiet hours, such as 22:00-07:00.")]
OnQuietOption = Annotated[str, Parameter(help="hold (the default) or refuse.")]


@app.command(name="list")
def list_peers(
    *,
    collectives: Annotated[bool, Parameter(negative="", help="Collectives instead.")] = False,
    where: Where = HERE,
    json: JsonOption = False,
) -> None:
    """List peers with their addresses."""
    access = NodeAccess(where)
    found = pages(access, "collectives" if collectives else "peers")
    if json:
        write_json(found)
        return
    columns = ("name", "declared by", "addresses", "settings", "changed")
    write_table("collectives" if collectives else "peers", columns, [row_of(one) for one in found])


@app.command
def show(
    name: str,
    *,
    where: Where = HERE,
) -> None:
    """Show a peer and the collectives it is in."""

    async def local(node: Node) -> Any:
        return node.directory.show_peer(name)

    access = NodeAccess(where)
    write_json(
        access.ask(lambda remote: remote.get(f"/peers/{in_path(name)}"), local, record=False)
    )


@app.command
def add(
    name: str,
    *addresses: str,
    delivery: DeliveryOption = "",
    fallback: FallbackOption = False,
    fallback_after: FallbackAfterOption = "",
    zone: ZoneOption = "",
    quiet: QuietOption = "",
    on_quiet: OnQuietOption = "",
    where: Where = HERE,
) -> None:
    """Add a peer, or replace its entry: rapport peers add ana mail:ana@example.org"""
    settings = settings_of(addresses, delivery, fallback, fallback_after, zone, quiet, on_quiet)

    async def local(node: Node) -> Any:
        warnings = await node.people.put_peer(name, settings, by=BY)
        return {"entry": node.directory.show_peer(name), "warnings": warnings}

    access = NodeAccess(where)
    body = msgspec.json.encode(settings)
    report_change(
        access.ask(lambda remote: remote.put(f"/peers/{in_path(name)}", body), local, record=True)
    )


@app.command
def change(
    name: str,
    *,
    address: Annotated[
        tuple[str, ...], Parameter(help="Their addresses from now on; may be repeated.")
    ] = (),
    delivery: DeliveryOption = "",
    fallback: FallbackOption = False,
    fallback_after: FallbackAfterOption = "",
    zone: ZoneOption = "",
    quiet: QuietOption = "",
    on_quiet: OnQuietOption = "",
    without: Annotated[
        tuple[str, ...], Parameter(help="A setting to take away, such as quiet.")
    ] = (),
    where: Where = HERE,
) -> None:
    """Change some settings of a peer; the others stay."""
    settings = settings_of(address, delivery, fallback, fallback_after, zone, quiet, on_quiet)
    settings |= {key.replace("-", "_"): None for key in without}
    if not settings:
        raise InvalidInput("say what to change", code="cli.wrong_use", hint="such as --quiet ...")

    async def local(node: Node) -> Any:
        warnings = await node.people.change_peer(name, settings, by=BY)
        return {"entry": node.directory.show_peer(name), "warnings": warnings}

    access = NodeAccess(where)
    body = msgspec.json.encode(settings)
    report_change(
        access.ask(lambda remote: remote.patch(f"/peers/{in_path(name)}", body), local, record=True)
    )


@app.command
def remove(
    name: str,
    *,
    collective: Annotated[bool, Parameter(negative="", help="A collective of that name.")] = False,
    where: Where = HERE,
) -> None:
    """Remove a peer, or a collective; its members stay."""

    async def local(node: Node) -> Any:
        gone = node.people.remove_collective if collective else node.people.remove_peer
        await gone(name, by=BY)

    kind = "collectives" if collective else "peers"
    access = NodeAccess(where)
    access.ask(lambda remote: remote.delete(f"/{kind}/{in_path(name)}"), local, record=True)
    print_note(f"{name} was removed")


@app.command
def make(
    collective: str,
    *members: str,
    delivery: Annotated[
        str, Parameter(help="to-any (the default), to-all-members, or such as 'at-least 3'.")
    ] = "to-any",
    where: Where = HERE,
) -> None:
    """Make a group, or replace its entry; members that are named replace the former ones."""
    settings: dict[str, Any] = {"delivery": delivery}
    named = list(members) or None

    async def local(node: Node) -> Any:
        warnings = await node.people.put_collective(collective, settings, named, by=BY)
        return {"entry": node.directory.show_collective(collective), "warnings": warnings}

    body = msgspec.json.encode(settings | ({"members": named} if named else {}))
    path = f"/collectives/{in_path(collective)}"
    access = NodeAccess(where)
    report_change(access.ask(lambda remote: remote.put(path, body), local, record=True))


@app.command(name="members")
def list_members(
    collective: str,
    *,
    where: Where = HERE,
    json: JsonOption = False,
) -> None:
    """List the members of a group."""
    found = pages(NodeAccess(where), f"collectives/{in_path(collective)}/members")
    if json:
        write_json(found)
    else:
        write_table(collective, ("member",), [(name,) for name in found])


@app.command
def duty(
    collective: str,
    *,
    at: Annotated[str, Parameter(help="Another time than now, such as 2026-12-24T22:00.")] = "",
    where: Where = HERE,
    json: JsonOption = False,
) -> None:
    """Show who of a group is on duty, and when that changes."""
    from rapport.communication.duty import duty_plan

    wanted = moment(at)

    async def local(node: Node) -> Any:
        since = node.clock.now_ms() if wanted is None else wanted
        roster = node.directory.roster_of(collective)
        return msgspec.to_builtins(duty_plan(collective, roster, since, since + _DAY_MS))

    query = "" if wanted is None else "?" + urlencode({"from": format_time(wanted)})
    path = f"/collectives/{in_path(collective)}/duty{query}"
    found = NodeAccess(where).ask(lambda remote: remote.get(path), local, record=False)
    if json:
        write_json(found)
        return
    print_line(", ".join(found["on_duty"]) or "nobody: messages go to all members")
    change = found["next_change"]
    print_note(f"until {format_time(change)}" if change else "this does not change")


@app.command
def join(
    collective: str,
    *peers: str,
    where: Where = HERE,
) -> None:
    """Let peers join a collective."""
    moved = move(NodeAccess(where), collective, {"join": list(peers)})
    print_note(f"{moved['joined']} joined {collective}")


@app.command
def leave(
    collective: str,
    *peers: str,
    where: Where = HERE,
) -> None:
    """Let peers leave a collective."""
    moved = move(NodeAccess(where), collective, {"leave": list(peers)})
    print_note(f"{moved['left']} left {collective}")


_BY = "command line"


@app.command
def password(
    name: Annotated[str, Parameter(help="The peer.")],
    *,
    remove: Annotated[bool, Parameter(help="It can log in no more.")] = False,
    where: Where = HERE,
) -> None:
    """Set the password a peer logs in with, typed or from standard input; ends its sessions."""
    given = None if remove else read_password(name)
    ended = change_password(NodeAccess(where), name, given)
    done = "has no password any more" if remove else "has a new password"
    print_note(f"{name} {done}; {ended} sessions ended")


def change_password(access: NodeAccess, name: str, given: str | None) -> int:
    """Sets it, or removes it when it is None, at the running node or at the site's own; returns how
    many sessions ended.
    """
    path = f"/peers/{quote(name, safe='')}/password"

    def ask(remote: Remote) -> Any:
        if given is None:
            return remote.delete(path)
        return remote.post(path, msgspec.json.encode({"password": given}))

    async def local(node: Node) -> Any:
        if given is None:
            return {"ended": await node.logins.remove_password(name, by=_BY)}
        return {"ended": await node.logins.set_password(name, given, by=_BY)}

    return int(access.ask(ask, local, record=False)["ended"])


def read_password(name: str) -> str:
    """The first line of piped input; else a password that is typed twice, unseen."""
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    first = getpass.getpass(f"New password of {name}: ")
    if getpass.getpass("Again: ") != first:
        raise InvalidInput(
            "the two are not the same",
            code="password.not_repeated",
            hint="nothing was changed; run it again and type the same twice",
        )
    return first


_LONGEST_DAYS = 365


@app.command(name="inbox-link")
def inbox_link(
    name: Annotated[str, Parameter(help="The peer.")],
    *,
    days: Annotated[int, Parameter(help="How long it opens the inbox.")] = 30,
    where: Where = HERE,
    json: JsonOption = False,
) -> None:
    """Make a link that opens a peer's inbox without a password; prints it. Who has it reads and
    answers as that person: give it to nobody else. The node has to run.
    """
    if not 1 <= days <= _LONGEST_DAYS:
        raise InvalidInput(
            f"--days is from 1 to {_LONGEST_DAYS}",
            code="cli.wrong_use",
            hint="leave it out for 30; a new link can be made at any time",
        )
    remote = where.remote()
    made = remote.post(f"/peers/{in_path(name)}/inbox-link?days={days}", b"")
    if json:
        write_json(made)
        return
    print(made["link"])
    print_note(f"opens the inbox of {name} until {made['expires']}, for everybody who has it")
