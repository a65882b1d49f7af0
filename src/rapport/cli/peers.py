"""`rapport peers`: people and groups, their addresses, passwords and inbox links. [CO-3, CO-11,
CO-16, UX-3]

Commands change the running node, or the site's store without one. Entries of the site file are
changed there. A password is typed or piped in, never an argument: other processes see arguments,
and the shell's history keeps them.
"""

from __future__ import annotations

import getpass
import sys
from dataclasses import asdict, dataclass
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import msgspec
from cyclopts import App, Parameter

from rapport.cli.arguments import JsonOption, moment
from rapport.cli.hints import wrong_use
from rapport.cli.node_api import HERE, NodeAccess, Remote, Where
from rapport.cli.output import print_line, print_note, show_problem, write_json, write_table
from rapport.core.errors import InvalidInput, Problem
from rapport.core.times import format_time

_PAGE = 1_000


def move(where: Where, collective: str, wanted: dict[str, list[str]]) -> Any:
    """Lets peers join and leave; gives how many did."""
    if not any(wanted.values()):
        (way, *_) = wanted
        raise wrong_use(
            "name at least one peer",
            f"rapport peers {way} {collective} PEER ...; rapport peers list shows all",
        )
    path = f"/collectives/{in_path(collective)}/members"
    return NodeAccess(where).change("POST", path, msgspec.json.encode(wanted))


def pages(where: Where, what: str) -> list[Any]:
    """All pages of a listing: entries of peers or collectives, or names of members."""

    def read(remote: Remote) -> list[Any]:
        found = page = remote.get(f"/{what}?limit={_PAGE}")
        while len(page) == _PAGE:
            last = page[-1] if isinstance(page[-1], str) else page[-1]["name"]
            page = remote.get(f"/{what}?{urlencode({'after': last, 'limit': _PAGE})}")
            found = found + page
        return list(found)

    entries: list[Any] = NodeAccess(where).ask(read, record=False)
    return entries


@Parameter(name="*")
@dataclass(frozen=True)
class PeerSettings:
    """The keys of a person in the site file, besides addresses."""

    delivery: Annotated[
        str, Parameter(help="to-all-channels, at-least-one (the default) or preferred.")
    ] = ""
    fallback: Annotated[
        bool, Parameter(negative="", help="With preferred: the next address when the first failed.")
    ] = False
    fallback_after: Annotated[
        str,
        Parameter(
            help="With fallback: how long one address has, such as 1min; otherwise 2min, "
            "30s if urgent."
        ),
    ] = ""
    zone: Annotated[str, Parameter(help="Their time zone, such as Europe/Vienna.")] = ""
    quiet: Annotated[str, Parameter(help="Their quiet hours, such as 22:00-07:00.")] = ""
    on_quiet: Annotated[str, Parameter(help="hold (the default) or refuse.")] = ""

    def given(self, addresses: tuple[str, ...]) -> dict[str, Any]:
        keys = {"addresses": list(addresses)} | asdict(self)
        return {key: value for key, value in keys.items() if value}


NO_SETTINGS = PeerSettings()


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
    settings = dict(entry["settings"])
    addresses = settings.pop("addresses", [])
    by = f"{format_time(entry['time'])} by {entry['by']}" if entry["time"] else ""
    facts = [f"{key} = {value}" for key, value in settings.items()]
    facts += [f"{one['address']}: circuit {one['state']}" for one in entry.get("circuits", ())]
    return (entry["name"], entry["origin"], " ".join(addresses), ", ".join(facts), by)


app = App(name="peers", help="People, devices and services to be reached; collectives of them.")


@app.command(name="list")
def list_peers(
    *,
    collectives: Annotated[bool, Parameter(negative="", help="Collectives instead.")] = False,
    where: Where = HERE,
    json: JsonOption = False,
) -> None:
    """List peers with their addresses."""
    what = "collectives" if collectives else "peers"
    found = pages(where, what)
    if json:
        write_json(found)
        return
    columns = ("name", "declared by", "addresses", "settings", "changed")
    write_table(what, columns, [row_of(one) for one in found])


@app.command
def show(name: str, *, where: Where = HERE) -> None:
    """Show a peer and the collectives it is in."""
    write_json(NodeAccess(where).get(f"/peers/{in_path(name)}"))


