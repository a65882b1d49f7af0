"""The console: its page and files, logging in and out. [CN-1, CN-3]

The page is built from `ui/` (see docs/console/README.md) and shipped in `console/`; every address
below `/console` gives the same page, which reads the API. Names of its files hold a digest of their
contents, so browsers keep them for ever.
"""

from __future__ import annotations

import gzip
from functools import cache
from html import escape
from pathlib import Path
from typing import Literal

import msgspec
from litestar import Response, get
from litestar.datastructures import Cookie
from litestar.params import FromPath

from rapport import __version__
from rapport.channel.access.identities import LOCAL, NOBODY, Role
from rapport.core.errors import InvalidInput, NotAllowed, NotAuthenticated, UnknownName
from rapport.core.json_objects import ObjectDecoder
from rapport.web.api.directory import origin_of
from rapport.web.browser_sessions import LASTS_MS, ConsoleSessions, Login
from rapport.web.endpoint import (
    HttpRequest,
    NodeDependency,
    Reply,
    delete,
    identity_of,
    json_response,
    post,
)
from rapport.web.endpoint_docs import JSON, OPEN_PAGE, PAGE_OR_REDIRECT, TEXT, documented
from rapport.web.inbox import COOKIE as INBOX_COOKIE
from rapport.web.inbox_page import inbox_path
from rapport.web.request_limits import ANY_QUERY
from rapport.web.security import OPEN

PAGE = Path(__file__).parent / "console"
_KINDS = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
}
_FOR_EVER = {"Cache-Control": "public, max-age=31536000, immutable"}
_LEAST_COMPRESSED = 512
_TITLE = "<title>Rapport</title>"


class LoginForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a login: a person with a password, or an access token."""

    person: str = ""
    password: str = ""
    token: str = ""

    def __repr__(self) -> str:
        return "LoginForm()"


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """Who looks at the console, and what they may do."""

    site: str
    version: str
    identity: str = ""
    """Empty: nobody is logged in."""
    role: Role | Literal[""] = ""
    by_login: bool = True
    """False: the node is open to everybody on this machine, and nobody logs in or out."""
    inbox: str = ""
    """The path of the person's inbox; empty without one."""


_READ_LOGIN = ObjectDecoder(
    LoginForm,
    fault="the body cannot be read",
    code="auth.bad_request",
    hint='send JSON with "person" and "password", or "token"',
    is_secret=True,
)


@get(["/", "/console"], opt=OPEN_PAGE)
async def show_console(node: NodeDependency) -> Response[str]:
    """The console; the same page at every address below /console."""
    return _page(node)


@get("/console/{path:path}", opt={OPEN: True, ANY_QUERY: True}, include_in_schema=False)
async def show_console_page(node: NodeDependency) -> Response[str]:
    """The console at one of its addresses."""
    return _page(node)


def _page(node: NodeDependency) -> Response[str]:
    page = _file("index.html").decode().replace(_TITLE, f"<title>{escape(node.site.name)}</title>")
    return Response(page, media_type="text/html")


@get(
    "/console-files/{name:str}",
    opt=documented(
        answer=TEXT,
        media=("text/css; charset=utf-8", "text/javascript; charset=utf-8", "image/svg+xml"),
        is_open=True,
        any_query=True,
    ),
)
async def give_file(request: HttpRequest, name: FromPath[str]) -> Reply:
    """A file of the console's page."""
    kind = _KINDS.get(Path(name).suffix)
    if kind is None or name not in _names():
        raise UnknownName("file", name, [], code="http.not_found")
    body, headers = _file(name), dict(_FOR_EVER)
    if len(body) >= _LEAST_COMPRESSED and "gzip" in request.headers.get("accept-encoding", ""):
        body = _compressed(name)
        headers |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return Response(body, media_type=kind, headers=headers)


@get("/session", opt=documented(answer=SessionView, is_open=True))
async def show_session(request: HttpRequest, node: NodeDependency) -> Reply:
    """Who is logged in, and with which role."""
    sessions: ConsoleSessions = request.app.state.console
    is_open = sessions.is_open
    identity = identity_of(request)
    if identity == NOBODY:
        identity = await sessions.identify(request.cookies) or ""
    if is_open:
        identity = LOCAL
    return json_response(
        SessionView(
            site=node.site.name,
            version=__version__,
            identity=identity,
            role=node.rights.role_of(identity),
            by_login=not is_open,
            inbox=inbox_path(identity) if sessions.is_person(request.cookies) else "",
        )
    )


@post(
    "/session",
    opt=documented(
        bodies={JSON: LoginForm},
        example={"person": "ana", "password": "..."},
        answer=SessionView,
        is_open=True,
    ),
)
async def log_in(request: HttpRequest, node: NodeDependency) -> Reply:
    """Opens a session of the browser: a cookie that scripts cannot read. 401 when the password or
    token is wrong, 403 for a person without a role.
    """
    if request.headers.get("origin") == "null":  # a frame of anybody's page
        raise NotAllowed("logging in is for pages of this node", code="access.origin")
    form = _READ_LOGIN.decode(await request.body())
    sessions: ConsoleSessions = request.app.state.console
    if form.token:
        login = sessions.log_in_by_token(form.token)
    elif form.person and form.password:
        login = await sessions.log_in(form.person, form.password, origin_of(request))
    else:
        raise InvalidInput("the name or the password is missing", code="auth.bad_request")
    return _logged_in(node, login)


@delete("/session", opt=documented(answer=SessionView, is_open=True))
async def log_out(request: HttpRequest, node: NodeDependency) -> Reply:
    """Ends the session of the browser."""
    sessions: ConsoleSessions = request.app.state.console
    cookie = await sessions.log_out(request.cookies, origin_of(request))
    answer = json_response(SessionView(site=node.site.name, version=__version__))
    answer.headers["Set-Cookie"] = cookie
    return answer


@get("/login/{code:str}", opt=PAGE_OR_REDIRECT, status_code=303)
async def use_link(request: HttpRequest, code: FromPath[str]) -> Reply:
    """Logs in by the one-time link that `rapport up` prints, and leads to the console."""
    sessions: ConsoleSessions = request.app.state.console
    try:
        login = sessions.log_in_by_link(code)
    except NotAuthenticated:
        return _to("/console/login?why=link")
    return _to("/console/", login.cookie)


def _logged_in(node: NodeDependency, login: Login) -> Reply:
    answer = json_response(
        SessionView(
            site=node.site.name,
            version=__version__,
            identity=login.identity,
            role=node.rights.role_of(login.identity),
            inbox=inbox_path(login.identity) if login.person_token else "",
        )
    )
    answer.headers["Set-Cookie"] = login.cookie
    if login.person_token:
        answer.set_cookie(
            Cookie(
                INBOX_COOKIE,
                path="/inbox",
                value=login.person_token,
                max_age=LASTS_MS // 1_000,
                secure=node.public_url.startswith("https:"),
                httponly=True,
                samesite="strict",
            )
        )
    return answer


def _to(path: str, cookie: str = "") -> Reply:
    headers = {"Location": path} | ({"Set-Cookie": cookie} if cookie else {})
    return Response(b"", status_code=303, media_type="text/html", headers=headers)


@cache
def _names() -> frozenset[str]:
    return frozenset(path.name for path in PAGE.iterdir() if path.is_file())


@cache
def _file(name: str) -> bytes:
    return (PAGE / name).read_bytes()


@cache
def _compressed(name: str) -> bytes:
    return gzip.compress(_file(name), 9, mtime=0)
