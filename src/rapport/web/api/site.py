"""The site: its version and disk use, problems, identities, files, log and health. [CN-14]

Version, disk use and figures are for everybody with any right; files and problems need the role of
an editor; identities, log and doctor, and the site file itself, which may contain addresses, need
the right to change the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Annotated, Literal

import msgspec
from litestar import get
from litestar.params import FromQuery, QueryParameter

from rapport import __version__
from rapport.channel.access.identities import LOCAL, Role
from rapport.core.errors import Problem
from rapport.kernel.tasks import run_blocking
from rapport.node.data_usage import DataUsage, data_usage
from rapport.node.log_tail import MOST_ENTRIES, LogEntry, log_tail
from rapport.node.node import Node
from rapport.site.doctor import Finding, examine_installation, examine_site
from rapport.site.site import check_site
from rapport.site.visible_files import (
    SITE_FILE,
    SiteFile,
    SiteFileText,
    read_visible_file,
    visible_files,
)
from rapport.web.endpoint import (
    HttpRequest,
    NodeDependency,
    Reply,
    json_response,
    require_admin,
    require_any_right,
    require_role,
)
from rapport.web.endpoint_docs import documented

Lines = Annotated[int, QueryParameter(ge=1, le=MOST_ENTRIES)]
LogLevel = Literal["debug", "info", "warning", "error", "critical"]


class SiteFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The most important metrics; all of them are in `GET /metrics`."""

    readings: int
    """In the channel of canonical events."""
    quarantined: int
    behind: int
    """Events that wait for the policies."""
    busy: float
    """Share of the last minute spent on policies."""
    waiting: int
    """Deliveries without an outcome yet."""
    faults: int


class SiteStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The site at a glance."""

    name: str
    node: str
    version: str
    figures: SiteFigures
    usage: list[DataUsage]


class SiteCheck(msgspec.Struct, frozen=True):
    """What `rapport check` says of the files as they are now."""

    problems: list[Problem]


class IdentityRights(msgspec.Struct, frozen=True, kw_only=True):
    """An identity of the site; its tokens are counted, never shown."""

    name: str
    role: Role | Literal[""]
    admin: bool
    publish: list[str]
    subscribe: list[str]
    take: list[str]
    rate: int
    """Events per second; 0: no limit."""
    tokens: int
    is_local: bool
    """Callers of this machine without a token."""


class SiteAccess(msgspec.Struct, frozen=True):
    """Who may do what."""

    identities: list[IdentityRights]
    is_closed: bool
    """Whether a token or a password is needed."""


class SiteFileList(msgspec.Struct, frozen=True):
    """The files that may be read here."""

    files: list[SiteFile]


class SiteLog(msgspec.Struct, frozen=True):
    """The newest entries of the node's log, oldest first."""

    entries: list[LogEntry]


class DoctorReport(msgspec.Struct, frozen=True):
    """What `rapport doctor --site` says."""

    findings: list[Finding]


@get("/site", opt=documented(answer=SiteStatus))
async def show_site(request: HttpRequest, node: NodeDependency) -> Reply:
    """Name, version, figures and what the data directory takes."""
    require_any_right(request, node, "the site")
    usage = await run_blocking(partial(data_usage, node.site.data_directory))
    return json_response(
        SiteStatus(
            name=node.site.name,
            node=node.links.node,
            version=__version__,
            figures=_figures(node),
            usage=usage,
        )
    )


def _figures(node: Node) -> SiteFigures:
    load = node.load.report()
    return SiteFigures(
        readings=node.channels.channel("events").last_position(),
        quarantined=node.channels.channel("quarantine").last_position(),
        behind=load.behind,
        busy=load.busy,
        waiting=sum(one.waiting for one in node.outputs.status()),
        faults=len(node.conditions.current()),
    )


@get("/site/check", opt=documented(answer=SiteCheck))
async def check_files(request: HttpRequest, node: NodeDependency) -> Reply:
    """Every error, warning and hint of the site's files as they are now; nothing is loaded."""
    identity = require_role(request, node, "editor")
    problems = await run_blocking(partial(check_site, node.site.directory))
    is_admin = node.rights.allows_admin(identity)
    return json_response(SiteCheck(visible_problems(problems, is_admin=is_admin)))


def visible_problems(problems: Iterable[Problem], *, is_admin: bool) -> list[Problem]:
    """Without lines of the site file, which may contain addresses; an admin may read them."""
    return [
        one if is_admin or one.file != SITE_FILE else msgspec.structs.replace(one, excerpt="")
        for one in problems
    ]


@get("/site/access", opt=documented(answer=SiteAccess))
async def show_access(request: HttpRequest, node: NodeDependency) -> Reply:
    """Identities with their roles and rights, without their tokens."""
    require_admin(request, node)
    return json_response(SiteAccess(list(_identities(node)), node.admission.is_closed()))


def _identities(node: Node) -> Iterator[IdentityRights]:
    access = node.admission.access
    for name, grant in node.rights.grants().items():
        known = access.identities.get(name)
        yield IdentityRights(
            name=name,
            role=node.rights.role_of(name),
            admin=grant.admin,
            publish=list(grant.publish),
            subscribe=list(grant.subscribe),
            take=list(grant.take),
            rate=known.rate if known is not None else 0,
            tokens=len(known.tokens) if known is not None else 0,
            is_local=name == LOCAL,
        )


@get("/site/files", opt=documented(answer=SiteFileList))
async def list_files(request: HttpRequest, node: NodeDependency) -> Reply:
    """The site file, policies, interpretations and tables; no secrets and no data."""
    require_role(request, node, "editor")
    site = node.site
    found = await run_blocking(partial(visible_files, site.directory, site.data_directory))
    return json_response(SiteFileList(found))


@get("/site/files/text", opt=documented(answer=SiteFileText))
async def show_file(request: HttpRequest, node: NodeDependency, name: FromQuery[str]) -> Reply:
    """The text of one of the files that `GET /site/files` lists."""
    require_role(request, node, "editor")
    if name == SITE_FILE:
        require_admin(request, node)
    site = node.site
    found = await run_blocking(
        partial(read_visible_file, site.directory, site.data_directory, name)
    )
    return json_response(found)


@get("/site/log", opt=documented(answer=SiteLog))
async def show_log(
    request: HttpRequest,
    node: NodeDependency,
    lines: FromQuery[Lines] = 100,
    level: FromQuery[LogLevel] = "info",
) -> Reply:
    """The newest entries of the node's log."""
    require_admin(request, node)
    read = partial(log_tail, node.site.data_directory, lines, level=level)
    return json_response(SiteLog(await run_blocking(read)))


@get("/site/doctor", opt=documented(answer=DoctorReport))
async def examine(request: HttpRequest, node: NodeDependency) -> Reply:
    """What this installation can do, and whether the site's disk and servers are there; takes some
    seconds.
    """
    require_admin(request, node)
    site = node.site

    def findings() -> list[Finding]:
        found = examine_site(site.directory, data=site.data_directory)
        return [*examine_installation(), *found]

    return json_response(DoctorReport(await run_blocking(findings)))