@app.command
def add(
    name: str, *addresses: str, settings: PeerSettings = NO_SETTINGS, where: Where = HERE
) -> None:
    """Add a peer, or replace its entry: rapport peers add ana mail:ana@example.org"""
    body = msgspec.json.encode(settings.given(addresses))
    report_change(NodeAccess(where).change("PUT", f"/peers/{in_path(name)}", body))


@app.command
def change(
    name: str,
    *,
    address: Annotated[
        tuple[str, ...], Parameter(help="Their addresses from now on; may be repeated.")
    ] = (),
    settings: PeerSettings = NO_SETTINGS,
    without: Annotated[
        tuple[str, ...], Parameter(help="A setting to take away, such as quiet.")
    ] = (),
    where: Where = HERE,
) -> None:
    """Change some settings of a peer; the others stay."""
    wanted = settings.given(address) | {key.replace("-", "_"): None for key in without}
    if not wanted:
        raise wrong_use("say what to change", "such as --quiet ...")
    body = msgspec.json.encode(wanted)
    report_change(NodeAccess(where).change("PATCH", f"/peers/{in_path(name)}", body))


@app.command
def remove(
    name: str,
    *,
    collective: Annotated[bool, Parameter(negative="", help="A collective of that name.")] = False,
    where: Where = HERE,
) -> None:
    """Remove a peer, or a collective; its members stay."""
    kind = "collectives" if collective else "peers"
    NodeAccess(where).change("DELETE", f"/{kind}/{in_path(name)}")
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
    body = msgspec.json.encode(settings | ({"members": list(members)} if members else {}))
    report_change(NodeAccess(where).change("PUT", f"/collectives/{in_path(collective)}", body))


@app.command(name="members")
def list_members(collective: str, *, where: Where = HERE, json: JsonOption = False) -> None:
    """List the members of a group."""
    found = pages(where, f"collectives/{in_path(collective)}/members")
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
    wanted = moment(at)
    query = "" if wanted is None else "?" + urlencode({"from": format_time(wanted)})
    found = NodeAccess(where).get(f"/collectives/{in_path(collective)}/duty{query}")
    if json:
        write_json(found)
        return
    print_line(", ".join(found["on_duty"]) or "nobody: messages go to all members")
    change = found["next_change"]
    print_note(f"until {format_time(change)}" if change else "this does not change")


@app.command
def join(collective: str, *peers: str, where: Where = HERE) -> None:
    """Let peers join a collective."""
    moved = move(where, collective, {"join": list(peers)})
    print_note(f"{moved['joined']} joined {collective}")


@app.command
def leave(collective: str, *peers: str, where: Where = HERE) -> None:
    """Let peers leave a collective."""
    moved = move(where, collective, {"leave": list(peers)})
    print_note(f"{moved['left']} left {collective}")


@app.command
def password(
    name: Annotated[str, Parameter(help="The peer.")],
    *,
    remove: Annotated[bool, Parameter(help="It can log in no more.")] = False,
    where: Where = HERE,
) -> None:
    """Set the password a peer logs in with, typed or from standard input; ends its sessions."""
    given = None if remove else read_password(name)
    ended = change_password(where, name, given)
    done = "has no password any more" if remove else "has a new password"
    print_note(f"{name} {done}; {ended} sessions ended")


def change_password(where: Where, name: str, given: str | None) -> int:
    """Sets it, or removes it when it is None, at the running node or at the site's own; returns how
    many sessions ended.
    """
    path = f"/peers/{quote(name, safe='')}/password"

    def ask(remote: Remote) -> Any:
        if given is None:
            return remote.delete(path)
        return remote.post(path, msgspec.json.encode({"password": given}))

    return int(NodeAccess(where).ask(ask, record=False)["ended"])


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
        raise wrong_use(
            f"--days is from 1 to {_LONGEST_DAYS}",
            "leave it out for 30; a new link can be made at any time",
        )
    made = where.remote().post(f"/peers/{in_path(name)}/inbox-link?days={days}", b"")
    if json:
        write_json(made)
        return
    print(made["link"])
    print_note(f"opens the inbox of {name} until {made['expires']}, for everybody who has it")
