"""Peers, collectives, passwords and sessions. [CO-3, CO-11]

Reading needs the right to read `log`, which names the same people; changes need the role editor,
passwords the right to change the node. Entries of the site file are changed there.

A wrong name, a wrong password and a peer without one get the same response in the same time.
Logging in needs no other identity: the password is the proof.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from litestar import get, patch, put
from litestar.params import FromPath, FromQuery, QueryParameter

from rapport.communication.directory import DirectoryEntry
from rapport.communication.duty import DutyPlan, duty_plan
from rapport.communication.people_import import PeopleImport, read_people_table
from rapport.communication.sessions.sessions import OpenedSession
from rapport.core.errors import InvalidInput, NotAuthenticated, Problem
from rapport.core.json_objects import ObjectDecoder
from rapport.core.times import format_time, parse_time
from rapport.kernel.tasks import run_blocking
from rapport.web.endpoint import (
    HttpRequest,
    NodeDependency,
    Reply,
    delete,
    json_response,
    post,
    require_admin,
    require_role,
    require_unfiltered,
)
from rapport.web.endpoint_docs import CSV, JSON, JSON_OBJECT, TEXT, documented
from rapport.web.security import OPEN, RequestGuard

Limit = Annotated[int, QueryParameter(ge=1, le=10_000)]
From = Annotated[str, QueryParameter(name="from")]
To = Annotated[str, QueryParameter(name="to")]
_TWO_WEEKS_MS = 14 * 86_400_000


class ChangedEntry(msgspec.Struct, frozen=True):
    """What a change gives back: the entry as it is now, and what the site file would warn of."""

    entry: DirectoryEntry
    warnings: list[Problem] = []


class MembershipChange(msgspec.Struct, frozen=True):
    """How many came and went."""

    joined: int = 0
    left: int = 0


class MembersRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that changes the members of a collective."""

    join: list[str] = []
    leave: list[str] = []


_FAULT, _CODE = "the body cannot be read", "people.bad_body"
_READ_SETTINGS = ObjectDecoder(
    dict[str, Any],
    fault=_FAULT,
    code=_CODE,
    hint='write JSON with the keys of the site file, such as {"addresses": ["inbox:"]}',
)
_READ_MEMBERS = ObjectDecoder(
    MembersRequest, fault=_FAULT, code=_CODE, hint='such as {"join": ["ana"], "leave": ["ben"]}'
)


@get("/peers", opt=documented(answer=DirectoryEntry, is_list=True))
async def list_peers(
    request: HttpRequest,
    node: NodeDependency,
    search: FromQuery[str] = "",
    after: FromQuery[str] = "",
    limit: Limit = 1000,
) -> Reply:
    """Peers by name with their collectives, of the site file and of the store; secrets of addresses
    are not shown. `search`: words of names, addresses and collectives.
    """
    require_unfiltered(request, node, "log")
    entries = await run_blocking(
        lambda: node.directory.find_peers(search, after=after, limit=limit)
    )
    return json_response(_with_circuits(node, entries))


@get("/peers/{peer:str}", opt=documented(answer=DirectoryEntry))
async def show_peer(request: HttpRequest, peer: FromPath[str], node: NodeDependency) -> Reply:
    """One peer, the collectives it is in, and addresses where calls fail now."""
    require_unfiltered(request, node, "log")
    entry = await run_blocking(lambda: node.directory.show_peer(peer))
    return json_response(_with_circuits(node, [entry])[0])


@put(
    "/peers/{peer:str}",
    opt=documented(
        bodies={JSON: JSON_OBJECT},
        answer=ChangedEntry,
        example={"addresses": ["inbox:"], "quiet": "22:00-07:00", "zone": "Europe/Vienna"},
    ),
)
async def put_peer(request: HttpRequest, peer: FromPath[str], node: NodeDependency) -> Reply:
    """Adds a peer or replaces its settings, which are those of the site file's [peers.NAME]."""
    by = require_role(request, node, "editor")
    settings = _READ_SETTINGS.decode(await request.body())
    warnings = await node.people.put_peer(peer, settings, by=by)
    return json_response(
        ChangedEntry(await run_blocking(lambda: node.directory.show_peer(peer)), warnings)
    )


@patch(
    "/peers/{peer:str}",
    opt=documented(
        bodies={JSON: JSON_OBJECT}, example={"delivery": "preferred"}, answer=ChangedEntry
    ),
)
async def change_peer(request: HttpRequest, peer: FromPath[str], node: NodeDependency) -> Reply:
    """Changes some settings of a peer; null takes one away."""
    by = require_role(request, node, "editor")
    settings = _READ_SETTINGS.decode(await request.body())
    warnings = await node.people.change_peer(peer, settings, by=by)
    return json_response(
        ChangedEntry(await run_blocking(lambda: node.directory.show_peer(peer)), warnings)
    )


@delete("/peers/{peer:str}")
async def remove_peer(request: HttpRequest, peer: FromPath[str], node: NodeDependency) -> Reply:
    """Removes a peer, also from every collective."""
    await node.people.remove_peer(peer, by=require_role(request, node, "editor"))
    return json_response({"removed": peer})


@get("/collectives", opt=documented(answer=DirectoryEntry, is_list=True))
async def list_collectives(
    request: HttpRequest, node: NodeDependency, after: FromQuery[str] = "", limit: Limit = 1000
) -> Reply:
    """Collectives by name, without their members."""
    require_unfiltered(request, node, "log")
    return json_response(
        await run_blocking(lambda: node.directory.collectives(after=after, limit=limit))
    )


@get("/collectives/{collective:str}", opt=documented(answer=DirectoryEntry))
async def show_collective(
    request: HttpRequest, collective: FromPath[str], node: NodeDependency
) -> Reply:
    """One collective without its members."""
    require_unfiltered(request, node, "log")
    return json_response(await run_blocking(lambda: node.directory.show_collective(collective)))


@get("/collectives/{collective:str}/members")
async def list_members(
    request: HttpRequest,
    collective: FromPath[str],
    node: NodeDependency,
    after: FromQuery[str] = "",
    limit: Limit = 1000,
) -> Reply:
    """Names of members that come after a name, sorted."""
    require_unfiltered(request, node, "log")

    def members() -> list[str]:
        node.directory.show_collective(collective)
        return node.directory.member_names(collective, after=after, limit=limit)

    return json_response(await run_blocking(members))


@get("/collectives/{collective:str}/duty", opt=documented(answer=DutyPlan))
async def show_duty(
    request: HttpRequest,
    collective: FromPath[str],
    node: NodeDependency,
    begin: From = "",
    end: To = "",
) -> Reply:
    """Who of a collective with a roster is on duty at one time and until another, by default two
    weeks from now.
    """
    require_unfiltered(request, node, "log")
    since = parse_time(begin) if begin else node.clock.now_ms()
    until = parse_time(end) if end else since + _TWO_WEEKS_MS
    roster = await run_blocking(lambda: node.directory.roster_of(collective))
    return json_response(await run_blocking(lambda: duty_plan(collective, roster, since, until)))


@put(
    "/collectives/{collective:str}",
    opt=documented(
        bodies={JSON: JSON_OBJECT},
        answer=ChangedEntry,
        example={"delivery": "at-least 2", "members": ["ana", "ben"]},
    ),
)
async def put_collective(
    request: HttpRequest, collective: FromPath[str], node: NodeDependency
) -> Reply:
    """Adds a collective or replaces its settings, and its members when they are given; the body is
    the site file's [collectives.NAME].
    """
    by = require_role(request, node, "editor")
    settings = _READ_SETTINGS.decode(await request.body())
    members = settings.pop("members", None)
    if members is not None and not _are_names(members):
        raise InvalidInput("members are a list of names", code="people.bad_members")
    warnings = await node.people.put_collective(collective, settings, members, by=by)
    shown = await run_blocking(lambda: node.directory.show_collective(collective))
    return json_response(ChangedEntry(shown, warnings))


@delete("/collectives/{collective:str}")
async def remove_collective(
    request: HttpRequest, collective: FromPath[str], node: NodeDependency
) -> Reply:
    """Removes a collective; its members stay peers."""
    await node.people.remove_collective(collective, by=require_role(request, node, "editor"))
    return json_response({"removed": collective})


@post(
    "/collectives/{collective:str}/members",
    opt=documented(
        bodies={JSON: MembersRequest},
        example={"join": ["ana"], "leave": []},
        answer=MembershipChange,
    ),
)
async def move_members(
    request: HttpRequest, collective: FromPath[str], node: NodeDependency
) -> Reply:
    """Lets peers join and leave a collective; of the site file's only those leave that joined."""
    by = require_role(request, node, "editor")
    wanted = _READ_MEMBERS.decode(await request.body())
    joined = await node.people.join(collective, wanted.join, by=by)
    return json_response(
        MembershipChange(joined, await node.people.leave(collective, wanted.leave, by=by))
    )


@post(
    "/peers/import",
    opt=documented(
        bodies={CSV: TEXT},
        example="name,mail,groups\nana,ana@example.org,guards\n",
        answer=PeopleImport,
    ),
)
async def import_peers(
    request: HttpRequest, node: NodeDependency, apply: FromQuery[bool] = False
) -> Reply:
    """What a table of people (CSV with a header) would add and change, row by row with its faults;
    `apply` does it for the rows without fault.
    """
    by = require_role(request, node, "editor")
    table = read_people_table(await request.body())
    preview = await run_blocking(lambda: node.people.preview_import(table))
    if apply:
        preview = await node.people.import_people(preview, by=by)
    return json_response(preview)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _with_circuits(node: NodeDependency, entries: list[DirectoryEntry]) -> list[DirectoryEntry]:
    """The entries with the circuit breakers of the running node."""
    circuits = node.outputs.circuits()
    return [
        msgspec.structs.replace(entry, circuits=circuits[entry.name])
        if entry.name in circuits
        else entry
        for entry in entries
    ]


SCHEME = "session"
"""`Authorization: Session TOKEN` shows a peer's token."""
_MOST_BYTES = 16_384

T = TypeVar("T")


class LoginRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a login: a password, or the token that is to be renewed."""

    peer: str
    password: str = ""
    token: str = ""

    def __repr__(self) -> str:
        return "LoginWanted()"


class SessionOpened(msgspec.Struct, frozen=True, kw_only=True):
    """What a peer gets: its token, until when it is good, and what it seals messages with."""

    peer: str
    token: str
    expires: str
    session: str
    seal_key: str

    def __repr__(self) -> str:
        return f"SessionOpened(peer={self.peer!r})"


class NewPassword(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that sets a password."""

    password: str

    def __repr__(self) -> str:
        return "PasswordWanted()"


_READ_LOGIN = ObjectDecoder(
    LoginRequest,
    fault="the body cannot be read",
    code="auth.bad_request",
    hint='send JSON with "peer", "password", "token"',
    is_secret=True,
)
_READ_PASSWORD = ObjectDecoder(
    NewPassword,
    fault="the body cannot be read",
    code="auth.bad_request",
    hint='send JSON with "password"',
    is_secret=True,
)


class SessionsEnded(msgspec.Struct, frozen=True):
    """How many sessions are over."""

    ended: int


@post(
    "/sessions",
    opt=documented(
        bodies={JSON: LoginRequest},
        example={"peer": "ana", "password": "..."},
        statuses=("201",),
        is_open=True,
    ),
    status_code=201,
)
async def open_session(request: HttpRequest, node: NodeDependency) -> Reply:
    """Opens a session for a peer that shows its password, or renews the one of a good token.

    401 when the name or the password is wrong, 429 after too many attempts, 503 when it cannot be
    found out.
    """
    wanted = await _read(request, _READ_LOGIN)
    origin = origin_of(request)
    logins = node.authenticating
    if wanted.password:
        opened = await logins.log_in(wanted.peer, wanted.password, origin=origin)
    else:
        opened = await logins.renew(wanted.token, peer=wanted.peer, origin=origin)
    return json_response(_shown(opened), status=201)


@delete("/sessions", opt={OPEN: True})
async def close_session(request: HttpRequest, node: NodeDependency) -> Reply:
    """Ends the session of the token in `Authorization: Session TOKEN`; in force at once."""
    if not await node.authenticating.log_out(shown_token(request), origin=origin_of(request)):
        raise NotAuthenticated(
            "there is no such session",
            code="session.invalid",
            hint="send the header Authorization: Session TOKEN",
        )
    return json_response(SessionsEnded(1))


@post(
    "/peers/{peer:str}/password",
    opt=documented(bodies={JSON: NewPassword}, example={"password": "..."}),
)
async def set_password(request: HttpRequest, peer: FromPath[str], node: NodeDependency) -> Reply:
    """Sets a peer's password and ends all its sessions; for administrators."""
    by = require_admin(request, node)
    wanted = await _read(request, _READ_PASSWORD)
    return json_response(
        SessionsEnded(await node.logins.set_password(peer, wanted.password, by=by))
    )


@delete("/peers/{peer:str}/password")
async def remove_password(request: HttpRequest, peer: FromPath[str], node: NodeDependency) -> Reply:
    """Takes a peer's password away and ends all its sessions; for administrators."""
    by = require_admin(request, node)
    return json_response(SessionsEnded(await node.logins.remove_password(peer, by=by)))


def shown_token(request: HttpRequest) -> str:
    """The session token in the header `Authorization: Session TOKEN`; empty when there is none."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == SCHEME else ""


def origin_of(request: HttpRequest) -> str:
    """Where a login comes from, for the limit on attempts; through a proxy that the site trusts it
    is the caller that the proxy names.
    """
    address = request.client.host if request.client else ""
    guard: RequestGuard = request.app.guards[0]  # type: ignore[assignment]
    return guard.proxies.caller(request.headers, address)


async def _read(request: HttpRequest, decoder: ObjectDecoder[T]) -> T:
    body = await request.body()
    if len(body) > _MOST_BYTES:
        raise InvalidInput("the body is too long", code="auth.bad_request")
    return decoder.decode(body)


def _shown(opened: OpenedSession) -> SessionOpened:
    return SessionOpened(
        peer=opened.peer,
        token=opened.token,
        expires=format_time(opened.expires_ms),
        session=opened.session,
        seal_key=opened.seal_key,
    )
